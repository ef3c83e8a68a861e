"""Strings that must come through unchanged: the numbers and names that a case of memory is told with."""

KEEP = """
6.14.0-24-generic|6.17.4-200.fc42.x86_64|6.8.0-85-generic|5.15.167.4-microsoft-standard-WSL2|7.0.2|rocm-7.0.2|7.10.0a20251015
gfx1151
gfx1100|gfx90a:sramecc+:xnack-|sm_90|sm_120|0000:03:00.0|0000:c5:00.0|00000000:01:00.0|03:00.0|c5:00.0|PCI:0000:03:00
1002:744c|10de:2684
0x1002|0x7f2a4c000000|0x7fffe0000000|0xffffffffc0a81000|0x00684500|31457280|128849018880|25261244416|4096|1024|16777216 pages
2097152 kB
127.0.0.1|http://127.0.0.1:8888/lab|localhost|localhost:6006|0.0.0.0|::1|2.13.0+cpu|2.9.1+cu130|2.4.0a0+git2a26858
2.10.0a0+rocm7.10.0
torch==2.9.1|nvidia-cudnn-cu12==9.10.2.21|nvidia-cublas-cu12==12.8.4.1|nvidia-curand-cu12       10.3.9.90
libcudnn.so.9.10.2.21
libamdhip64.so.6|cuda 12.8.1.0|driver 570.133.20|nvcc: release 12.8, V12.8.93|VBIOS 94.02.71.40.0B|cuDNN version 9.10.2.21
v1.2.3.4
2026-11-21|2026-11-21T04:11:37Z|2026-11-21 04:11:37,123|04:11:37|12:34:56.789|Fri Nov 21 09:42:19 UTC 2026
20261121T041135Z-boxes
0.87|3/4|96.5 %|1.25x|23.53 GiB of 23.99 GiB|2.00 GiB|96.00 MiB|1e-5|3.14159|-17|+0.5|1_000_000|10,485,760|50/50|16:9|1:2
06ee861cf48|2a26858|a9a80e791|cd6df6b|20bb0dd22cee7bf8c9624409e45db4f9aa7339a493567ee9677a8736ff13fe78
da39a3ee5e6b4b0d3255bfef95601890afd80709|d41d8cd98f00b204e9800998ecf8427e
sha256: 7320b0813abe5a57afc9d2d257c933760f8a6fed75b636a59db898094e5fe55b
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128|PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8
HSA_OVERRIDE_GFX_VERSION=11.0.0|HIP_VISIBLE_DEVICES=0,1|CUDA_VISIBLE_DEVICES=0|HSA_ENABLE_SDMA=0|OMP_NUM_THREADS=16
LANG=C.UTF-8
ttm.pages_limit=31457280|ttm.page_pool_size=31457280|amdgpu.gttsize=131072|amd_iommu=off
BOOT_IMAGE=/vmlinuz-6.14.0-37-generic ro quiet
iommu=pt pci=realloc|pcie_aspm=off|/dev/kfd|/dev/dri/renderD128|/dev/nvidia0|/dev/nvidiactl
/sys/class/drm/card1/device/mem_info_vram_total
/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties|/sys/module/ttm/parameters/pages_limit|/proc/meminfo
/proc/1900/status
/sys/devices/pci0000:00/0000:00:01.1/0000:02:00.0/0000:03:00.0|/etc/modprobe.d/ttm.conf|/opt/rocm/.info/version
/opt/rocm-7.0.2/lib
/usr/lib/x86_64-linux-gnu/libcuda.so.1|/usr/local/cuda-12.8/bin/nvcc|/tmp|/root|/home|/var/log/kern.log|/usr/bin/python3
MemTotal:       131072000 kB|MemAvailable:   120000000 kB|VmRSS:   314572800 kB|RssAnon:  157286400 kB
drm-resident-vram:	120320 KiB
drm-pdev:	0000:c5:00.0|drm-client-id:	17|pos:	0|uid=1000|gid=992|groups=44,992|0660|0666|CapEff: 0000000000000000
00000000a80425fb
uid_map 0 0 4294967295|000001ffffffffff|PID 31415|pid 1900|python3 (31415)|Killed process 31415 (python3)|oom_score_adj:0
oom-kill:constraint=CONSTRAINT_NONE
[    3.141592] amdgpu 0000:03:00.0: amdgpu: VRAM: 20464M 0x0000008000000000 - 0x00000084FEFFFFFF (20464M used)
[drm] Initialized amdgpu 3.64.0 20150101 for 0000:03:00.0 on minor 1|[drm] amdgpu: 20464M of VRAM memory ready
[drm] amdgpu: 64000M of GTT memory ready.|NVRM: Xid (PCI:0000:01:00): 31, pid=31415, name=python3, Ch 00000008, intr 00000000
MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ 0x7f2a_4c000000.
Memory access fault by GPU node-1 (Agent handle: 0x55d0c0a0)
[gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770)
in page starting at address 0x00007f2a4c000000 from client 0x1b (UTCL2)
CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.99 GiB of which 30.00 MiB is free.
HIP out of memory. Tried to allocate 96.00 MiB. GPU has 19.98 GiB total of which 0 bytes is free.
Process 31415 has 22.88 GiB memory in use.|Of the allocated memory 21.10 GiB is allocated by PyTorch, and 1.20 GiB is reserved
HIPBLAS_STATUS_ALLOC_FAILED when calling hipblasCreate(handle)|device >= 0 && device < num_gpus INTERNAL ASSERT FAILED
expandable_segments not supported on this platform|cuda:0|cuda:1|hip:0|cpu|xpu:0|torch.float16|torch.bfloat16|int8|fp8_e4m3
max_new_tokens=256|tokens: 5123|tokens/s: 5123.4|tokens_per_second = 812.5|pad_token_id=50256|eos_token = "</s>"
pad_token="<pad>"
num_tokens: 4096|token_count=12|tokenizer = AutoTokenizer|token=None|password=None|token: str|api_key = os.environ["A_NAME"]
token = getpass()|secret: bool = False|key=lambda row: row[0]|sort_keys=True|keys: 17|key_padding_mask=mask|bypass=True
compass: 12.5
131072000000   kB|bytes in use with no owner: needs a reset|the user: needs more
7f2a4c000000   512|forward pass: 12.5ms|pass: 1234|first_pass=8192 MiB
ms per token: 3.25|token: 3.2ms
x[::2]|x[1::3]|std::vector|at::native|c10::cuda::CUDACachingAllocator|a@b.T|q @ k.transpose(-2, -1)|x@self.weight
@torch.no_grad()
git@github.com:pytorch/pytorch.git|user@1000.service|getty@tty1.service|https://github.com/ROCm/ROCm/issues/5940
https://pytorch.org/docs
loss=0.6931|lr: 3e-4|step 200/1000|epoch 3|batch_size=32|seed=1234|world_size=8|rank 0|2048x2048|[1, 3, 224, 224]|(4096, 4096)
PCIe 16.0 GT/s x16|2520MHz|350 W|62 C|96%|numa_node -1|iommu_group 14|DMA-FQ|NUMA node0 CPU(s): 0-31|AMD Ryzen AI Max+ 395
Radeon 8060S Graphics|NVIDIA GeForce RTX 4090|AMD Radeon RX 7900 XT|Serial: 8250/16550 driver, 32 ports, IRQ sharing enabled
New USB device strings: Mfr=1, Product=2, SerialNumber=3|Serial Number : N/A|serial: None|GPU-XX|Uuid: N/A|unique_id: 0
00000000-0000-0000-0000-000000000000|box-ab12cd|strix-halo-4-ttm|000-01_hardware_probe-af63ae55|01_hardware_probe.ipynb
run.json
table/processes|command/nvidia-smi_-q_-x|nvidia-smi -q -x|rocm-smi --showmeminfo all --json|make diagnose
python -m helpers capture
hostname: localhost|threading.local()|self.local|app.config|torch.nn.functional|np.float32|model.to("cuda")|optimizer.step()
ff:ff:ff:ff:ff:ff|00:00:00:00:00:00|255.255.255.0|224.0.0.1|169.254.169.254|192.0.2.1|2001:db8::1|user-1|host-2|gpu-uuid-3
"""
MUST_KEEP = [one for line in KEEP.strip().splitlines() for one in line.split("|")]
