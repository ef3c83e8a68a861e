"""Text of each mechanism reaches its label, and every entry is weighed by what is measured and what is said."""

import pytest

from helpers.judge.catalogue import failures
from helpers.judge.diagnosis import diagnose, weigh
from helpers.judge.evidence import Observation, case_evidence
from helpers.look.reading import seen
from helpers.shapes import CAUSES

HEAD = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "


def oom(request, total, free, allocated, rest, process="", allowed=""):
    """A message of the current form with other numbers."""
    used = (
        f" Including non-PyTorch memory, this process has {process} memory in use."
        if process
        else ""
    )
    return (
        f"{HEAD}{request}. GPU 0 has a total capacity of {total} of which {free} is "
        f"free.{used}{' ' + allowed + ' allowed;' if allowed else ''} "
        f"Of the allocated memory {allocated} is allocated by PyTorch, and {rest} is reserved by PyTorch but unallocated."
    )


PLAIN = "RuntimeError: CUDA error: out of memory"
APU = {"gpu": "Radeon 890M", "gfx": "gfx1150", "ram_gib": 96}
# mechanism: (error text, tool outputs, environment, narrative, the label it must come to or "" where others may win)
TEXTS = {
    "capacity-sum": (
        oom("9.00 GiB", "15.77 GiB", "1.10 GiB", "13.20 GiB", "900.00 MiB"),
        {},
        {},
        "",
        "true-capacity",
    ),
    "capacity-ours": (
        oom("48.00 MiB", "11.75 GiB", "12.00 MiB", "11.02 GiB", "31.00 MiB", "11.60 GiB"),
        {},
        {},
        "",
        "true-capacity",
    ),
    "capacity-work": (
        HEAD + "2.00 GiB",
        {},
        {},
        "Long prompts on a 10 GB card with the default settings.",
        "true-capacity",
    ),
    "no-room-for-cache": (
        "ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization",
        {},
        {},
        "",
        "true-capacity",
    ),
    "fails-late": (
        PLAIN,
        {},
        {},
        "Memory use grows with each step; it stops after about 700 steps.",
        "user-leak",
    ),
    "above-an-apus-total": (
        oom("14.00 GiB", "11.60 GiB", "11.00 GiB", "10.00 MiB", "2.00 MiB"),
        {},
        APU,
        "",
        "",
    ),
    "not-measured": (
        "",
        {"nvidia-smi": "memory.used [N/A], memory.total [N/A]"},
        {},
        "",
        "metric-misreport",
    ),
    "stranded-much": (
        oom("3.00 GiB", "39.39 GiB", "1.20 GiB", "14.00 GiB", "23.10 GiB", "38.00 GiB"),
        {},
        {},
        "",
        "allocator-fragmentation",
    ),
    "stranded-some": (
        oom("20.00 MiB", "31.74 GiB", "9.00 MiB", "28.00 GiB", "2.40 GiB", "30.90 GiB"),
        {},
        {},
        "",
        "",
    ),
    "steps-in-constant-work": (
        "",
        {"nvidia-smi": "used memory rises step by step under a constant load"},
        {},
        "A translation server, inputs of varying length, keeps growing.",
        "allocator-fragmentation",
    ),
    "fragments-told": (HEAD + "1.00 GiB", {}, {}, "Somebody blames fragmentation.", ""),
    "preallocating-neighbour": (
        PLAIN,
        {},
        {},
        "A JAX data pipeline and a PyTorch model share the program.",
        "allocator-cache-not-returned",
    ),
    "collective-starved": (
        "NCCL WARN Failed to CUDA calloc 16777216 bytes, out of memory",
        {},
        {},
        "",
        "allocator-cache-not-returned",
    ),
    "cache-kept": (
        "",
        {},
        {},
        "The cached blocks are never released, so the renderer next to it starves.",
        "",
    ),
    "blas-handle": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        {},
        {},
        "",
        "library-workspace",
    ),
    "convolution-workspace": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        {},
        {},
        "",
        "",
    ),
    "convolution-told": (
        "",
        {},
        {},
        "Only the MIOpen convolution search at start takes gigabytes.",
        "",
    ),
    "collective-workspace": (
        "RCCL error: hip failure 'out of memory', alloc of 4194304 failed",
        {},
        {},
        "",
        "",
    ),
    "outside-by-sum": (
        oom("64.00 MiB", "47.50 GiB", "20.00 MiB", "3.10 GiB", "80.00 MiB"),
        {},
        {},
        "",
        "external-holder",
    ),
    "full-at-start": (
        "ValueError: Free memory on device cuda:1 (3.10/47.4 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 42.7 GiB).",
        {},
        {},
        "",
        "external-holder",
    ),
    "no-room-for-context": (
        "RuntimeError: CUDA error: out of memory\n  in torch._C._cuda_init\n  torch.cuda.set_device(0) "
        "out of memory",
        {},
        {},
        "",
        "external-holder",
    ),
    "listed-holder": (
        PLAIN,
        {
            "nvidia-smi": "|    0   N/A  N/A     70411      C   ./render_farm                   21804MiB |"
        },
        {},
        "",
        "external-holder",
    ),
    "in-use-unlisted": (
        PLAIN,
        {
            "nvidia-smi": "| 38%   51C    P8  21W / 250W |  10621MiB / 11264MiB |  0%  Default |\n No "
            "running processes found"
        },
        {},
        "",
        "external-holder",
    ),
    "some-outside": (
        oom("512.00 MiB", "23.64 GiB", "110.00 MiB", "14.80 GiB", "300.00 MiB"),
        {},
        {},
        "",
        "",
    ),
    "others-told": (
        PLAIN,
        {},
        {},
        "The workstation is shared and someone else runs a job there.",
        "external-holder",
    ),
    "full-though-thought-empty": (
        PLAIN,
        {},
        {},
        "The card was believed to be free.",
        "external-holder",
    ),
    "survivors": (
        PLAIN,
        {"nvidia-smi": "9800MiB / 11264MiB", "fuser": "lsof and fuser list python 4410 4411"},
        {},
        "Loader workers left over after Ctrl-C; memory remains in use.",
        "stale-holder",
    ),
    "kernel-counts-leak": (
        "",
        {
            "dmesg": "amdgpu 0000:0b:00.0: VM memory stats for proc kwin(811) task kwin:cs0(820) is "
            "non-zero when fini"
        },
        {},
        "",
        "driver-leak",
    ),
    "ownerless": (
        "",
        {
            "rocm-smi --showmeminfo vram": "GPU[0]\t\t: VRAM Total Memory (B): 68702699520\n"
            "GPU[0]\t\t: VRAM Total Used Memory (B): 32715571200",
            "lsof /dev/kfd": "",
        },
        {},
        "The process has ended, its memory stays in use, and only a reboot frees it.",
        "driver-leak",
    ),
    "reset": ("amdgpu 0000:0c:00.0: amdgpu: MODE1 reset", {}, {}, "", "context-corruption"),
    "submission-flood": (
        "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Not enough memory for command submission!",
        {},
        {},
        "",
        "",
    ),
    "grows": (
        HEAD + "30.00 MiB",
        {},
        {},
        "Each training epoch uses more; usage keeps increasing until it fails.",
        "user-leak",
    ),
    "evaluation-keeps-graphs": (
        PLAIN,
        {},
        {},
        "Training runs, then evaluation runs out of memory.",
        "user-leak",
    ),
    "graphs-added": (
        PLAIN,
        {
            "train.py": "for x, y in loader:\n    loss = criterion(model(x), y)\n    total_loss += loss\n"
        },
        {},
        "",
        "user-leak",
    ),
    "half-the-ram": (
        "",
        {"torch": "total_memory: 47.10 GiB", "free -h": "MemTotal: 94.2 GiB"},
        APU,
        "",
        "ttm-gtt-cap",
    ),
    "limit-not-taken": (
        "",
        {
            "cat /sys/module/ttm/parameters/pages_limit": "12303962",
            "cat /proc/cmdline": "BOOT_IMAGE=/vmlinuz ro ttm.pages_limit=20000000",
        },
        APU,
        "The limit was raised, and programs still see only half of the RAM.",
        "ttm-gtt-cap",
    ),
    "carveout": (
        "",
        {
            "torch": "total_memory: 4.00 GiB",
            "sysfs": "mem_info_vram_total: 4294967296\nmem_info_gtt_total: 49249517568",
        },
        APU,
        "",
        "carveout-only",
    ),
    "carveout-told": (
        PLAIN,
        {},
        APU,
        "The program sees only the 8 GB of dedicated VRAM that the BIOS sets aside; the unified "
        "memory is not used.",
        "carveout-only",
    ),
    "free-above-total": (
        oom("20.00 GiB", "30.10 GiB", "61.00 GiB", "1.00 GiB", "10.00 MiB"),
        {},
        APU,
        "",
        "hsa-pool-cap",
    ),
    "build-halves-total": (
        "",
        {"old build": "Total VRAM: 90000 MiB", "new nightly build": "Total VRAM: 45500 MiB"},
        APU,
        "Same kernel; the new build is the bad build.",
        "hsa-pool-cap",
    ),
    "free-by-two-tools": (
        "",
        {"app log": 'total="32.0 GiB" available="7.1 GiB"', "radeontop": "30 GiB free"},
        {},
        "",
        "metric-misreport",
    ),
    "sum-of-pools": (
        "",
        {
            "rocm-smi": "GPU[0] : VRAM Total Memory (B): 17179869184\nGPU[0] : GTT Total Memory (B): 51539607552",
            "app": 'total="64.0 GiB"',
        },
        APU,
        "",
        "metric-misreport",
    ),
    "activity-for-occupancy": (
        "",
        {"rocm-smi --showmemuse": "GPU memory use (%): 3"},
        {},
        "",
        "metric-misreport",
    ),
    "fits-by-its-own-figures": (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1800.00 MiB on device 0: cudaMalloc failed: out of memory",
        {
            "server log": 'level=INFO msg="offload" memory.available="[11.0 GiB]" memory.required.full="9.5 GiB"'
        },
        {},
        "",
        "metric-misreport",
    ),
    "free-above-total-tool": (
        "",
        {"torch.cuda.mem_get_info()": "(68719476736, 34359738368)"},
        APU,
        "",
        "hsa-pool-cap",
    ),
    "figure-told": ("", {}, {}, "The dashboard shows a wrong number.", "metric-misreport"),
    "free-misread": (
        oom("100.00 MiB", "15.98 GiB", "12.00 GiB", "2.00 GiB", "10.00 MiB"),
        {},
        {},
        "",
        "",
    ),
    "killed": (
        "",
        {
            "dmesg": "Out of memory: Killed process 8123 (python3) total-vm:60000000kB, anon-rss:31000000kB"
        },
        {},
        "",
        "host-oom",
    ),
    "host-allocation": (
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "34359738368 bytes",
        {},
        {},
        "",
        "host-oom",
    ),
    "host-told": ("", {}, {}, "System RAM fills and the machine swaps.", "host-oom"),
    "wheels": (
        "ImportError",
        {"pip list": "torch 2.8.0\ntorchvision 0.21.0"},
        {},
        "",
        "version-mismatch",
    ),
    "clash": (
        "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        {},
        {},
        "",
        "version-mismatch",
    ),
    "changed-with-version": (
        PLAIN,
        {},
        {},
        "It broke after upgrading torch to 2.9, with torch 2.8 it works.",
        "version-mismatch",
    ),
    "handle-on-idle-card": (
        "HIPBLAS_STATUS_ALLOC_FAILED",
        {"note": "tiny tensor on an otherwise idle card"},
        {},
        "",
        "",
    ),
    "chip-not-built": (
        "RuntimeError: HIP error: no kernel image is available for execution on the device",
        {},
        {},
        "",
        "unsupported-gfx",
    ),
    "override-faults": (
        "Memory access fault by GPU node-2 on address 0x7e0000",
        {},
        {"env_vars": {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}},
        "",
        "unsupported-gfx",
    ),
    "refused": ("Unable to open /dev/kfd read-write: Permission denied", {}, {}, "", "permission"),
    "node-not-in-container": (
        "ls: cannot access /dev/kfd: No such file or directory",
        {},
        {},
        "",
        "permission",
    ),
    "no-device": (
        "RuntimeError: No HIP GPUs are available",
        {},
        {},
        "The user is not in the render group.",
        "",
    ),
    "assert-first": (
        "RuntimeError: CUDA error: device-side assert triggered",
        {},
        {},
        "",
        "context-corruption",
    ),
    "fault-or-reset": (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        {},
        {},
        "",
        "context-corruption",
    ),
    "own-limit": (
        oom("40.00 MiB", "23.60 GiB", "17.00 GiB", "5.88 GiB", "10.00 MiB", allowed="5.90 GiB"),
        {},
        {},
        "",
        "config-ineffective",
    ),
    "unknown-setting": (
        "amdgpu: unknown parameter 'gttsise' ignored",
        {},
        {},
        "",
        "config-ineffective",
    ),
    "wrong-device-number": (
        "RuntimeError: CUDA error: invalid device ordinal",
        {},
        {},
        "",
        "config-ineffective",
    ),
    "not-read": (
        "",
        {},
        {},
        "The variable was set after import, so it has no effect.",
        "config-ineffective",
    ),
    "all-on-one": (
        "",
        {
            "nvidia-smi": "|  0  N/A  N/A  501  C  python  900MiB |\n|  2  N/A  N/A  501  C  python  8000MiB |"
        },
        {},
        "",
        "multi-gpu-imbalance",
    ),
    "ranks-share": (
        "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 41000",
        {},
        {},
        "",
        "multi-gpu-imbalance",
    ),
    "expandable-refused": (
        "UserWarning: expandable_segments not supported on this platform",
        {},
        {},
        "",
        "expandable-segments-unsupported",
    ),
    "expandable-breaks": (
        "",
        {},
        {},
        "With expandable_segments on the program crashes at the second step.",
        "expandable-segments-unsupported",
    ),
    "not-bytes": ("OSError: too many open files", {}, {}, "", ""),
    "failed-though-free": (
        oom("100.00 MiB", "15.98 GiB", "12.00 GiB", "2.00 GiB", "10.00 MiB"),
        {},
        {},
        "",
        "other",
    ),
    "peer-hang": (
        "",
        {"dmesg": "PCI rejects atomics"},
        {},
        "Two cards deadlock in all_reduce.",
        "",
    ),
    "integrated-in-list": (
        "RuntimeError: HIP error: invalid device function",
        {
            "device list": "  Device 0: AMD Radeon Graphics, gfx1036 (0x1036), VMM: no, Wave Size: 32\n"
            "  Device 1: AMD Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32"
        },
        {},
        "",
        "unsupported-gfx",
    ),
}


