"""Sizes and limits that a person tells in words: which ceiling binds an APU, what a figure is worth, whose memory ran out.

Every text here is made up. What is told is hearsay, so that nothing but a printed figure makes an answer more than weak.
"""

from __future__ import annotations

import pytest

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence
from helpers.look.figures import figures_of

APU = {"gpu": "Radeon 780M", "gfx": "gfx1103", "ram_gib": 64}
HALO = {"gpu": "Radeon 8060S", "gfx": "gfx1151", "ram_gib": 128}
CARD = {"gpu": "RX 7900 XTX 24GB", "gfx": "gfx1100"}
NVIDIA = {"gpu": "RTX 3090 24GB"}
OOM = "torch.OutOfMemoryError: HIP out of memory."


def verdict(machine, narrative="", error="", **tools):
    given = {"environment": machine, "narrative": narrative, "error_text": error}
    return diagnose(case_evidence({**given, "tool_outputs": tools}))


@pytest.mark.parametrize(("machine", "narrative", "causes"), [
    (HALO, "PyTorch sees 62 GiB although the kernel gives 110 GiB of GTT.", "hsa-pool-cap"),
    (HALO, "The BIOS is set to 96 GB for graphics, but torch reports a total of 31 GiB.", "hsa-pool-cap"),
    (HALO, "With 32 GB in the UEFI the Vulkan build of the server gets 80 GB while the ROCm build stays at 32 GB.",
     "carveout-only hsa-pool-cap"),
    (HALO, "Ollama counts only 512 MB of video memory and therefore keeps every layer on the processor.",
     "carveout-only"),
    (APU, "The launcher refuses the integrated GPU because it has 512 MB, though GTT is 30 GiB.", "carveout-only"),
    (APU, "A Windows laptop: dedicated 2 GB is all that HIP will hand out.", "carveout-only"),
    (CARD, "A single hipMalloc of more than 4 GB is refused although 20 GB are free.", "hsa-pool-cap"),
    (CARD, "clinfo gives a maximum allocation of a quarter of the card, and larger buffers fail.", "hsa-pool-cap"),
    (NVIDIA, "The widget says 4 GB for a card of 24 GB.", "metric-misreport"),
    (NVIDIA, "Usage stays at zero in the panel while a training job is running.", "metric-misreport"),
    (NVIDIA, "The percentage in the tray applet exceeds one hundred.", "metric-misreport"),
    (NVIDIA, "The sum over processes is larger than what the card has in use.", "metric-misreport"),
    (NVIDIA, "RAM and swap are used up as soon as the weights are read.", "host-oom"),
])  # fmt: skip
def test_what_is_told_of_sizes_names_a_cause_weakly(machine, narrative, causes):
    answer = verdict(machine, narrative)
    assert answer.cause in causes.split()
    assert answer.confidence == "weak"


@pytest.mark.parametrize(("machine", "narrative", "error", "cause"), [
    (APU, "Everything above 31 GiB fails; Linux lets the GPU map half of the RAM by default.", OOM, "ttm-gtt-cap"),
    (HALO, "Raising ttm.pages_limit cured it.", OOM, "ttm-gtt-cap"),
    (APU, "A game crashes as soon as GTT is full.", "amdgpu: not enough memory for command submission", "ttm-gtt-cap"),
    (NVIDIA, "It works with pin_memory switched off.", "RuntimeError: CUDA error: out of memory", "host-oom"),
    (NVIDIA, "A resolution of 2048x2048 fails on this card, 1024x1024 works.", "CUDA out of memory", "true-capacity"),
    (NVIDIA, "Shorter clips run; the long one does not.", "CUDA out of memory", "true-capacity"),
    (NVIDIA, "The maintainers say that 40 GB are needed.", "CUDA out of memory", "true-capacity"),
])  # fmt: skip
def test_what_is_told_beside_a_failure_names_whose_memory_ran_out(machine, narrative, error, cause):
    assert verdict(machine, narrative, error).cause == cause


@pytest.mark.parametrize("narrative", [
    "The program was fine-tuned by others and is well known.", "We use a server with many GPUs.",
    "My laptop has a BIOS from last year.", "Vulkan is a graphics interface, ROCm is for compute.",
    "A single tensor is shown in the tutorial.", "The batch size is 8.", "I read about pinned memory.",
    "The shared memory of a block is small.", "The dashboard was installed yesterday.",
])  # fmt: skip
@pytest.mark.parametrize("machine", [APU, NVIDIA])
def test_a_sentence_that_states_no_event_decides_nothing(machine, narrative):
    assert verdict(machine, narrative).cause == "cannot-tell"


def test_a_pod_that_was_killed_for_its_limit_is_host_memory():
    assert verdict(NVIDIA, pod="OOMKilled during start; limit 4Gi").cause == "host-oom"


def test_two_interfaces_of_one_apu_tell_the_carve_out_from_the_shared_memory():
    tools = {
        "ROCm log": "8192 MiB of free device memory",
        "Vulkan log": "60000 MiB of free device memory",
    }
    assert verdict(HALO, **tools).cause in ("carveout-only", "hsa-pool-cap")


