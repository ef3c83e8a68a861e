"""Writes the recorded boxes: the machines of the project's case studies, as evidence bundles.

What a case printed is kept as printed (``stated``). What it did not print and a reader needs is filled in so that it agrees
with what was printed, and marked constructed in the manifest, with the reason. Run it with the workbook's Python:
``python env/boxes/build.py``; a test holds the folders against it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from helpers.look.bundle import BundleWriter  # noqa: E402

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


class Box:
    """A bundle in the making; ``stated`` for what the case printed, ``filled`` for what had to be added."""

    def __init__(self, name: str, kind: str, captured_at: str):
        self.writer = BundleWriter(name, kind, "0.1.0", captured_at)
        self.all_filled = kind == "constructed"

    def stated(self, source: str, text: str, kind: str = "file") -> None:
        self.writer.add(kind, source, text, constructed=self.all_filled)

    def filled(self, source: str, text: str, why: str = "", kind: str = "file") -> None:
        self.writer.add(kind, source, text, constructed=True, why=why)

    def rows(self, table: str, rows: list[dict], why: str = "", stated: bool = False) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self.writer.add("file", table, text, constructed=self.all_filled or not stated, why=why)

    def absent(
        self, source: str, why: str, status: str = "not_available", kind: str = "file"
    ) -> None:
        self.writer.add(kind, source, None, status=status, why=why, constructed=True)


def host(
    box: Box,
    *,
    release: str,
    ram_kib: int,
    available_kib: int,
    swap_kib: int,
    distribution: str,
    cpu: str,
    python: str = "3.12.11",
    cmdline: str = "ro quiet",
    free_kib: int | None = None,
    stated_ram: str = "",
) -> None:
    box.rows(
        "host",
        [
            {
                "system": "Linux",
                "release": release,
                "version": "#1 SMP PREEMPT_DYNAMIC",
                "machine": "x86_64",
                "python": python,
                "page_size": 4096,
                "clock_ticks": 100,
                "boot_id": "00000000-recorded-box",
                "now": "",
            }
        ],
    )
    box.filled("/proc/version", f"Linux version {release} (builder) #1 SMP PREEMPT_DYNAMIC\n")
    free = available_kib - 4 * MIB if free_kib is None else free_kib
    box.filled(
        "/proc/meminfo",
        "".join(
            f"{key + ':':<16}{kib:>9} kB\n"
            for key, kib in (
                ("MemTotal", ram_kib),
                ("MemFree", free),
                ("MemAvailable", available_kib),
                ("Buffers", 2 * KIB),
                ("Cached", max(0, available_kib - free)),
                ("SwapTotal", swap_kib),
                ("SwapFree", swap_kib),
                ("HugePages_Total", 0),
            )
        ).replace("HugePages_Total:        0 kB", "HugePages_Total:        0"),
        stated_ram,
    )
    box.filled("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz-{release} {cmdline}\n")
    name, version, ident = distribution.split("|")
    box.filled(
        "/etc/os-release",
        f'NAME="{name}"\nVERSION_ID={version}\nID={ident}\nPRETTY_NAME="{name} {version}"\n',
    )
    box.filled("/proc/cpuinfo", f"processor\t: 0\nmodel name\t: {cpu}\n")


def identity(
    box: Box, *, container: str, groups: list[tuple[int, str]], uid: int = 1000, wsl: bool = False
) -> None:
    box.rows(
        "identity",
        [
            {
                "uid": uid,
                "gid": uid,
                "groups": [{"gid": gid, "name": name} for gid, name in groups],
                "groups_in_database": [name for _, name in groups],
                "uid_map": "0 0 4294967295",
                "gid_map": "0 0 4294967295",
                "no_new_privs": False,
                "seccomp": "2" if container != "none" else "0",
                "cap_eff": "0000000000000000",
                "cap_bnd": "00000000a80425fb" if container != "none" else "000001ffffffffff",
                "selinux_mode": "",
                "selinux_context": "",
                "container": container,
                "container_signs": ["/.dockerenv"] if container == "docker" else [],
                "namespaces": {},
                "init_pid_ns": container == "none",
                "wsl": wsl,
            }
        ],
    )


def access(box: Box, paths: list[str], group: str = "render", gid: int = 992) -> None:
    rows = []
    for path in paths:
        mode, owner_gid, owner = ("0666", 0, "root") if "nvidia" in path else ("0660", gid, group)
        rows.append(
            {
                "path": path,
                "status": "ok",
                "errno": "",
                "mode": mode,
                "uid": 0,
                "gid": owner_gid,
                "group": owner,
                "selinux": "",
            }
        )
    box.rows("access", rows)


def process(pid: int, name: str, rss_bytes: int, uid: int = 1000, state: str = "S") -> dict:
    return {
        "pid": pid,
        "name": name,
        "state": state,
        "uid": uid,
        "ppid": 1,
        "threads": 4,
        "start_ticks": 1000,
        "rss_bytes": rss_bytes,
        "rss_anon_bytes": rss_bytes // 2,
        "rss_file_bytes": rss_bytes - rss_bytes // 2,
        "rss_shmem_bytes": 0,
        "swap_bytes": 0,
        "nspid": [pid],
        "status": "ok",
        "why": "",
    }


def amd_card(
    box: Box,
    *,
    card: int,
    render: int,
    pci: str,
    device: str,
    revision: str,
    total: int,
    used: int,
    gtt_total: int,
    gtt_used: int,
    product: str,
    stated: tuple[str, ...] = (),
    why: str = "",
) -> None:
    base = f"/sys/class/drm/card{card}/device/"
    uevent = (
        f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:{device.upper()}\nPCI_SUBSYS_ID=1002:0E3B\n"
        f"PCI_SLOT_NAME={pci}\n"
    )
    values = {
        "uevent": uevent,
        "vendor": "0x1002\n",
        "device": f"0x{device}\n",
        "revision": f"0x{revision}\n",
        "mem_info_vram_total": f"{total}\n",
        "mem_info_vram_used": f"{used}\n",
        "mem_info_vis_vram_total": f"{total}\n",
        "mem_info_vis_vram_used": f"{used}\n",
        "product_name": f"{product}\n",
        "mem_info_gtt_total": f"{gtt_total}\n",
        "mem_info_gtt_used": f"{gtt_used}\n",
    }
    for name, text in values.items():
        if name in stated:
            box.stated(base + name, text)
        else:
            box.filled(base + name, text, why if name.startswith("mem_info") else "")
    box.filled(f"/sys/class/drm/renderD{render}/device/uevent", uevent)


def kfd_node(
    box: Box,
    *,
    node: int,
    gpu_id: int,
    render: int,
    location_id: int,
    gfx: int,
    bank: int,
    name: str,
    simds: int,
) -> None:
    base = f"/sys/class/kfd/kfd/topology/nodes/{node}/"
    box.filled(base + "gpu_id", f"{gpu_id}\n")
    box.filled(base + "name", f"{name}\n")
    box.filled(
        base + "properties",
        f"cpu_cores_count 0\nsimd_count {simds}\nmem_banks_count 1\ngfx_target_version {gfx}\n"
        f"vendor_id 4098\nlocation_id {location_id}\ndomain 0\ndrm_render_minor {render}\n",
    )
    box.filled(
        base + "mem_banks/0/properties",
        f"heap_type 1\nsize_in_bytes {bank}\nflags 0\nwidth 256\nmem_clk_max 1000\n",
    )


def kfd_cpu_node(box: Box, ram_bytes: int, cores: int) -> None:
    base = "/sys/class/kfd/kfd/topology/nodes/0/"
    box.filled(base + "gpu_id", "0\n")
    box.filled(base + "name", "\n")
    box.filled(
        base + "properties",
        f"cpu_cores_count {cores}\nsimd_count 0\nmem_banks_count 1\ngfx_target_version 0\n"
        "location_id 0\ndomain 0\ndrm_render_minor 0\n",
    )
    box.filled(
        base + "mem_banks/0/properties",
        f"heap_type 0\nsize_in_bytes {ram_bytes}\nflags 0\nwidth 64\nmem_clk_max 0\n",
    )


SHOWBUS = "rocm-smi --showbus --showproductname --showuniqueid --json"


def pci_rows(*rows: tuple[str, str, str, str, str]) -> list[dict]:
    bridge = "0000:00:01.1"
    shared = {
        "current_link_speed": "16.0 GT/s PCIe",
        "max_link_speed": "16.0 GT/s PCIe",
        "max_link_width": "16",
        "numa_node": "-1",
        "iommu_group": "14",
        "iommu_type": "DMA-FQ",
        "resource": [],
    }
    found = (
        [
            {
                "pci": bridge,
                "class": "0x060400",
                "vendor": "0x1022",
                "device": "0x14db",
                "driver": "pcieport",
                "path": f"/sys/devices/pci0000:00/{bridge}",
                "current_link_width": "16",
                **shared,
            }
        ]
        if rows
        else []
    )
    for pci, vendor, device, driver, width in rows:
        card = ""
        if vendor == "0x1002" and device != "0x1586":
            # AMD cards carry a PCIe switch of their own, which tells them from a GPU inside the CPU.
            switch = f"0000:{int(pci[5:7], 16) - 1:02x}:00.0"
            card = switch + "/"
            found.append(
                {
                    "pci": switch,
                    "class": "0x060400",
                    "vendor": "0x1002",
                    "device": "0x1479",
                    "driver": "pcieport",
                    "path": f"/sys/devices/pci0000:00/{bridge}/{switch}",
                    "current_link_width": width,
                    **shared,
                }
            )
        found.append(
            {
                "pci": pci,
                "class": "0x030000",
                "vendor": vendor,
                "device": device,
                "subsystem": "",
                "driver": driver,
                "path": f"/sys/devices/pci0000:00/{bridge}/{card}{pci}",
                "current_link_width": width,
                "boot_vga": "1",
                "with_security_processor": device == "0x1586",
                **shared,
            }
        )
    return found


def rx7900xt_container() -> Box:
    """Two RX 7900 XT in a ROCm 6.3 container: both full, and nothing in the container holds the memory."""
    box = Box("rx7900xt-container", "recorded", "2025-10-30T14:53:00Z")
    total = 20464 * MIB  # prints as 21.46 GB and as 19.98 GiB, both stated
    box.stated(
        "message",
        "HIP out of memory. Tried to allocate 96.00 MiB. GPU has 19.98 GiB total of which 0 bytes is free.\n"
        "HIPBLAS_STATUS_ALLOC_FAILED when calling hipblasCreate(handle)\n"
        "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED\n"
        "expandable_segments not supported on this platform\n",
    )
    box.rows(
        "environment",
        [
            {"name": name, "value": value}
            for name, value in (
                ("HIP_VISIBLE_DEVICES", "0,1"),
                ("PYTORCH_ROCM_ARCH", "gfx1100"),
                ("TORCH_BLAS_PREFER_HIPBLASLT", "0"),
                ("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128"),
                ("HSA_ENABLE_SDMA", "0"),
                ("HSA_ENABLE_INTERRUPT", "0"),
            )
        ],
        stated=True,
    )
    box.rows(
        "torch",
        [
            {
                "status": "ok",
                "torch": "2.4.0a0+git2a26858",
                "git": "2a26858",
                "hip": "6.3.42134-a9a80e791",
                "cuda": None,
                "python_version": "3.10.16",
            }
        ],
        "the Python version is not stated",
    )
    box.stated("/opt/rocm/.info/version", "6.3.2\n")
    used = {0: 21457010688, 1: 21208059904}
    why = {
        0: "printed as 21.46GB used of 21.46GB (99.9 %); the case's '~166MB free' contradicts both and is not used",
        1: "printed as 21.21GB used of 21.46GB (98.8 %), ~250MB free",
    }
    pcis = {0: "0000:03:00.0", 1: "0000:0a:00.0"}
    for index in (0, 1):
        amd_card(
            box,
            card=index,
            render=128 + index,
            pci=pcis[index],
            device="744c",
            revision="cc",
            total=total,
            used=used[index],
            gtt_total=32 * GIB,
            gtt_used=16 * MIB,
            product="AMD Radeon RX 7900 XT",
            why=why[index],
        )
        kfd_node(
            box,
            node=1 + index,
            gpu_id=42001 + index,
            render=128 + index,
            location_id=[0x0300, 0x0A00][index],
            gfx=110000,
            bank=total,
            name="gfx1100",
            simds=168,
        )
    kfd_cpu_node(box, 64 * GIB, 16)
    box.filled(
        "rocm-smi --showmeminfo all --json",
        json.dumps(
            {
                f"card{i}": {
                    "VRAM Total Memory (B)": str(total),
                    "VRAM Total Used Memory (B)": str(used[i]),
                    "VIS_VRAM Total Memory (B)": str(total),
                    "VIS_VRAM Total Used Memory (B)": str(used[i]),
                    "GTT Total Memory (B)": str(32 * GIB),
                    "GTT Total Used Memory (B)": str(16 * MIB),
                }
                for i in (0, 1)
            }
        )
        + "\n",
        kind="command",
    )
    box.filled(
        SHOWBUS,
        json.dumps({f"card{i}": {"PCI Bus": pcis[i].upper()} for i in (0, 1)}) + "\n",
        kind="command",
    )
    box.absent(
        "/sys/class/kfd/kfd/proc/*/pasid",
        "the case does not show it; it would name the holder, by its host PID",
    )
    box.rows(
        "processes",
        [process(1, "sleep", 2 * MIB, uid=0), process(40, "bash", 4 * MIB, uid=0)],
        "the case found no process of its own in the container",
    )
    box.rows("device_files", [], "the case found no process of its own in the container")
    box.rows(
        "pci_devices",
        pci_rows(*((pci, "0x1002", "0x744c", "amdgpu", "16") for pci in pcis.values())),
    )
    identity(box, container="docker", groups=[(0, "root"), (44, "video"), (992, "render")], uid=0)
    access(box, ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"])
    host(
        box,
        release="6.8.0-85-generic",
        ram_kib=64 * MIB,
        available_kib=52 * MIB,
        swap_kib=0,
        distribution="Ubuntu|22.04|ubuntu",
        cpu="AMD Ryzen 9 5950X 16-Core Processor",
        python="3.10.16",
    )
    return box


STRIX_RAM_KIB = 131151392  # rocminfo's CPU pool, stated; 125.08 GiB
STRIX_DEFAULT_PAGES = 16393924  # stated, 62.54 GiB, half the RAM to the page
STRIX_RAISED_PAGES = 31457280  # stated, 120.00 GiB
STRIX_MESSAGE = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.99 GiB.\n"
    "GPU 0 has a total capacity of 62.54 GiB of which 668.07 MiB is free.\n"
    "Of the allocated memory 59.55 GiB is allocated by PyTorch, and 2.08 GiB\n"
    "is reserved by PyTorch but unallocated.\n"
)
STRIX_PROPERTIES = {
    "name": "Radeon 8060S Graphics",
    "capability": "11.5",
    "gfx": "gfx1151",
    "total_bytes": 64038 * MIB,
    "multiprocessors": 20,
    "integrated": 1,
}


def strix_halo(stage: int) -> Box:
    """The 128 GB Strix Halo box: 1 as found, 2 after vm_size, 3 after gttsize, 4 after the TTM limit was raised."""
    name = ("found", "vm-size", "gttsize", "ttm")[stage - 1]
    box = Box(f"strix-halo-{stage}-{name}", "recorded", "2025-12-30T00:00:00Z")
    pages = STRIX_RAISED_PAGES if stage == 4 else STRIX_DEFAULT_PAGES
    gtt = 128849018880 if stage >= 3 else STRIX_DEFAULT_PAGES * 4096
    pool_kib = 125829120 if stage == 4 else 65575696
    pci = "0000:c5:00.0"
    if stage == 1:
        box.stated("message", STRIX_MESSAGE)
    stated = ["mem_info_vram_total"] + {1: ["mem_info_vram_used"], 3: ["mem_info_gtt_total"]}.get(
        stage, []
    )
    amd_card(
        box,
        card=1,
        render=128,
        pci=pci,
        device="1586",
        revision="c1",
        total=536870912,
        used=189722624,
        gtt_total=gtt,
        gtt_used=48 * MIB,
        product="Radeon 8060S Graphics",
        stated=tuple(stated),
        why="as found, the case prints it for another stage"
        if stage > 1
        else "the default: half the RAM",
    )
    smi = {
        "VRAM Total Memory (B)": 536870912,
        "VRAM Total Used Memory (B)": 189722624,
        "GTT Total Memory (B)": gtt,
    }
    box.filled(
        SHOWBUS,
        json.dumps({"card0": {"PCI Bus": pci.upper(), "Card Series": "Radeon 8060S Graphics"}})
        + "\n",
        kind="command",
    )
    wanted = {1: list(smi)[:2], 2: [], 3: [list(smi)[0], list(smi)[2]], 4: []}[stage]
    if wanted:
        source = "rocm-smi --showmeminfo vram" if stage == 1 else "rocm-smi --showmeminfo all"
        box.stated(
            source, "".join(f"GPU[0]  : {key}: {smi[key]}\n" for key in wanted), kind="command"
        )
    parameters = {
        "vm_size": "-1" if stage == 1 else "131072",
        "gttsize": "122880" if stage >= 3 else "-1",
        "no_system_mem_limit": "N",
    }
    for parameter, value in parameters.items():
        known = (parameter == "vm_size" and stage in (2, 3)) or (
            parameter == "gttsize" and stage == 3
        )
        (box.stated if known else box.filled)(
            f"/sys/module/amdgpu/parameters/{parameter}", value + "\n"
        )
    known = stage in (3, 4)
    (box.stated if known else box.filled)("/sys/module/ttm/parameters/pages_limit", f"{pages}\n")
    (box.stated if stage == 3 else box.filled)(
        "/sys/module/ttm/parameters/page_pool_size", f"{pages}\n"
    )
    options = {
        2: "options amdgpu vm_size=131072\n",
        3: "options amdgpu vm_size=131072\noptions amdgpu gttsize=122880\n",
    }
    options[4] = options[3]
    if stage > 1:
        (box.filled if stage == 4 else box.stated)("/etc/modprobe.d/amdgpu.conf", options[stage])
    box.filled(
        "/proc/modules",
        "amdgpu 20480000 12 - Live 0x0000000000000000\n"
        "drm_ttm_helper 16384 1 amdgpu, Live 0x0000000000000000\n"
        "ttm 126976 2 amdgpu,drm_ttm_helper, Live 0x0000000000000000\n",
    )
    kfd_cpu_node(box, STRIX_RAM_KIB * KIB, 32)
    kfd_node(
        box,
        node=1,
        gpu_id=51234,
        render=128,
        location_id=0xC500,
        gfx=110501,
        bank=pool_kib * KIB,
        name="gfx1151",
        simds=80,
    )
    stated_pool = stage in (3, 4)
    cpu_agent = rocminfo_agent(1, "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "CPU", STRIX_RAM_KIB, 0)
    gpu_agent = rocminfo_agent(2, "gfx1151", "GPU", pool_kib, 0xC500)
    (box.filled)(
        "rocminfo",
        "ROCk module is loaded\n==========\nHSA Agents\n==========\n" + cpu_agent + gpu_agent,
        "the pool sizes are stated, the lines around them are not"
        if stated_pool
        else "the GPU pool is stated for the next stage and the TTM limit is the same",
        kind="command",
    )
    device = dict(
        STRIX_PROPERTIES, total_bytes=120 * GIB if stage == 4 else 64038 * MIB, pci=pci, index=0
    )
    box.rows(
        "torch",
        [
            {
                "status": "ok",
                "torch": "2.10.0a0+rocm7.10.0a20251015",
                "hip": "7.10",
                "cuda": None,
                "python_version": "3.12.11",
                "device_count": 1,
                "devices_taken": True,
                "devices": [device],
            }
        ],
        "torch's version and total are stated; the HIP build string and the Python version are not",
    )
    box.filled("/opt/rocm/.info/version", "7.0.2\n")
    log = [
        "[    3.10] amdgpu 0000:c5:00.0: amdgpu: VRAM: 512M 0x0000008000000000 - 0x000000801FFFFFFF (512M used)",
        "[    3.11] [drm] amdgpu: 512M of VRAM memory ready",
        f"[    3.12] [drm] amdgpu: {gtt // MIB}M of GTT memory ready.",
    ]
    if stage >= 3:
        log[2:2] = [
            "[    3.11] amdgpu 0000:c5:00.0: amdgpu: [drm] Configuring gttsize via module parameter is deprecated, "
            "please use ttm.pages_limit"
        ]
    if stage == 3:
        log[3:3] = [
            f"[    3.11] amdgpu 0000:c5:00.0: amdgpu: [drm] GTT size has been set as {gtt} "
            f"but TTM size has been set as {pages * 4096}, this is unusual"
        ]
    box.filled("dmesg", "\n".join(log) + "\n", kind="command")
    box.rows(
        "processes",
        [process(1, "systemd", 16 * MIB, uid=0), process(2100, "gnome-shell", 400 * MIB)],
    )
    box.rows(
        "device_files",
        [
            {
                "pid": 2100,
                "fd": 12,
                "target": "/dev/dri/renderD128",
                "status": "ok",
                "why": "",
                "fdinfo": f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t17\ndrm-pdev:\t{pci}\ndrm-resident-vram:\t120320 KiB\n"
                "drm-resident-gtt:\t40960 KiB\ndrm-resident-cpu:\t0\n",
            }
        ],
    )
    box.rows("pci_devices", pci_rows((pci, "0x1002", "0x1586", "amdgpu", "16")))
    identity(box, container="none", groups=[(1000, "trainer"), (39, "video"), (105, "render")])
    access(box, ["/dev/kfd", "/dev/dri/renderD128"], gid=105)
    cmdline = "ro rhgb quiet" + (
        f" ttm.pages_limit={pages} ttm.page_pool_size={pages}" if stage == 4 else ""
    )
    host(
        box,
        release="6.17.4-200.fc42.x86_64",
        ram_kib=STRIX_RAM_KIB,
        available_kib=121 * MIB,
        free_kib=79 * MIB,
        swap_kib=8 * MIB,
        distribution="Fedora Linux|42|fedora",
        cpu="AMD RYZEN AI MAX+ 395 w/ Radeon 8060S",
        cmdline=cmdline,
        stated_ram="MemTotal is the stated CPU pool of rocminfo; the rest is what free -h printed, to its precision",
    )
    return box


def rocminfo_agent(number: int, name: str, kind: str, pool_kib: int, bdfid: int) -> str:
    flags = "FLAGS: FINE GRAINED" if kind == "CPU" else "FLAGS: COARSE GRAINED"
    lines = [
        "*******",
        f"Agent {number}",
        "*******",
        f"  Name:                    {name}",
        f"  Marketing Name:          {'Radeon 8060S Graphics' if kind == 'GPU' else name}",
        f"  Device Type:             {kind}",
        f"  BDFID:                   {bdfid}",
        f"  Internal Node ID:        {number - 1}",
        *(["  Memory Properties:       APU"] if kind == "GPU" else []),
        "  Pool Info:",
        "    Pool 1",
        f"      Segment:                 GLOBAL; {flags}",
        f"      Size:                    {pool_kib}({hex(pool_kib)}) KB",
        "      Allocatable:             TRUE",
    ]
    return "\n".join(lines) + "\n"


def nvidia_xml(
    driver: str, cuda: str, gpu: dict, processes: list[tuple[int, str, str, int]]
) -> str:
    rows = "".join(
        f"\t\t\t<process_info>\n\t\t\t\t<pid>{pid}</pid>\n\t\t\t\t<type>{kind}</type>\n\t\t\t\t<process_name>{name}</process_name>\n"
        f"\t\t\t\t<used_memory>{mib} MiB</used_memory>\n\t\t\t</process_info>\n"
        for pid, kind, name, mib in processes
    )
    return (
        f'<?xml version="1.0" ?>\n<nvidia_smi_log>\n\t<driver_version>{driver}</driver_version>\n'
        f'\t<cuda_version>{cuda}</cuda_version>\n\t<attached_gpus>1</attached_gpus>\n\t<gpu id="00000000:01:00.0">\n'
        f"\t\t<product_name>{gpu['name']}</product_name>\n"
        "\t\t<pci>\n\t\t\t<pci_bus_id>00000000:01:00.0</pci_bus_id>\n\t\t</pci>\n"
        f"\t\t<fb_memory_usage>\n\t\t\t<total>{gpu['total']} MiB</total>\n"
        f"\t\t\t<reserved>{gpu['reserved']} MiB</reserved>\n"
        f"\t\t\t<used>{gpu['used']} MiB</used>\n\t\t\t<free>{gpu['free']} MiB</free>\n\t\t</fb_memory_usage>\n"
        f"\t\t<compute_mode>Default</compute_mode>\n\t\t<processes>\n{rows}\t\t</processes>\n\t</gpu>\n</nvidia_smi_log>\n"
    )


def nvidia_box(
    box: Box,
    *,
    name: str,
    driver: str,
    cuda: str,
    torch: str,
    torch_cuda: str,
    total: int,
    reserved: int,
    processes: list[tuple[int, str, str, int]],
    rss: dict[int, int],
    why: str = "",
) -> None:
    used = sum(mib for *_, mib in processes)
    gpu = {
        "name": name,
        "total": total,
        "reserved": reserved,
        "used": used,
        "free": total - reserved - used,
    }
    box.filled("nvidia-smi -q -x", nvidia_xml(driver, cuda, gpu, processes), why, kind="command")
    box.filled(
        "/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}\n"
    )
    box.rows(
        "processes",
        [process(1, "systemd", 16 * MIB, uid=0)]
        + [
            process(pid, Path(program).name, rss.get(pid, 200 * MIB))
            for pid, _, program, _ in processes
        ],
    )
    box.rows(
        "device_files",
        [
            {
                "pid": pid,
                "fd": 20,
                "target": "/dev/nvidia0",
                "status": "ok",
                "why": "",
                "fdinfo": "pos:\t0\n",
            }
            for pid, *_ in processes
        ],
    )
    box.rows("pci_devices", pci_rows(("0000:01:00.0", "0x10de", "0x2684", "nvidia", "16")))
    identity(box, container="none", groups=[(1000, "trainer")])
    access(box, ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"])
    box.rows(
        "torch",
        [
            {
                "status": "ok",
                "torch": torch,
                "cuda": torch_cuda,
                "hip": None,
                "python_version": "3.11.9",
                "device_count": 1,
            }
        ],
    )


def cuda_24gb_tuning() -> Box:
    """A 24 GB CUDA card during hyperparameter tuning: one process with 22.88 GiB, 33.56 MiB free."""
    box = Box("cuda-24gb-tuning", "recorded", "2025-10-28T00:00:00Z")
    box.stated(
        "message",
        "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 MiB.\n"
        "GPU 0 has a total capacity of 23.56 GiB of which 33.56 MiB is free.\n"
        "Process has 22.88 GiB memory in use. Of the allocated memory 21.13 GiB\n"
        "is allocated by PyTorch, and 1.41 GiB is reserved by PyTorch but unallocated.\n",
    )
    # 23.56 GiB = 24125 MiB; free 33.56; the process 22.88 GiB = 23429 MiB; so 662 MiB are left for all others.
    nvidia_box(
        box,
        name="NVIDIA GPU with 24 GB (the case does not name it)",
        driver="570.124.06",
        cuda="12.8",
        torch="2.9.0+cu128",
        torch_cuda="12.8",
        total=24564,
        reserved=439,
        processes=[(1900, "G", "/usr/lib/xorg/Xorg", 662), (31415, "C", "/usr/bin/python3", 23429)],
        rss={31415: 9 * GIB},
        why="the four parallel trials of the case are taken as one process, because its message shows one process with "
        "22.88 GiB and leaves 0.65 GiB for all others; one trial that took all would read the same",
    )
    host(
        box,
        release="6.8.0-60-generic",
        ram_kib=64 * MIB,
        available_kib=40 * MIB,
        swap_kib=8 * MIB,
        distribution="Ubuntu|24.04|ubuntu",
        cpu="AMD Ryzen 9 7950X 16-Core Processor",
        python="3.11.9",
    )
    box.rows("environment", [])
    return box


def cuda_healthy() -> Box:
    """A CUDA box with nothing wrong: a desktop's few hundred MiB on a 24 GB card."""
    box = Box("cuda-healthy", "constructed", "2026-01-15T09:00:00Z")
    nvidia_box(
        box,
        name="NVIDIA GeForce RTX 4090",
        driver="580.95.05",
        cuda="13.0",
        torch="2.9.1+cu130",
        torch_cuda="13.0",
        total=24564,
        reserved=447,
        rss={},
        processes=[(1900, "G", "/usr/lib/xorg/Xorg", 212), (2300, "G", "/usr/bin/gnome-shell", 96)],
    )
    host(
        box,
        release="6.14.0-37-generic",
        ram_kib=64 * MIB,
        available_kib=58 * MIB,
        swap_kib=8 * MIB,
        distribution="Ubuntu|24.04|ubuntu",
        cpu="AMD Ryzen 9 7950X 16-Core Processor",
        python="3.11.9",
    )
    box.filled(
        "dmesg",
        "[    2.50] nvidia: loading out-of-tree module taints kernel.\n"
        "[    2.61] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n",
        kind="command",
    )
    box.rows("environment", [])
    return box


