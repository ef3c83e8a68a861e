"""rocm-smi in every generation of its output."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look import rocm
from helpers.look.bundle import Bundle, BundleWriter, Text
from helpers.look.reading import NOT_ALLOWED, NOT_AVAILABLE, Reading

SAMPLES = Path(__file__).parent / "samples"
OLD, NEW, APU = (
    SAMPLES / "rocm-smi-1.4-rocm-3.9",
    SAMPLES / "rocm-smi-3.0-rocm-6.3",
    SAMPLES / "rocm-smi-4.0-rocm-7.1",
)


def bundle(contents: dict[str, str | Path], **missing: tuple[str, str]) -> Bundle:
    writer = BundleWriter("test", "constructed", "0", "2026-01-01T00:00:00Z")
    for source, content in contents.items():
        writer.add("command", source, content.read_text() if isinstance(content, Path) else content)
    for source, (status, why) in missing.items():
        writer.add("command", getattr(rocm, source), None, status=status, why=why)
    return writer.bundle()


def text(words: str) -> Text:
    return Text(words, "ok", "", "rocm-smi", "item")


def test_cards_carry_their_address_name_and_pools() -> None:
    first, second = rocm.cards(
        bundle({rocm.BUS: NEW / "bus.json", rocm.MEMORY_JSON: NEW / "memory.json"})
    )
    assert (first.index, first.pci.value) == (0, "0000:0c:00.0")
    assert first.name.value == "Radeon RX 7900 XTX"
    assert second.pci.value == "0001:43:00.0"
    assert first.pools["vram used"].value == 24914165760
    assert first.pools["gtt used"].value == 0 and first.pools["gtt used"].ok
    assert second.pools["vram used"].status == NOT_AVAILABLE
    assert second.pools["gtt total"].status == "ok"


def test_text_and_json_tell_the_same_memory() -> None:
    spoken = rocm.parse_memory(text((NEW / "memory.txt").read_text()))
    coded = rocm.parse_memory(text((NEW / "memory.json").read_text()))
    assert {
        (card, pool, reading.value)
        for card, pools in spoken.items()
        for pool, reading in pools.items()
    } == {
        (card, pool, reading.value)
        for card, pools in coded.items()
        for pool, reading in pools.items()
    }


def test_the_text_form_fills_in_where_json_failed() -> None:
    found = rocm.cards(
        bundle(
            {
                rocm.MEMORY: NEW / "memory.txt",
                rocm.MEMORY_JSON: "Traceback (most recent call last):\n",
            }
        )
    )
    assert [card.pools["gtt total"].value for card in found] == [67441152000, 67441152000]
    assert found[0].pci.why == "no PCI address reported"


def test_a_partition_line_counts_for_its_card() -> None:
    found = rocm.parse_memory(text((APU / "memory_partition.txt").read_text()))
    assert found[0]["vram total"].value == 51539607552


def test_the_old_names_of_fields_are_read() -> None:
    (card,) = rocm.cards(bundle({rocm.BUS: OLD / "bus.json"}))
    assert (card.name.value, card.pci.value) == ("Vega 20", "0000:83:00.0")
    assert card.pools["vram total"].why == "not captured"


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (NEW / "pids.txt", [(71802, "python3", 24612175872), (70114, "amd-smi exporte", 0)]),
        (NEW / "pids.json", [(71802, "python3", 24612175872), (70114, "amd-smi exporte", 0)]),
        (OLD / "pids.txt", [(40211, "python3", 6442450944), (40377, "miner worker", 1048576)]),
        (OLD / "pids.json", [(40211, "python3", 6442450944), (40377, "miner", 1048576)]),
        (APU / "pids.txt", [(918221, "", None)]),
    ],
)
def test_kfd_processes_of_every_generation(
    sample: Path, expected: list[tuple[object, ...]]
) -> None:
    found, counted = rocm.parse_pids(text(sample.read_text()))
    assert [(p.pid, p.name, p.vram.value) for p in found] == expected
    assert counted.value == len(expected)


def test_an_unknown_amount_is_not_measured() -> None:
    (process,), _ = rocm.parse_pids(text((APU / "pids.txt").read_text()))
    assert process.vram.status == NOT_AVAILABLE and "UNKNOWN" in process.vram.why


@pytest.mark.parametrize(
    "words",
    [(APU / "pids_none.txt").read_text(), "--- stderr ---\nWARNING: No JSON data to report\n"],
)
def test_no_process_is_a_true_zero(words: str) -> None:
    found, counted = rocm.parse_pids(text(words))
    assert found == () and counted.value == 0


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (
            "ERROR:root:Driver not initialized (amdgpu not found in modules)\n",
            NOT_AVAILABLE,
            "Driver not initialized",
        ),
        ("ERROR: ROCm SMI returned 8 (the expected value is 0)\n", NOT_AVAILABLE, "returned 8"),
        ("Unable to open /dev/kfd: Permission denied\n", NOT_ALLOWED, "Permission denied"),
        ("", NOT_AVAILABLE, "it printed nothing"),
        ("libfoo: something new\n", NOT_AVAILABLE, "it begins: libfoo"),
    ],
)
def test_a_tool_that_failed_says_why_and_never_zero(words: str, status: str, why: str) -> None:
    (card,) = rocm.cards(bundle({rocm.BUS: '{"card0": {}}', rocm.MEMORY_JSON: words}))
    for reading in (rocm.parse_pids(text(words))[1], card.pools["vram total"]):
        assert reading.status == status and why in reading.why


def test_a_missing_tool_a_refused_one_and_none_differ() -> None:
    def count(status: str, why: str) -> Reading:
        return rocm.parse_pids(Text("", status, why, "rocm-smi --showpids", "item"))[1]

    assert count("not_available", "no such program").why == "no such program"
    assert count("not_allowed", "this user may not execute it").status == NOT_ALLOWED
    assert count("timeout", "stopped after 10 s").why == "stopped after 10 s"


def test_releases_of_rocm_trees_are_read() -> None:
    writer = BundleWriter("test", "constructed", "0", "now")
    writer.add("file", "/opt/rocm/.info/version", "6.3.2-66\n")
    writer.add("file", "/opt/rocm-6.3.2/.info/version-dev", "6.3.2-66\n")
    assert [(r.value, r.source) for r in rocm.rocm_versions(writer.bundle())] == [
        ("6.3.2-66", "/opt/rocm-6.3.2/.info/version-dev"),
        ("6.3.2-66", "/opt/rocm/.info/version"),
    ]
    assert rocm.rocm_versions(bundle({}))[0].status == NOT_AVAILABLE


def test_no_command_of_ours_can_write() -> None:
    words = {word for argv in rocm.COMMANDS if argv[0] == "rocm-smi" for word in argv[1:]}
    assert ("amd-ttm",) in rocm.COMMANDS
    assert all(word == "all" or word == "--json" or word.startswith("--show") for word in words)


PIECES = st.sampled_from(
    [
        "GPU[0]\t\t: ",
        "GPU[",
        "VRAM Total Memory (B)",
        ": ",
        "12",
        "PID",
        "\tPROCESS NAME\t",
        "GPU(s)",
        "\n",
        "=",
        "UNKNOWN",
        '{"system": ',
        '{"card0": ',
        '"PID12": "a, 1, 2"',
        "}",
        "null",
        "9" * 30,
        "\x1b[31m",
    ]
)


@settings(max_examples=80, deadline=None)
@given(st.lists(PIECES | st.text(max_size=8), max_size=40).map("".join))
def test_any_text_is_read_or_refused_with_a_reason(words: str) -> None:
    for card in rocm.cards(bundle(dict.fromkeys((rocm.BUS, rocm.MEMORY, rocm.MEMORY_JSON), words))):
        assert set(rocm.POOLS) == set(card.pools)
    found, counted = rocm.parse_pids(text(words))
    assert counted.value == len(found) if counted.ok else counted.why


def test_the_short_form_that_people_post_is_read_too() -> None:
    writer = BundleWriter("made", "constructed", "0", "")
    writer.add(
        "command",
        "rocm-smi --showmeminfo vram",
        "GPU[0]  : VRAM Total Memory (B): 536870912\nGPU[0]  : VRAM Total Used Memory (B): 1048576\n",
    )
    (card,) = rocm.cards(writer.bundle())
    assert (card.pools["vram total"].value, card.pools["vram used"].value) == (536870912, 1048576)