def evidence(error, tools, environment, narrative):
    return case_evidence(
        {
            "error_text": error,
            "tool_outputs": tools,
            "environment": environment,
            "narrative": narrative,
        }
    )


def observed(names, **more):
    """Observations of these names, each from a source of its own."""
    return [
        Observation(name, seen("x", "text", f"source of {name}"), "seen", "tool", **more)
        for name in names
    ]


def needed(failure):
    return list(dict.fromkeys(name for group in failure.needs for name in group))


def test_every_label_but_cannot_tell_has_an_entry_and_every_entry_a_label():
    assert {failure.cause for failure in failures()} == set(CAUSES) - {"cannot-tell"}


@pytest.mark.parametrize("name", [name for name, row in TEXTS.items() if row[4]])
def test_text_of_the_mechanism_reaches_its_label(name):
    *given, label = TEXTS[name]
    verdict = diagnose(evidence(*given))
    assert verdict.cause == label or (
        verdict.cause == "cannot-tell" and label in {o.cause for o in verdict.alternatives}
    )


@pytest.mark.parametrize("name", [name for name, row in TEXTS.items() if not row[4]])
def test_text_that_leaves_several_open_gets_a_verdict_with_evidence(name):
    *given, _ = TEXTS[name]
    assert diagnose(evidence(*given)).evidence