def cpu_only() -> Box:
    """A box without any GPU, as a CI runner or a rented server is."""
    box = Box("cpu-only", "constructed", "2026-01-15T09:00:00Z")
    host(
        box,
        release="6.1.0-41-amd64",
        ram_kib=16 * MIB,
        available_kib=14 * MIB,
        swap_kib=0,
        distribution="Debian GNU/Linux|12|debian",
        cpu="Intel(R) Xeon(R) Processor",
        python="3.11.2",
    )
    for pattern in (
        "/sys/class/drm/card*/device/uevent",
        "/sys/class/kfd/kfd/topology/nodes/*/properties",
        "/sys/module/ttm/parameters/*",
        "/proc/driver/nvidia/version",
    ):
        box.absent(pattern, "no such path")
    for command in ("rocm-smi --showmeminfo all --json", "rocminfo", "nvidia-smi -q -x"):
        box.absent(command, "no such program", kind="command")
    box.rows(
        "processes", [process(1, "systemd", 12 * MIB, uid=0), process(800, "python3", 300 * MIB)]
    )
    box.rows("device_files", [])
    box.rows("pci_devices", [])
    identity(box, container="none", groups=[(1000, "trainer")])
    box.rows(
        "access",
        [
            {
                "path": path,
                "status": "not_available",
                "errno": "ENOENT",
                "mode": "",
                "uid": None,
                "gid": None,
                "group": "",
                "selinux": "",
            }
            for path in ("/dev/kfd", "/dev/dri/renderD128", "/dev/nvidia0")
        ],
    )
    box.rows(
        "torch",
        [
            {
                "status": "ok",
                "torch": "2.13.0+cpu",
                "cuda": None,
                "hip": None,
                "python_version": "3.11.2",
                "device_count": 0,
            }
        ],
    )
    box.filled("dmesg", "[    0.00] Linux version 6.1.0-41-amd64\n", kind="command")
    box.rows("environment", [])
    return box


BOXES = (
    rx7900xt_container,
    lambda: strix_halo(1),
    lambda: strix_halo(2),
    lambda: strix_halo(3),
    lambda: strix_halo(4),
    cuda_24gb_tuning,
    cuda_healthy,
    cpu_only,
)


def build(folder: Path) -> list[Path]:
    """Write every recorded box below ``folder``; returns the folders written."""
    written = []
    for make in BOXES:
        writer = make().writer
        target = folder / writer.box
        if target.exists():
            shutil.rmtree(target)
        written.append(writer.write(target))
    return written


if __name__ == "__main__":
    for path in build(Path(__file__).resolve().parent):
        print(path.name)