def test_a_tool_alone_that_gives_the_carve_out_is_no_more_than_a_weak_answer():
    rows = "VRAM Total Memory (B): 536870912", "GTT Total Memory (B): 66571993088"
    answer = verdict(HALO, **{"rocm-smi vram": rows[0], "rocm-smi gtt": rows[1]})
    assert (answer.cause, answer.confidence) == ("metric-misreport", "weak")


def test_a_limit_that_another_interface_reaches_is_live():
    tools = {
        "kernel command line": "ttm.pages_limit=15728640",
        "Vulkan log": "61440 MiB of free device memory",
    }
    answer = verdict(HALO, "The firmware gives 8 GB.", **tools, **{"ROCm log": "8192 MiB visible"})
    assert answer.cause == "carveout-only"


@pytest.mark.parametrize("shown", ["4 GB", "4095 MiB", "4.0 GiB"])
def test_a_card_of_which_windows_shows_4_gib_is_a_32_bit_figure(shown):
    assert (
        verdict({"gpu": "RX 9070 XT", "os": "Windows 11"}, inventory=shown).cause
        == "metric-misreport"
    )


def test_a_total_above_the_size_that_is_stated_for_each_card_is_a_wrong_figure():
    machine = {"gpu": "4x AMD 32 GiB", "rocm": "7.0"}
    assert verdict(machine, hipMemGetInfo="total 128 GiB for GPU 0").cause == "metric-misreport"


def test_a_context_is_no_share_of_a_small_card():
    """Of 2 GiB this process has 1.2; a context and a desktop take the rest, and nobody else need be there."""
    error = (
        "CUDA out of memory. Tried to allocate 30.00 MiB (GPU 0; 2.00 GiB total capacity; 1.21 GiB already "
        "allocated; 0 bytes free; 1.24 GiB reserved in total by PyTorch)"
    )
    assert verdict({"gpu": "GTX 950 2GB"}, error=error).cause == "true-capacity"


@pytest.mark.parametrize("tool", [
    {"slabtop": "204800 204800 100% 1.00K 12800 16 204800K kmalloc-1k"}, {"vmstat -m": "over 3 GByte"},
    {"/proc/meminfo": "Slab: 12 GB"}, {"nvidia-smi": "Driver Version: 470.57"}, {"build": "it stops at 3 GB"},
], ids=lambda tool: next(iter(tool)))  # fmt: skip
def test_a_figure_of_the_host_or_a_version_is_no_figure_of_a_gpu(tool):
    assert verdict(NVIDIA, **tool).cause in ("cannot-tell", "driver-leak")


def test_two_names_of_a_gpu_are_no_sizes():
    assert not figures_of([("environment", "gpu", "Radeon 680M/780M")])


MAINBOARD = {"gpu": "Radeon 780M", "gfx": "gfx1103"}


@pytest.mark.parametrize(("machine", "narrative", "cause"), [
    (MAINBOARD, "The game engine sizes itself by the 1024M that the firmware's default reserves.", "carveout-only"),
    (MAINBOARD, "With the firmware's graphics memory on Auto the runner puts everything on the processor and offers no layers.",
     "carveout-only"),
    (MAINBOARD, "Raising UMA in the firmware to 8 GB solved it.", "carveout-only"),
    (HALO, "The driver hands out 100 GB, but hipMalloc gets no further than 60 GB.", "hsa-pool-cap"),
    (HALO, "GTT is full and the desktop goes black.", "ttm-gtt-cap"),
    (NVIDIA, "btop shows 50 GB on a card of 24 GB.", "metric-misreport"),
    (NVIDIA, "The tray meter reads almost nothing while the job runs.", "metric-misreport"),
    (NVIDIA, "Rendering at 8k fails; at half the resolution it completes.", "true-capacity"),
    (NVIDIA, "The transcriber fails on long files. Shortened ones pass.", "true-capacity"),
    (NVIDIA, "The tables alone take 30 GB and the card has 24.", "true-capacity"),
    (NVIDIA, "A checkpoint is loaded and the step is stopped: the log has an oom-kill event.", "host-oom"),
    (NVIDIA, "Loading a 60 GB model on a machine with 32 GB of RAM ends in a crash.", "host-oom"),
])  # fmt: skip
def test_a_size_or_a_smaller_piece_of_work_is_read_in_other_words(machine, narrative, cause):
    answer = verdict(machine, narrative)
    assert (answer.cause, answer.confidence) == (cause, "weak")


@pytest.mark.parametrize("narrative", [
    "RAM and swap are not exhausted.", "It is slow at full resolution, and at half the resolution it is fine.",
    "The widget shows 0.5 GB of dedicated memory.", "The job finished on a 24 GB card, the machine has 64 GB of RAM.",
])  # fmt: skip
def test_a_size_without_a_failure_names_no_cause(narrative):
    assert verdict(NVIDIA, narrative).cause == "cannot-tell"
