"""amd-smi in its JSON generations and as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look import amd_smi
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.reading import NOT_ALLOWED, NOT_AVAILABLE

SAMPLES = Path(__file__).parent / "samples"
ARRAY, ROOT, NEWEST = SAMPLES / "amd-smi-24.6-rocm-6.2", SAMPLES / "amd-smi-26.2-rocm-7.2", SAMPLES / "amd-smi-26.5-rocm-7.14"
MIB = 1 << 20


def bundle(contents: dict[str, str | Path], missing: dict[str, tuple[str, str]] | None = None) -> Bundle:
    writer = BundleWriter("test", "constructed", "0", "2026-01-01T00:00:00Z")
    for source, content in contents.items():
        writer.add("command", source, content.read_text() if isinstance(content, Path) else content)
    for source, (status, why) in (missing or {}).items():
        writer.add("command", source, None, status=status, why=why)
    return writer.bundle()


def array_box() -> Bundle:
    return bundle({amd_smi.LIST: ARRAY / "list.json", amd_smi.STATIC: ARRAY / "static.json",
                   amd_smi.MEMORY: ARRAY / "metric.json", amd_smi.PROCESS: ARRAY / "process.json",
                   amd_smi.VERSION: ARRAY / "version.json",
                   amd_smi.TABLE: ARRAY / "bare.txt",
                   amd_smi.NODE: "--- stderr ---\namd-smi: error: argument : invalid choice: 'node'\n"})


def root_box() -> Bundle:
    return bundle({amd_smi.LIST_ALL: ROOT / "list_enumeration.json", amd_smi.STATIC: ROOT / "static.json",
                   amd_smi.MEMORY: ROOT / "metric.json", amd_smi.PROCESS: ROOT / "process.json"})


def test_the_bare_array_is_read_behind_its_warning() -> None:
    (gpu,) = amd_smi.gpus(array_box())
    assert (gpu.index, gpu.pci.value, gpu.name.value, gpu.gfx.value) == (0, "0000:2d:00.0", "AMD Radeon RX 6800 XT", "gfx1030")
    assert (gpu.driver.value, gpu.vram_type.value, gpu.indices) == ("6.8.5", "GDDR6", {})
    assert gpu.pools["vram used"].value == 15911 * MIB
    assert gpu.pools["visible_vram used"].value == 0
    assert gpu.pools["gtt used"].why == "not measured (N/A)"
    assert amd_smi.missing_groups(array_box()).value == "render"
    assert amd_smi.gpu_count(array_box()).value == 1


def test_the_gpu_data_root_is_read_with_every_index_space() -> None:
    first, second = amd_smi.gpus(root_box())
    assert first.pci.value == "0000:e3:00.0"
    assert first.indices == {"hip": "1", "hsa": "2", "card": "card2", "render": "renderD129", "kfd node": "2"}
    assert first.kfd_id.value == 31877
    assert first.pools["vram total"].value == 46064 * MIB
    assert (second.name.status, second.vram_type.status) == (NOT_AVAILABLE, NOT_AVAILABLE)
    assert second.pools["vram total"].status == NOT_AVAILABLE
    assert amd_smi.missing_groups(root_box()).status == NOT_AVAILABLE


def test_processes_of_both_generations_are_read() -> None:
    (hidden,) = amd_smi.processes(array_box())
    assert (hidden.pci, hidden.pid, hidden.name, hidden.vram.value) == ("0000:2d:00.0", 118204, "", 15569256448)
    assert hidden.total.value == 0 and hidden.total.ok
    (named,) = amd_smi.processes(root_box())
    assert (named.pci, named.gpu, named.name, named.gtt.value) == ("0000:e3:00.0", 0, "/usr/bin/python3.12", 8126464)
    assert amd_smi.process_count(root_box()).value == 1


def test_no_running_process_is_a_true_zero() -> None:
    box = bundle({amd_smi.PROCESS: '[{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}]'})
    assert amd_smi.processes(box) == () and amd_smi.process_count(box).value == 0
    table = bundle({amd_smi.TABLE: NEWEST / "table_none.txt"})
    assert amd_smi.processes(table) == () and amd_smi.process_count(table).value == 0


def test_none_seen_by_a_user_without_the_groups_is_no_zero() -> None:
    warning = "WARNING: User is missing the following required groups: render. Please add user to these groups.\n"
    none = '[{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}]'
    counted = amd_smi.process_count(bundle({amd_smi.PROCESS: warning + none}))
    assert counted.status == NOT_ALLOWED and "required groups: render" in counted.why


def test_the_table_is_read_where_there_is_no_json() -> None:
    box = bundle({amd_smi.TABLE: ROOT / "table.txt"})
    first, second = amd_smi.gpus(box)
    assert (first.pci.value, first.name.value, first.indices) == ("0000:e3:00.0", "...PRO W7900 Dual Slot", {"hip": "1"})
    assert (first.pools["table used"].value, first.pools["table total"].value) == (45710 * MIB, 46064 * MIB)
    assert second.pools["table used"].status == NOT_AVAILABLE and second.pci.value == "0000:03:00.0"
    assert [(p.pid, p.name, p.vram.show(), p.pci) for p in amd_smi.processes(box)] \
        == [(5512, "python3.12", "44.30 GiB", "0000:e3:00.0"), (5630, "tensor board", "12.00 KiB", "0000:e3:00.0")]


def test_the_newest_table_with_its_sdma_column_is_read() -> None:
    box = bundle({amd_smi.TABLE: NEWEST / "table_apu.txt"})
    (gpu,) = amd_smi.gpus(box)
    assert (gpu.pci.value, gpu.name.value) == ("0000:c6:00.0", "Radeon 8060S Graphics")
    assert gpu.pools["table total"].value == 98304 * MIB
    assert [(p.pid, p.name, p.gtt.show(), p.vram.show()) for p in amd_smi.processes(box)] \
        == [(3391, "llama-server", "59.60 GiB", "220.00 MiB"), (3502, "", "1.10 GiB", "0 B")]


def test_versions_of_both_spellings() -> None:
    old = amd_smi.versions(array_box())
    assert (old.tool.value, old.library.value) == ("24.6.3+9578815", "24.6.3.0")
    assert (old.rocm.value, old.driver.value) == ("6.2.4", "6.8.5")
    new = amd_smi.versions(bundle({amd_smi.VERSION: NEWEST / "version.json"}))
    assert (new.rocm.value, new.driver.status) == ("7.14.0", NOT_AVAILABLE)
    renamed = amd_smi.versions(bundle({amd_smi.VERSION: '{"driver_version": "6.16.9"}'}))
    assert renamed.driver.value == "6.16.9"


def test_the_gtt_limit_shows_what_is_pending() -> None:
    limit = amd_smi.gtt_limit(bundle({amd_smi.NODE: NEWEST / "node.json"}))
    assert (limit.pages.value, limit.pages.unit, limit.pending_pages.value) == (16226713, "pages", 25165824)
    settled = amd_smi.gtt_limit(bundle({amd_smi.NODE: '[{"node": {"gtt": {"size_gb": 61.9, "size_pages": 16226713}}}]'}))
    assert settled.pending_pages.why == "nothing is pending"
    assert "invalid choice" in amd_smi.gtt_limit(array_box()).pages.why


@pytest.mark.parametrize(("words", "status", "why"), [
    ("--- stderr ---\nERROR: Drivers not loaded (amdgpu and amd_hsmp drivers not found in modules)\n", NOT_AVAILABLE,
     "not loaded"),
    ("Failed to import the amdsmi Python library. Ensure it is installed in Python.\n", NOT_AVAILABLE, "Failed to import"),
    ("--- stderr ---\nKeyError: 'libamd_smi.so'\n", NOT_AVAILABLE, "libamd_smi.so"),
    ("WARNING: User is missing the following required groups: render, video. Please add user to these groups.\n", NOT_ALLOWED,
     "missing the following"),
    ("--- stderr ---\nAmdSmiLibraryException: AMDSMI_STATUS_NO_PERM - Permission Denied\n", NOT_ALLOWED, "NO_PERM"),
    ("--- stderr ---\namdsmi_init() timed out after 60s. The GPU driver may be unresponsive.\n", NOT_AVAILABLE, "timed out"),
    ("", NOT_AVAILABLE, "it printed nothing"),
])
def test_a_tool_that_failed_says_why_and_never_zero(words: str, status: str, why: str) -> None:
    box = bundle({amd_smi.LIST: words, amd_smi.PROCESS: words, amd_smi.MEMORY: words})
    for reading in (amd_smi.gpu_count(box), amd_smi.process_count(box)):
        assert reading.status == status and why in reading.why
    assert amd_smi.gpus(box) == () and amd_smi.processes(box) == ()


def test_a_missing_tool_and_a_refused_one_differ() -> None:
    box = bundle({}, {amd_smi.LIST: ("not_available", "no such program"), amd_smi.PROCESS: ("not_allowed", "not executable")})
    assert amd_smi.gpu_count(box).why == "no such program"
    assert amd_smi.process_count(box).status == NOT_ALLOWED
    assert amd_smi.versions(box).tool.why == "not captured"


def test_no_command_of_ours_can_write() -> None:
    assert {argv[1] for argv in amd_smi.COMMANDS if len(argv) > 1} == {"version", "list", "static", "metric", "process", "node"}
    assert not {"set", "reset"} & {word for argv in amd_smi.COMMANDS for word in argv}


KEYS = st.sampled_from(["gpu", "gpu_data", "bdf", "mem_usage", "total_vram", "value", "unit", "process_list", "process_info",
                        "pid", "memory_usage", "vram_mem", "node", "gtt", "size_pages", "asic", "name"])
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=6),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=14)
CELLS = st.sampled_from(["|", " 0 ", "0000:03:00.0", "N/A", "1/2 MB", "1.0 GB", "\n", "python", " "])


@settings(max_examples=80, deadline=None)
@given(JSON)
def test_any_json_is_read_or_refused_with_a_reason(value: object) -> None:
    box = bundle({source: json.dumps(value) for source in (amd_smi.LIST, amd_smi.STATIC, amd_smi.MEMORY, amd_smi.PROCESS,
                                                           amd_smi.NODE, amd_smi.VERSION)})
    for gpu in amd_smi.gpus(box):
        assert set(amd_smi.POOLS) <= set(gpu.pools)
    assert amd_smi.process_count(box).ok or amd_smi.process_count(box).why
    assert amd_smi.gtt_limit(box).pages.unit == "pages"
    assert amd_smi.versions(box).tool.unit == "text"


@settings(max_examples=60, deadline=None)
@given(st.lists(CELLS, max_size=60).map("".join))
def test_any_table_is_read_or_refused_with_a_reason(words: str) -> None:
    box = bundle({amd_smi.TABLE: words})
    assert amd_smi.process_count(box).ok == bool(amd_smi.processes(box)) or amd_smi.process_count(box).value == 0
    assert all(gpu.pci.ok for gpu in amd_smi.gpus(box))
