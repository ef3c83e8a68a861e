"""rocminfo: agents, pools, and every way in which it is kept out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look import rocminfo
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.reading import NOT_ALLOWED, NOT_AVAILABLE

SAMPLES = Path(__file__).parent / "samples"
DISCRETE, APU = SAMPLES / "rocminfo-1.0-rocm-6.4", SAMPLES / "rocminfo-1.0-rocm-7.1-apu"
KIB = 1 << 10


def bundle(content: str | Path) -> Bundle:
    writer = BundleWriter("test", "constructed", "0", "2026-01-01T00:00:00Z")
    writer.add("command", "rocminfo", content.read_text() if isinstance(content, Path) else content)
    return writer.bundle()


def test_discrete_gpus_carry_address_chip_and_pools() -> None:
    cpu, first, second = rocminfo.agents(bundle(DISCRETE / "two_gpus.txt"))
    assert (cpu.kind, cpu.memory.value, cpu.integrated) == ("cpu", 131776420 * KIB, None)
    assert (first.kind, first.name.value, first.pci.value, first.integrated) == (
        "gpu",
        "gfx1100",
        "0000:0c:00.0",
        False,
    )
    assert (first.marketing_name.value, first.memory.value) == (
        "Radeon RX 7900 XTX",
        25149440 * KIB,
    )
    assert second.pci.value == "0000:83:02.1"
    assert rocminfo.agent_count(bundle(DISCRETE / "two_gpus.txt")).value == 2


def test_an_apu_is_integrated_and_its_npu_is_no_gpu() -> None:
    box = bundle(APU / "apu_with_npu.txt")
    _, gpu, npu = rocminfo.agents(box)
    assert (gpu.integrated, gpu.memory.value, gpu.pci.value) == (
        True,
        49020928 * KIB,
        "0000:c3:00.0",
    )
    assert (npu.kind, npu.name.value, npu.integrated, npu.pci.status) == (
        "npu",
        "aie2p",
        None,
        NOT_AVAILABLE,
    )
    assert rocminfo.agent_count(box).value == 1


def test_a_gpu_under_wsl_has_no_address() -> None:
    gpu = rocminfo.agents(bundle(DISCRETE / "wsl.txt"))[1]
    assert (gpu.name.value, gpu.memory.value, gpu.pci.status) == (
        "gfx1101",
        16686504 * KIB,
        NOT_AVAILABLE,
    )
    assert gpu.integrated is None


@pytest.mark.parametrize(
    ("sample", "status", "says"),
    [
        (
            "kfd_refused.txt",
            NOT_ALLOWED,
            ("Permission denied", 'mira is not member of "render" group'),
        ),
        (
            "kfd_refused_to_member.txt",
            NOT_ALLOWED,
            ("Permission denied", "mira is member of render group"),
        ),
        ("kfd_missing.txt", NOT_AVAILABLE, ("No such file or directory",)),
        ("no_module.txt", NOT_AVAILABLE, ("ROCk module is NOT loaded",)),
        ("hsa_failure.txt", NOT_AVAILABLE, ("HSA_STATUS_ERROR_OUT_OF_RESOURCES",)),
    ],
)
def test_why_it_was_kept_out_is_quoted(sample: str, status: str, says: tuple[str, ...]) -> None:
    box = bundle(DISCRETE / sample)
    assert rocminfo.agents(box) == ()
    reading = rocminfo.agent_count(box)
    assert reading.status == status
    assert all(words in reading.why for words in says) and "\x1b" not in reading.why


def test_only_a_cpu_agent_is_a_true_zero_of_gpus() -> None:
    words = (DISCRETE / "two_gpus.txt").read_text().split("Agent 2")[0]
    assert rocminfo.agent_count(bundle(words)).value == 0


def test_a_missing_tool_is_no_zero() -> None:
    writer = BundleWriter("test", "constructed", "0", "now")
    writer.add("command", "rocminfo", None, status="not_available", why="no such program")
    assert rocminfo.agent_count(writer.bundle()).why == "no such program"


def test_filtered_lines_still_give_the_pools() -> None:
    words = "Pool Info:\n  Pool 1\n    Size: 98042112(0x5d80100) KB\nPool Info:\n  Pool 1\n    Size: 49020928(0x2ec0000) KB\n"
    first, second = rocminfo.agents(bundle(words))
    assert (first.memory.value, second.memory.value) == (98042112 * KIB, 49020928 * KIB)
    assert (first.kind, first.name.status) == ("", NOT_AVAILABLE)


def test_an_output_that_was_cut_keeps_what_is_there() -> None:
    words = (DISCRETE / "two_gpus.txt").read_text()
    for at in range(0, len(words), 997):
        found = rocminfo.agents(bundle(words[:at]))
        assert len(found) <= 3 and all(agent.name.ok or agent.name.why for agent in found)


LINES = st.sampled_from(
    [
        "Agent 1",
        "Agent 2",
        "  Name: gfx1100",
        "  Device Type: GPU",
        "  Pool Info:",
        "    Pool 1",
        "  BDFID: 99999999",
        "      Size: 12(0xc) KB",
        "      Size: x KB",
        "  ISA Info:",
        "      Segment: GLOBAL; FLAGS: COARSE GRAINED",
        "  Memory Properties: APU",
        "ROCk module is loaded",
        "  BDFID: 768",
        "  Node: -1",
        "  Uuid:",
    ]
)


@settings(max_examples=80, deadline=None)
@given(st.lists(LINES | st.text(max_size=12), max_size=30).map("\n".join))
def test_any_text_is_read_or_refused_with_a_reason(words: str) -> None:
    box = bundle(words)
    for agent in rocminfo.agents(box):
        assert agent.memory.unit == "bytes" and agent.pci.unit == "text"
    assert rocminfo.agent_count(box).ok or rocminfo.agent_count(box).why