@pytest.mark.parametrize("failure", failures(), ids=lambda failure: failure.id)
def test_what_an_entry_needs_reaches_it_and_one_missing_need_does_not(failure):
    assert failure.id in {row.failure.id for row in weigh(observed(needed(failure)))}
    for left_out in failure.needs:
        rest = [name for name in needed(failure) if name not in left_out]
        assert failure.id not in {row.failure.id for row in weigh(observed(rest))}


@pytest.mark.parametrize("failure", failures(), ids=lambda failure: failure.id)
def test_hearsay_alone_is_weak(failure):
    names = dict.fromkeys(
        [*needed(failure), *failure.strong, *failure.weak, *failure.sufficient, *failure.proof]
    )
    said = observed(
        [name for name in names if name not in failure.refuted_by], hard=False, proof=True
    )
    assert [row.confidence for row in weigh(said) if row.failure.id == failure.id] in (["weak"], [])


@pytest.mark.parametrize("failure", failures(), ids=lambda failure: failure.id)
def test_nothing_is_confirmed_without_a_proof(failure):
    names = dict.fromkeys(
        [*needed(failure), *failure.strong, *failure.weak, *failure.sufficient, *failure.proof]
    )
    hard = observed(names)
    assert all(row.confidence != "confirmed" for row in weigh(hard))


@pytest.mark.parametrize(
    "failure", [one for one in failures() if one.proof], ids=lambda failure: failure.id
)
def test_a_proof_confirms_but_not_where_it_was_filled_in(failure):
    names = list(dict.fromkeys([*needed(failure), *failure.proof]))
    proved = [row for row in weigh(observed(names, proof=True)) if row.failure.id == failure.id]
    filled = [
        row
        for row in weigh(observed(names, proof=True, filled=True))
        if row.failure.id == failure.id
    ]
    assert [row.confidence for row in proved] == ["confirmed"] and filled[0].confidence in (
        "likely",
        "weak",
    )


@pytest.mark.parametrize(
    "failure", [one for one in failures() if one.refuted_by], ids=lambda failure: failure.id
)
def test_what_refutes_an_entry_ends_it_where_measured_and_weighs_on_it_where_said(failure):
    for name in failure.refuted_by:
        found = observed(needed(failure))
        assert failure.id not in {row.failure.id for row in weigh([*found, *observed([name])])}
        said = {
            row.failure.id: row.weight for row in weigh([*found, *observed([name], hard=False)])
        }
        bare = {row.failure.id: row.weight for row in weigh(found)}
        assert failure.id not in bare or said[failure.id] < bare[failure.id]
