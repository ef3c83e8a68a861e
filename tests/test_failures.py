"""Every entry of the failure catalogue is reached by text of its own mechanism, and the catalogue is whole."""

from pathlib import Path

import pytest

from helpers.judge import diagnosis
from helpers.judge.diagnosis import diagnose, scores, signals
from helpers.judge.failures import FAILURES, LABELS
from helpers.judge.signals import HARD, Signal, case_evidence
from helpers.look.reading import seen
from helpers.run.shapes import CAUSES

HEAD = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "


def oom(request, total, free, allocated, rest, process="", allowed=""):
    """A message of the current form with other numbers."""
    used = f" Including non-PyTorch memory, this process has {process} memory in use." if process else ""
    return (f"{HEAD}{request}. GPU 0 has a total capacity of {total} of which {free} is "
        f"free.{used}{' ' + allowed + ' allowed;' if allowed else ''} "
            f"Of the allocated memory {allocated} is allocated by PyTorch, and {rest} is reserved by PyTorch but unallocated.")


PLAIN = "RuntimeError: CUDA error: out of memory"
APU = {"gpu": "Radeon 890M", "gfx": "gfx1150", "ram_gib": 96}
# id: (error text, tool outputs, environment, narrative, the label it must come to or "" where others may win)
TEXTS = {
    "capacity-sum": (oom("9.00 GiB", "15.77 GiB", "1.10 GiB", "13.20 GiB", "900.00 MiB"), {}, {}, "", "true-capacity"),
    "capacity-ours": (oom("48.00 MiB", "11.75 GiB", "12.00 MiB", "11.02 GiB", "31.00 MiB", "11.60 GiB"), {}, {}, "",
        "true-capacity"),
    "capacity-work": (HEAD + "2.00 GiB", {}, {}, "Long prompts on a 10 GB card with the default settings.", "true-capacity"),
    "no-room-for-cache": ("ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization", {},
        {}, "", "true-capacity"),
    "fails-late": (PLAIN, {}, {}, "It stops after about 700 steps.", "user-leak"),
    "half-the-rest": (oom("14.00 GiB", "11.60 GiB", "11.00 GiB", "10.00 MiB", "2.00 MiB"), {}, APU, "", "ttm-gtt-cap"),
    "not-measured": ("", {"nvidia-smi": "memory.used [N/A], memory.total [N/A]"}, {}, "", "metric-misreport"),
    "stranded-much": (oom("3.00 GiB", "39.39 GiB", "1.20 GiB", "14.00 GiB", "23.10 GiB", "38.00 GiB"), {}, {}, "",
        "allocator-fragmentation"),
    "stranded-some": (oom("20.00 MiB", "31.74 GiB", "9.00 MiB", "28.00 GiB", "2.40 GiB", "30.90 GiB"), {}, {}, "", ""),
    "steps-in-constant-work": ("", {"nvidia-smi": "used memory rises step by step under a constant load"}, {},
        "A translation server, inputs of varying length, keeps growing.", "allocator-fragmentation"),
    "fragments-told": (HEAD + "1.00 GiB", {}, {}, "Somebody blames fragmentation.", "allocator-fragmentation"),
    "preallocating-neighbour": (PLAIN, {}, {}, "A JAX data pipeline and a PyTorch model share the program.",
        "allocator-cache-not-returned"),
    "collective-starved": ("NCCL WARN Failed to CUDA calloc 16777216 bytes, out of memory", {}, {}, "",
        "allocator-cache-not-returned"),
    "cache-kept": ("", {}, {}, "The cached blocks are never released, so the renderer next to it starves.",
        "allocator-cache-not-returned"),
    "blas-handle": ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", {}, {}, "",
        "library-workspace"),
    "convolution-workspace": ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", {}, {}, "", "library-workspace"),
    "convolution-told": ("", {}, {}, "Only the MIOpen convolution search at start takes gigabytes.", "library-workspace"),
    "collective-workspace": ("RCCL error: hip failure 'out of memory', alloc of 4194304 failed", {}, {}, "", ""),
    "outside-by-sum": (oom("64.00 MiB", "47.50 GiB", "20.00 MiB", "3.10 GiB", "80.00 MiB"), {}, {}, "", "external-holder"),
    "full-at-start": ("ValueError: Free memory on device cuda:1 (3.10/47.4 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 42.7 GiB).", {}, {}, "", "external-holder"),
    "no-room-for-context": ("RuntimeError: CUDA error: out of memory\n  in torch._C._cuda_init\n  torch.cuda.set_device(0) "
        "out of memory", {}, {}, "", "external-holder"),
    "listed-holder": (PLAIN, {"nvidia-smi": "|    0   N/A  N/A     70411      C   ./render_farm                   21804MiB |"},
        {}, "", "external-holder"),
    "in-use-unlisted": (PLAIN, {"nvidia-smi": "| 38%   51C    P8  21W / 250W |  10621MiB / 11264MiB |  0%  Default |\n No "
        "running processes found"}, {}, "", "external-holder"),
    "some-outside": (oom("512.00 MiB", "23.64 GiB", "110.00 MiB", "14.80 GiB", "300.00 MiB"), {}, {}, "", ""),
    "others-told": (PLAIN, {}, {}, "The workstation is shared and someone else runs a job there.", "external-holder"),
    "full-though-thought-empty": (PLAIN, {}, {}, "The card was believed to be free.", "external-holder"),
    "survivors": (PLAIN, {"nvidia-smi": "9800MiB / 11264MiB", "fuser": "lsof and fuser list python 4410 4411"}, {},
        "Loader workers left over after Ctrl-C; memory remains in use.", "stale-holder"),
    "kernel-counts-leak": ("", {"dmesg": "amdgpu 0000:0b:00.0: VM memory stats for proc kwin(811) task kwin:cs0(820) is "
        "non-zero when fini"}, {}, "", "driver-leak"),
    "ownerless": ("", {"amd-smi": "31200/65520 MB", "lsof": "lsof on the host as root: nothing"}, {},
        "Only a reboot clears it; no process is there.", "driver-leak"),
    "queue-left-by-a-reset": ("amdgpu 0000:0c:00.0: amdgpu: MODE1 reset", {
        "amd-smi": "14336/16368 MB", "lsof": "lsof on the host as root: nothing"}, {}, "", "driver-leak"),
    "submission-flood": ("[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Not enough memory for command submission!", {}, {}, "", ""),
    "grows": (HEAD + "30.00 MiB", {}, {}, "Each training epoch uses more; usage keeps increasing until it fails.", "user-leak"),
    "evaluation-keeps-graphs": (PLAIN, {}, {}, "Training runs, then evaluation runs out of memory.", "user-leak"),
    "graphs-told": ("", {}, {}, "Losses are appended with their autograd history.", "user-leak"),
    "half-the-ram": ("", {"torch": "total_memory: 47.10 GiB", "free -h": "MemTotal: 94.2 GiB"}, APU, "", "ttm-gtt-cap"),
    "limit-not-taken": ("", {"grub": "ttm.pages_limit=20000000 was added; the size did not change"}, APU, "", "ttm-gtt-cap"),
    "carveout": ("", {"server log": 'first: total="70.0 GiB"\nlater: total="4.0 GiB"'}, APU, "", "carveout-only"),
    "carveout-told": ("", {"tool": "dedicated VRAM 8 GB as set in the BIOS; unified memory is not counted"}, APU, "",
        "carveout-only"),
    "free-above-total": (oom("20.00 GiB", "30.10 GiB", "61.00 GiB", "1.00 GiB", "10.00 MiB"), {}, APU, "", "hsa-pool-cap"),
    "build-halves-total": ("", {"old build": "Total VRAM: 90000 MiB", "new nightly build": "Total VRAM: 45500 MiB"}, APU,
        "Same kernel; the new build is the bad build.", "hsa-pool-cap"),
    "free-by-two-tools": ("", {"app log": 'total="32.0 GiB" available="7.1 GiB"', "radeontop": "30 GiB free"}, {}, "",
        "metric-misreport"),
    "sum-of-pools": ("",
        {"rocm-smi": "GPU[0] : VRAM Total Memory (B): 17179869184\nGPU[0] : GTT Total Memory (B): 51539607552",
            "app": 'total="64.0 GiB"'}, APU, "", "metric-misreport"),
    "activity-for-occupancy": ("", {"rocm-smi --showmemuse": "GPU memory use (%): 3"}, {}, "", "metric-misreport"),
    "fits-by-its-own-figures": ("failed to allocate the buffer",
        {"log": 'available="11.0 GiB" memory.required.full="9.5 GiB"'}, {}, "", "metric-misreport"),
    "free-above-total-tool": ("", {"hip": "free is larger than the total"}, {}, "", "metric-misreport"),
    "figure-told": ("", {}, {}, "The dashboard shows a wrong number.", "metric-misreport"),
    "free-misread": (oom("100.00 MiB", "15.98 GiB", "12.00 GiB", "2.00 GiB", "10.00 MiB"), {}, {}, "", ""),
    "killed": ("", {"dmesg": "Out of memory: Killed process 8123 (python3) total-vm:60000000kB, anon-rss:31000000kB"}, {}, "",
        "host-oom"),
    "host-allocation": ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "34359738368 bytes", {}, {}, "", "host-oom"),
    "host-told": ("", {}, {}, "System RAM fills and the machine swaps.", "host-oom"),
    "wheels": ("ImportError", {"pip list": "torch 2.8.0\ntorchvision 0.21.0"}, {}, "", "version-mismatch"),
    "clash": ("CUDA error: CUDA driver version is insufficient for CUDA runtime version", {}, {}, "", "version-mismatch"),
    "changed-with-version": ("", {}, {}, "It broke after upgrading the framework.", "version-mismatch"),
    "handle-on-idle-card": ("HIPBLAS_STATUS_ALLOC_FAILED", {"note": "tiny tensor on an otherwise idle card"}, {}, "",
        "version-mismatch"),
    "chip-not-built": ("RuntimeError: HIP error: no kernel image is available for execution on the device", {}, {}, "",
        "unsupported-gfx"),
    "override-faults": ("Memory access fault by GPU node-2 on address 0x7e0000", {},
        {"env_vars": {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}}, "", "unsupported-gfx"),
    "refused": ("Unable to open /dev/kfd read-write: Permission denied", {}, {}, "", "permission"),
    "node-not-in-container": ("ls: cannot access /dev/kfd: No such file or directory", {}, {}, "", "permission"),
    "no-device": ("RuntimeError: No HIP GPUs are available", {}, {}, "The user is not in the render group.", "permission"),
    "assert-first": ("RuntimeError: CUDA error: device-side assert triggered", {}, {}, "", "context-corruption"),
    "fault-or-reset": ("RuntimeError: CUDA error: an illegal memory access was encountered", {}, {}, "", "context-corruption"),
    "own-limit": (oom("40.00 MiB", "23.60 GiB", "17.00 GiB", "5.88 GiB", "10.00 MiB", allowed="5.90 GiB"), {}, {}, "",
        "config-ineffective"),
    "unknown-setting": ("amdgpu: unknown parameter 'gttsise' ignored", {}, {}, "", "config-ineffective"),
    "wrong-device-number": ("RuntimeError: CUDA error: invalid device ordinal", {}, {}, "", "config-ineffective"),
    "not-read": ("", {}, {}, "The variable was set after import, so it has no effect.", "config-ineffective"),
    "all-on-one": ("", {"nvidia-smi": "|  0  N/A  N/A  501  C  python  900MiB |\n|  2  N/A  N/A  501  C  python  8000MiB |"},
        {}, "", "multi-gpu-imbalance"),
    "ranks-share": ("NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 41000", {}, {}, "",
        "multi-gpu-imbalance"),
    "expandable-refused": ("UserWarning: expandable_segments not supported on this platform", {}, {}, "",
        "expandable-segments-unsupported"),
    "expandable-breaks": ("", {}, {}, "With expandable_segments on the program crashes at the second step.",
        "expandable-segments-unsupported"),
    "not-bytes": ("OSError: too many open files", {}, {}, "", "other"),
    "failed-though-free": (oom("100.00 MiB", "15.98 GiB", "12.00 GiB", "2.00 GiB", "10.00 MiB"), {}, {}, "", "other"),
    "peer-hang": ("", {"dmesg": "PCI rejects atomics"}, {}, "Two cards deadlock in all_reduce.", "other"),
    "integrated-in-list": ("", {"rocminfo": "the integrated GPU is listed as device 0"}, {}, "", "other"),
}
# Entries that only a look at a box reaches, with the signals that reach them.
BOX = {
    "outside-unseen": ("unattributed", "blind_spot"), "holder-measured": ("other_holder_measured",),
    "unattributed-all-seen": ("unattributed", "all_processes_seen"), "unattributed-unseen": ("unattributed", "blind_spot"),
    "unattributed-leak": ("unattributed", "blind_spot"), "ttm-default": ("ttm_default",), "pending-limit": ("ttm_pending",),
    "kfd-above-torch": ("kfd_above_torch",), "other-vendor": ("build_without_this_gpu",), "hidden": ("gpus_hidden",),
    "no-gpu": ("no_gpu",), "no-driver": ("no_driver",),
}


