"""amd-smi in its JSON generations and as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look import rocm
from helpers.look.bundle import Bundle, BundleWriter, Text
from helpers.look.reading import NOT_ALLOWED, NOT_AVAILABLE, Reading

SAMPLES = Path(__file__).parent / "samples"
ARRAY, ROOT, NEWEST = (
    SAMPLES / "amd-smi-24.6-rocm-6.2",
    SAMPLES / "amd-smi-26.2-rocm-7.2",
    SAMPLES / "amd-smi-26.5-rocm-7.14",
)
MIB = 1 << 20


def bundle(
    contents: dict[str, str | Path], missing: dict[str, tuple[str, str]] | None = None
) -> Bundle:
    writer = BundleWriter("test", "constructed", "0", "2026-01-01T00:00:00Z")
    for source, content in contents.items():
        writer.add("command", source, content.read_text() if isinstance(content, Path) else content)
    for source, (status, why) in (missing or {}).items():
        writer.add("command", source, None, status=status, why=why)
    return writer.bundle()


def array_box() -> Bundle:
    return bundle(
        {
            rocm.LIST: ARRAY / "list.json",
            rocm.STATIC: ARRAY / "static.json",
            rocm.USAGE: ARRAY / "metric.json",
            rocm.PROCESS: ARRAY / "process.json",
            rocm.VERSION: ARRAY / "version.json",
            rocm.TABLE: ARRAY / "bare.txt",
        }
    )


def root_box() -> Bundle:
    return bundle(
        {
            rocm.LIST_ALL: ROOT / "list_enumeration.json",
            rocm.STATIC: ROOT / "static.json",
            rocm.USAGE: ROOT / "metric.json",
            rocm.PROCESS: ROOT / "process.json",
        }
    )


def test_the_bare_array_is_read_behind_its_warning() -> None:
    (gpu,) = rocm.gpus(array_box())
    assert (gpu.index, gpu.pci.value, gpu.name.value, gpu.hip) == (
        0,
        "0000:2d:00.0",
        "AMD Radeon RX 6800 XT",
        "",
    )
    assert gpu.pools["vram used"].value == 15911 * MIB
    assert gpu.pools["gtt used"].why == "not measured (N/A)"


def test_the_gpu_data_root_is_read_with_its_hip_index() -> None:
    first, second = rocm.gpus(root_box())
    assert first.pci.value == "0000:e3:00.0"
    assert first.hip == "1"
    assert first.pools["vram total"].value == 46064 * MIB
    assert second.name.status == NOT_AVAILABLE
    assert second.pools["vram total"].status == NOT_AVAILABLE


def test_processes_of_both_generations_are_read() -> None:
    (hidden,) = rocm.processes(array_box())
    assert (hidden.pci, hidden.pid, hidden.name, hidden.vram.value) == (
        "0000:2d:00.0",
        118204,
        "",
        15569256448,
    )
    (named,) = rocm.processes(root_box())
    assert (named.pci, named.name) == ("0000:e3:00.0", "/usr/bin/python3.12")


NONE = '[{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}]'


def counted(words: str, status: str = "ok", why: str = "") -> Reading:
    return rocm.parse_processes(Text(words, status, why, rocm.PROCESS, "item"), {})[1]


def test_no_running_process_is_a_true_zero() -> None:
    for words in (NONE, (NEWEST / "table_none.txt").read_text()):
        assert rocm.processes(bundle({rocm.PROCESS: words})) == () and counted(words).value == 0


def test_none_seen_by_a_user_without_the_groups_is_no_zero() -> None:
    warning = "WARNING: User is missing the following required groups: render. Please add user to these groups.\n"
    refused = counted(warning + NONE)
    assert refused.status == NOT_ALLOWED and "required groups: render" in refused.why


def test_the_table_is_read_where_there_is_no_json() -> None:
    box = bundle({rocm.TABLE: ROOT / "table.txt"})
    first, second = rocm.gpus(box)
    assert (first.pci.value, first.name.value, first.hip) == (
        "0000:e3:00.0",
        "...PRO W7900 Dual Slot",
        "1",
    )
    assert second.pci.value == "0000:03:00.0"
    assert [(p.pid, p.name, p.vram.show(), p.pci) for p in rocm.processes(box)] == [
        (5512, "python3.12", "44.30 GiB", "0000:e3:00.0"),
        (5630, "tensor board", "12.00 KiB", "0000:e3:00.0"),
    ]


def test_the_newest_table_with_its_sdma_column_is_read() -> None:
    box = bundle({rocm.TABLE: NEWEST / "table_apu.txt"})
    (gpu,) = rocm.gpus(box)
    assert (gpu.pci.value, gpu.name.value) == ("0000:c6:00.0", "Radeon 8060S Graphics")
    assert [(p.pid, p.name, p.vram.show()) for p in rocm.processes(box)] == [
        (3391, "llama-server", "220.00 MiB"),
        (3502, "", "0 B"),
    ]


def test_the_rocm_release_that_it_names() -> None:
    assert rocm.amd_smi_rocm(array_box()).value == "6.2.4"
    assert rocm.amd_smi_rocm(bundle({rocm.VERSION: NEWEST / "version.json"})).value == "7.14.0"
    assert (
        rocm.amd_smi_rocm(bundle({rocm.VERSION: '{"driver_version": "6.16.9"}'})).status
        == NOT_AVAILABLE
    )


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (
            "--- stderr ---\nERROR: Drivers not loaded (amdgpu and amd_hsmp drivers not found in modules)\n",
            NOT_AVAILABLE,
            "not loaded",
        ),
        (
            "Failed to import the amdsmi Python library. Ensure it is installed in Python.\n",
            NOT_AVAILABLE,
            "Failed to import",
        ),
        ("--- stderr ---\nKeyError: 'librocm.so'\n", NOT_AVAILABLE, "librocm.so"),
        (
            "WARNING: User is missing the following required groups: render, video. Please add user to these groups.\n",
            NOT_ALLOWED,
            "missing the following",
        ),
        (
            "--- stderr ---\nAmdSmiLibraryException: AMDSMI_STATUS_NO_PERM - Permission Denied\n",
            NOT_ALLOWED,
            "NO_PERM",
        ),
        (
            "--- stderr ---\namdsmi_init() timed out after 60s. The GPU driver may be unresponsive.\n",
            NOT_AVAILABLE,
            "timed out",
        ),
        ("", NOT_AVAILABLE, "it printed nothing"),
    ],
)
def test_a_tool_that_failed_says_why_and_never_zero(words: str, status: str, why: str) -> None:
    box = bundle({rocm.LIST: words, rocm.PROCESS: words, rocm.USAGE: words, rocm.VERSION: words})
    for reading in (rocm.amd_smi_rocm(box), counted(words)):
        assert reading.status == status and why in reading.why
    assert rocm.gpus(box) == () and rocm.processes(box) == ()


def test_a_missing_tool_and_a_refused_one_differ() -> None:
    assert counted("", "not_available", "no such program").why == "no such program"
    assert counted("", "not_allowed", "not executable").status == NOT_ALLOWED
    assert rocm.amd_smi_rocm(bundle({})).why == "not captured"


def test_no_command_of_ours_can_write() -> None:
    ours = [argv for argv in rocm.COMMANDS if argv[0] == "amd-smi"]
    assert {argv[1] for argv in ours if len(argv) > 1} == {
        "version",
        "list",
        "static",
        "metric",
        "process",
        "node",
    }
    assert not {"set", "reset"} & {word for argv in ours for word in argv}


KEYS = st.sampled_from(
    [
        "gpu",
        "gpu_data",
        "bdf",
        "mem_usage",
        "total_vram",
        "value",
        "unit",
        "process_list",
        "process_info",
        "pid",
        "memory_usage",
        "vram_mem",
        "node",
        "gtt",
        "size_pages",
        "asic",
        "name",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=14,
)
CELLS = st.sampled_from(
    ["|", " 0 ", "0000:03:00.0", "N/A", "1/2 MB", "1.0 GB", "\n", "python", " "]
)


@settings(max_examples=80, deadline=None)
@given(JSON)
def test_any_json_is_read_or_refused_with_a_reason(value: object) -> None:
    box = bundle(
        {
            source: json.dumps(value)
            for source in (rocm.LIST, rocm.STATIC, rocm.USAGE, rocm.PROCESS, rocm.VERSION)
        }
    )
    for gpu in rocm.gpus(box):
        assert set(rocm.POOLS) == set(gpu.pools)
    assert counted(json.dumps(value)).ok or counted(json.dumps(value)).why
    assert rocm.amd_smi_rocm(box).unit == "text"


@settings(max_examples=60, deadline=None)
@given(st.lists(CELLS, max_size=60).map("".join))
def test_any_table_is_read_or_refused_with_a_reason(words: str) -> None:
    box = bundle({rocm.TABLE: words})
    assert counted(words).ok == bool(rocm.processes(box)) or counted(words).value == 0
    assert all(gpu.pci.ok for gpu in rocm.gpus(box))