def evidence(error, tools, environment, narrative):
    return case_evidence({"error_text": error, "tool_outputs": tools, "environment": environment, "narrative": narrative})


def test_every_label_but_cannot_tell_has_an_entry_and_every_entry_a_label():
    assert LABELS == set(CAUSES) - {"cannot-tell"}


def test_every_entry_says_how_to_decide_and_what_to_do():
    for failure in FAILURES:
        assert all(failure.experiment) and failure.remedy[0] and failure.needs, failure.id
        assert failure.source and failure.explanation, failure.id
    assert len({failure.id for failure in FAILURES}) == len(FAILURES)


def test_every_signal_that_an_entry_names_is_given_by_something():
    folder = Path(diagnosis.__file__).parent
    modules = ("wording", "signals", "totals", "box_signals", "diagnosis")
    given = "".join((folder / f"{name}.py").read_text() for name in modules)
    named = {name for failure in FAILURES for name in {n for group in failure.needs for n in group}
             | set(failure.speaks_for) | set(failure.against) | failure.decisive}
    assert {name for name in named if not name.startswith("kind_") and f'"{name}"' not in given} == set()


def test_every_entry_has_a_case_here():
    assert {failure.id for failure in FAILURES} == set(TEXTS) | set(BOX)


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_the_mechanism_reaches_the_entry(name):
    *given, label = TEXTS[name]
    case = evidence(*given)
    assert name in {row.failure.id for row in scores(signals(case))}
    if label:
        assert diagnose(case).cause == label


@pytest.mark.parametrize("name", BOX)
def test_a_look_at_a_box_reaches_the_entry(name):
    found = [Signal(signal, seen(1, "count", "box"), "seen", "bundle") for signal in BOX[name]]
    assert name in {row.failure.id for row in scores(found)}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_words_of_the_narrative_alone_are_weak(failure):
    told = [Signal(name, seen("said", "text", "narrative"), "said", "narrative")
            for name in {n for group in failure.needs for n in group} | set(failure.speaks_for) | failure.decisive]
    assert [row.confidence for row in scores(told) if row.failure.id == failure.id] == ["weak"]
    assert "narrative" not in HARD


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_nothing_is_confirmed_without_a_decisive_reading(failure):
    hard = [Signal(name, seen("said", "text", "tool"), "said", "tool")
            for name in {n for group in failure.needs for n in group} | set(failure.speaks_for) if name not in failure.decisive]
    assert all(row.confidence != "confirmed" for row in scores(hard) if row.failure.id == failure.id)
