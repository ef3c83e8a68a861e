"""nvidia-smi, NVML and the kernel driver's own list, in every generation; hostile XML; NVML against a library of our making."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look import nvidia, nvml
from helpers.look.bundle import Bundle, BundleWriter, Text
from helpers.look.reading import NOT_ALLOWED, NOT_AVAILABLE

SAMPLES = Path(__file__).parent / "samples"
R460, R535, R580 = (
    SAMPLES / "nvidia-smi-460",
    SAMPLES / "nvidia-smi-535-mig",
    SAMPLES / "nvidia-smi-580",
)
MIB = 1 << 20


def bundle(
    contents: dict[str, str | Path], missing: dict[str, tuple[str, str]] | None = None
) -> Bundle:
    writer = BundleWriter("test", "constructed", "0", "2026-01-01T00:00:00Z")
    for source, content in contents.items():
        writer.add(
            "file" if source.startswith("/") else "command",
            source,
            content.read_text() if isinstance(content, Path) else content,
        )
    for source, (status, why) in (missing or {}).items():
        writer.add("command", source, None, status=status, why=why)
    return writer.bundle()


def text(words: str, source: str = "nvidia-smi -q -x") -> Text:
    return Text(words, "ok", "", source, "item")


def test_a_driver_without_reserved_memory_is_read() -> None:
    box = bundle({nvidia.XML: R460 / "query.xml"})
    first, second = nvidia.gpus(box)
    assert (first.pci, first.index.value, first.name.value) == (
        "0000:65:00.0",
        0,
        "Tesla V100-PCIE-16GB",
    )
    assert (first.total.value, first.used.value, first.free.value) == (
        16160 * MIB,
        15877 * MIB,
        283 * MIB,
    )
    assert first.reserved.status == NOT_AVAILABLE and first.reserved.why == "no such field"
    assert first.cuda.value == "11.2" and second.used.value == 0 and second.used.ok
    assert [(h.pci, h.pid, h.memory.value) for h in nvidia.holders(box)] == [
        ("0000:65:00.0", 20411, 15869 * MIB)
    ]


def test_a_newer_driver_is_read_between_its_warnings() -> None:
    box = bundle({nvidia.XML: R580 / "query.xml"})
    (gpu,) = nvidia.gpus(box)
    assert (gpu.pci, gpu.reserved.value, gpu.used.value) == ("0000:21:00.0", 419 * MIB, 19308 * MIB)
    assert nvidia.holder_count(box).value == 5
    kinds = {h.pid: (h.name, h.memory.value, h.memory.status) for h in nvidia.holders(box)}
    assert kinds[1840] == ("/usr/lib/xorg/Xorg", 118 * MIB, "ok")
    assert kinds[7733] == ('/opt/app/viewer --scene "a, b"', 402 * MIB, "ok")
    assert kinds[9021] == ("worker", None, NOT_AVAILABLE)
    assert kinds[9022] == ("", None, NOT_ALLOWED)


def test_a_holder_in_a_mig_slice_and_what_the_whole_gpu_may_not_tell() -> None:
    box = bundle({nvidia.XML: R535 / "query.xml"})
    (gpu,) = nvidia.gpus(box)
    assert gpu.total.value == 24576 * MIB
    assert gpu.used.status == gpu.free.status == NOT_ALLOWED
    (holder,) = nvidia.holders(box)
    assert (holder.gpu_instance, holder.memory.value) == ("3", 5180 * MIB)


def test_csv_fills_in_what_xml_has_not() -> None:
    box = bundle({nvidia.XML: R580 / "query.xml", nvidia.GPU_CSV: R580 / "query_gpu.csv"})
    first, second = nvidia.gpus(box)
    assert first.used.source == nvidia.XML
    assert (second.pci, second.name.value, second.index.value) == ("000f:01:00.0", "NVIDIA GB10", 1)
    assert second.total.why == second.used.why == "not measured (N/A)"


def test_names_with_commas_and_refusals_in_csv() -> None:
    found = nvidia.holders(bundle({nvidia.APPS_CSV: R580 / "query_apps.csv"}))
    assert [(h.pid, h.name, h.memory.value, h.memory.status) for h in found] == [
        (9020, "python3", 18760 * MIB, "ok"),
        (9044, "/opt/run me, now/tool --a=1, b", 12 * MIB, "ok"),
        (9050, "[Not Found]", None, NOT_AVAILABLE),
        (9051, "[Insufficient Permissions]", None, NOT_ALLOWED),
    ]
    assert {h.pci for h in found} == {"0000:21:00.0"}


def test_csv_without_header_takes_its_fields_from_the_command() -> None:
    source = (
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits"
    )
    listing = nvidia.parse_apps_csv(text((R580 / "query_apps_nounits.csv").read_text(), source))
    assert [(h.pid, h.name, h.memory.value) for h in listing.holders] == [
        (9020, "python3", 18760 * MIB)
    ]
    assert nvidia.parse_apps_csv(text("", source)).processes_told
    assert not nvidia.parse_apps_csv(text("No devices were found\n", source)).processes_told


def test_an_empty_process_table_is_a_true_zero() -> None:
    assert nvidia.holder_count(bundle({nvidia.APPS_CSV: R580 / "query_apps_none.csv"})).value == 0
    words = (R460 / "query.xml").read_text()
    cut = words[: words.index("\t\t\t<process_info>")] + words[words.index("\t\t</processes>") :]
    assert nvidia.holder_count(bundle({nvidia.XML: cut})).value == 0


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
            "installed and running.\n",
            NOT_AVAILABLE,
            "couldn't communicate",
        ),
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.57\n",
            NOT_AVAILABLE,
            "version mismatch; NVML library version: 575.57",
        ),
        (
            "Failed to initialize NVML: Insufficient Permissions\n",
            NOT_ALLOWED,
            "Insufficient Permissions",
        ),
        (
            "Failed to initialize NVML: GPU access blocked by the operating system\n",
            NOT_AVAILABLE,
            "blocked by the operating",
        ),
        ("No devices were found\n", NOT_AVAILABLE, "No devices were found"),
        (
            "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n",
            NOT_AVAILABLE,
            "Unknown Error",
        ),
        (
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n",
            NOT_AVAILABLE,
            "libnvidia-ml.so",
        ),
        ("", NOT_AVAILABLE, "it printed nothing"),
    ],
)
def test_a_tool_that_failed_says_why_and_never_zero(words: str, status: str, why: str) -> None:
    box = bundle({nvidia.XML: words})
    reading = nvidia.holder_count(box)
    assert reading.status == status and why in reading.why
    assert nvidia.gpus(box) == () and nvidia.holders(box) == ()


def test_a_query_that_an_old_driver_refuses_leaves_the_xml() -> None:
    box = bundle(
        {
            nvidia.XML: R460 / "query.xml",
            nvidia.GPU_CSV: 'Field "memory.reserved" is not a valid field to query.\n',
        }
    )
    assert len(nvidia.gpus(box)) == 2


def test_a_missing_tool_and_a_refused_one_differ() -> None:
    missing = bundle({}, {nvidia.XML: ("not_available", "no such program")})
    refused = bundle({}, {nvidia.XML: ("not_allowed", "this user may not execute it")})
    assert nvidia.holder_count(missing).why == "no such program"
    assert nvidia.holder_count(refused).status == NOT_ALLOWED


@pytest.mark.parametrize(
    "words",
    [
        '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nvidia_smi_log><gpu id="0:01:00.0">&b;</gpu>'
        "</nvidia_smi_log>",
        '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [ <!ELEMENT gpu ANY> ]><nvidia_smi_log><gpu id="00000000:01:00.0"/>'
        "</nvidia_smi_log>",
        '<!doctype x SYSTEM "http://example.invalid/x.dtd" [<!entity % p SYSTEM "file:///etc/passwd"> %p;]><nvidia_smi_log>'
        '<gpu id="00000000:01:00.0"/></nvidia_smi_log>',
    ],
)
def test_xml_that_declares_entities_is_refused_unparsed(words: str) -> None:
    assert nvidia.parse_xml(text(words)) == nvidia.Listing((), (), False, text(words))


def test_deep_and_wide_xml_is_read_without_harm() -> None:
    deep = (
        "<nvidia_smi_log>"
        + "<a>" * 50_000
        + "</a>" * 50_000
        + '<gpu id="00000000:01:00.0"/></nvidia_smi_log>'
    )
    assert [gpu.pci for gpu in nvidia.parse_xml(text(deep)).gpus] == ["0000:01:00.0"]


def test_of_cut_xml_the_whole_gpus_stand() -> None:
    words = (R460 / "query.xml").read_text()
    end_of_first = words.index("</gpu>") + len("</gpu>")
    assert [gpu.pci for gpu in nvidia.parse_xml(text(words[: end_of_first + 200])).gpus] == [
        "0000:65:00.0"
    ]
    for at in range(0, len(words), 331):
        assert len(nvidia.parse_xml(text(words[:at])).gpus) == (at >= end_of_first) + (
            at >= words.rindex("</gpu>") + 6
        )


def test_the_nvml_table_is_read_in_bytes() -> None:
    box = bundle({nvidia.TABLE: R580 / "nvml.jsonl"})
    first, second = nvidia.gpus(box)
    assert (first.total.value, first.reserved.value, first.cuda.value) == (
        21470117888,
        439353344,
        "13.0",
    )
    assert second.total.why == "nvmlDeviceGetMemoryInfo_v2: Not Supported"
    assert second.used.status == NOT_ALLOWED and second.free.status == NOT_AVAILABLE
    assert {(h.pci, h.pid, h.memory.value) for h in nvidia.holders(box)} == {
        ("0000:21:00.0", 9020, 19671285760),
        ("0000:21:00.0", 9021, None),
        ("000f:01:00.0", 44, 1048576),
        ("000f:01:00.0", 45, 2097152),
    }
    assert nvidia.holder_count(box).source == "nvml"


def test_the_kernel_drivers_list_stands_where_nvidia_smi_fails() -> None:
    box = bundle(
        {
            nvidia.XML: "Failed to initialize NVML: Driver/library version mismatch\n",
            nvidia.TABLE: '{"status": "not_available", "why": "nvmlInit_v2: Driver/library version mismatch"}\n',
            "/proc/driver/nvidia/gpus/0000:21:00.0/information": R580 / "information.txt",
            "/proc/driver/nvidia/gpus/0000:65:00.0/information": R460 / "information_refused.txt",
        }
    )
    first, second = nvidia.gpus(box)
    assert (first.pci, first.name.value) == ("0000:21:00.0", "NVIDIA RTX 4000 SFF Ada Generation")
    assert second.pci == "0000:65:00.0"
    assert "version mismatch" in first.total.why and first.total.status == NOT_AVAILABLE
    assert "nvmlInit_v2" in nvidia.holder_count(box).why


@pytest.mark.parametrize(("folder", "release"), [(R580, "580.95.05 (open)"), (R460, "460.106.00")])
def test_the_loaded_driver_and_its_kind(folder: Path, release: str) -> None:
    assert nvidia.driver(bundle({nvidia.VERSION: folder / "proc_version.txt"})).value == release


def test_the_toolkit_is_found_by_file_or_by_its_compiler() -> None:
    assert (
        nvidia.toolkit(
            bundle({nvidia.TOOLKIT: '{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}'})
        ).value
        == "12.8.1"
    )
    said = (
        "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.4, V12.4.131\n"
    )
    assert nvidia.toolkit(bundle({nvidia.NVCC: said})).value == "12.4.131"
    assert (
        nvidia.toolkit(bundle({}, {nvidia.NVCC: ("not_available", "no such program")})).why
        == "no such program"
    )
    assert nvidia.driver(bundle({})).why == "not captured"


PIECES = st.sampled_from(
    [
        "<nvidia_smi_log>",
        "</nvidia_smi_log>",
        '<gpu id="00000000:01:00.0">',
        "</gpu>",
        "<fb_memory_usage>",
        "</fb_memory_usage>",
        "<total>1 MiB</total>",
        "<processes>",
        "</processes>",
        "<pid>1</pid>",
        "&amp;",
        "&x;",
        "<process_info>",
        "</process_info>",
        "pid, process_name, used_gpu_memory [MiB]\n",
        "1, a, b, 2 MiB\n",
        "index, pci.bus_id, name\n",
        "0, 0:01:00.0, x\n",
        "\x00",
        "<!--",
        "<![CDATA[",
    ]
)


@settings(max_examples=80, deadline=None)
@given(st.lists(PIECES | st.text(max_size=6), max_size=25).map("".join))
def test_any_text_is_read_or_refused_with_a_reason(words: str) -> None:
    box = bundle(
        {
            source: words
            for source in (
                nvidia.XML,
                nvidia.GPU_CSV,
                nvidia.APPS_CSV,
                nvidia.TABLE,
                nvidia.VERSION,
            )
        }
    )
    for gpu in nvidia.gpus(box):
        assert gpu.pci and gpu.total.unit == "bytes"
    assert nvidia.holder_count(box).ok or nvidia.holder_count(box).why
    assert nvidia.holder_count(box).ok or nvidia.holders(box) == ()


ROW = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "pci",
                    "total_bytes",
                    "unread",
                    "status",
                    "why",
                    "compute",
                    "graphics",
                    "pid",
                    "used_bytes",
                    "index",
                ]
            ),
            inner | st.just("00000000:01:00.0"),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(ROW)
def test_any_nvml_row_is_read_or_refused(row: object) -> None:
    box = bundle({nvidia.TABLE: json.dumps(row) + "\n"})
    for gpu in nvidia.gpus(box):
        assert gpu.total.ok or gpu.total.why
    assert nvidia.holder_count(box).ok or nvidia.holder_count(box).why


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nvml.Memory, "c_nvmlMemory_t"),
        (nvml.MemoryV2, "c_nvmlMemory_v2_t"),
        (nvml.Pci, "nvmlPciInfo_t"),
        (nvml.ProcessV2, "c_nvmlProcessInfo_v2_t"),
        (nvml.ProcessV2, "c_nvmlProcessInfo_v3_t"),
    ],
)
def test_structures_are_those_of_nvidias_own_package(
    ours: type[ctypes.Structure], theirs: str
) -> None:
    pynvml = pytest.importorskip("pynvml")
    other = getattr(pynvml, theirs)
    assert [
        (field[0], getattr(ours, field[0]).offset, getattr(ours, field[0]).size)
        for field in ours._fields_
    ] == [
        (field[0], getattr(other, field[0]).offset, getattr(other, field[0]).size)
        for field in other._fields_
    ]


def test_error_numbers_are_those_of_nvidias_own_package() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert (nvml.NO_PERMISSION, nvml.INSUFFICIENT_SIZE, nvml.FUNCTION_NOT_FOUND) == (
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    )
    assert ctypes.sizeof(nvml.MemoryV2) | 2 << 24 == pynvml.nvmlMemory_v2


LIBRARY = r"""
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
typedef unsigned long long u64;
static int mode(const char *word) { const char *m = getenv("FAKE_NVML"); return m && strstr(m, word) != NULL; }
const char *nvmlErrorString(int code) {
  return code == 3 ? "Not Supported" : code == 4 ? "Insufficient Permissions" : code == 18 ? "Driver/library version mismatch"
       : "Unknown Error"; }
int nvmlInit_v2(void) { if (mode("hang")) sleep(60); if (mode("crash")) abort(); return mode("mismatch") ? 18 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = mode("none") ? 0 : 2; return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "580.95.05"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  if (mode("lost") && i) return 15;
  *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUUID(void *h, char *out, unsigned n) { snprintf(out, n, "GPU-%ld", (long)h); return 0; }
int nvmlDeviceGetName(void *h, char *out, unsigned n) { snprintf(out, n, "Card %ld", (long)h); return 0; }
struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *p) {
  snprintf(p->bus_id, 32, "00000000:%02lX:00.0", 0xA0 + (long)h); return 0; }
#ifdef OLD
struct memory { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(void *h, struct memory *m) { m->total = 100; m->free = 30; m->used = 70; return 0; }
struct process { unsigned pid; u64 used; };
#define COMPUTE nvmlDeviceGetComputeRunningProcesses
#define GRAPHICS nvmlDeviceGetGraphicsRunningProcesses
#else
struct memory { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory *m) {
  if ((long)h == 2 && mode("refuse")) return 4;
  if (m->version != (sizeof *m | 2 << 24)) return 25;
  m->total = 1000; m->reserved = 7; m->free = 3; m->used = 990; return 0; }
struct process { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
#define COMPUTE nvmlDeviceGetComputeRunningProcesses_v3
#define GRAPHICS nvmlDeviceGetGraphicsRunningProcesses_v3
#endif
int COMPUTE(void *h, unsigned *count, struct process *p) {
  unsigned many = mode("many") ? 100 : 2;
  if (*count < many) { *count = many; return 7; }
  for (unsigned i = 0; i < many; i++) { memset(&p[i], 0, sizeof p[i]); p[i].pid = 500 + i; p[i].used = i == 1 ? ~0ULL : 64; }
  *count = many; return 0; }
int GRAPHICS(void *h, unsigned *count, struct process *p) { return (long)h == 2 ? 3 : (*count = 0, 0); }
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler to build a stand-in for NVML")
    folders = {}
    for name, options in (("new", []), ("old", ["-DOLD"])):
        folder = tmp_path_factory.mktemp(name)
        (folder / "nvml.c").write_text(LIBRARY)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", *options, "nvml.c"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        folders[name] = folder
    return folders


def ask(
    monkeypatch: pytest.MonkeyPatch, folder: Path, mode: str = "", timeout_s: float = 5.0
) -> list[dict[str, object]]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("FAKE_NVML", mode)
    return nvidia.collect_nvml(timeout_s)


def test_nvml_is_read_in_a_child(
    monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Path]
) -> None:
    first, second = ask(monkeypatch, libraries["new"], "refuse")
    assert (first["pci"], first["uuid"], first["name"]) == ("00000000:A1:00.0", "GPU-1", "Card 1")
    assert [first[f"{part}_bytes"] for part in ("total", "reserved", "free", "used")] == [
        1000,
        7,
        3,
        990,
    ]
    assert first["compute"] == [
        {"pid": 500, "gpu_instance": 0, "used_bytes": 64},
        {"pid": 501, "gpu_instance": 0, "used_bytes": None},
    ]
    assert (first["graphics"], first["driver"], first["cuda_driver"]) == ([], "580.95.05", "13.0")
    box = bundle({nvidia.TABLE: "\n".join(json.dumps(row) for row in (first, second))})
    assert [gpu.used.status for gpu in nvidia.gpus(box)] == ["ok", NOT_ALLOWED]
    assert "Insufficient Permissions" in nvidia.gpus(box)[1].used.why
    assert (
        second["unread"]["graphics"]["why"]
        == "nvmlDeviceGetGraphicsRunningProcesses_v3: Not Supported"
    )  # type: ignore[index]


def test_an_old_driver_answers_by_its_first_functions(
    monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Path]
) -> None:
    first = ask(monkeypatch, libraries["old"])[0]
    assert [first[f"{part}_bytes"] for part in ("total", "reserved", "free", "used")] == [
        100,
        None,
        30,
        70,
    ]
    assert first["compute"][0] == {"pid": 500, "gpu_instance": None, "used_bytes": 64}  # type: ignore[index]


def test_more_processes_than_room_are_all_read(
    monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Path]
) -> None:
    assert len(ask(monkeypatch, libraries["new"], "many")[0]["compute"]) == 100  # type: ignore[arg-type]


def test_a_lost_gpu_does_not_hide_the_other(
    monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Path]
) -> None:
    first, second = ask(monkeypatch, libraries["new"], "lost")
    assert first["status"] == "ok"
    assert second["status"] == "not_available" and "nvmlDeviceGetHandleByIndex_v2" in str(
        second["why"]
    )


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("mismatch", "nvmlInit_v2: Driver/library version mismatch"),
        ("none", "NVML counts no GPU"),
        ("crash", "killed by SIGABRT"),
        ("hang", "stopped after 0.5 s"),
    ],
)
def test_nvml_that_fails_leaves_one_row_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Path], mode: str, why: str
) -> None:
    (row,) = ask(monkeypatch, libraries["new"], mode, 0.5 if mode == "hang" else 5.0)
    assert row["status"] == "not_available" and why in str(row["why"])


def test_without_the_library_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has NVIDIA's library")
    (row,) = nvidia.collect_nvml()
    assert row["status"] == "not_available" and "libnvidia-ml.so.1" in str(row["why"])


def test_the_nvml_program_needs_nothing_but_its_interpreter() -> None:
    program = Path(nvml.__file__).read_text()
    assert "from ." not in program and "import helpers" not in program
    ended = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False
    )
    assert json.loads(ended.stdout.splitlines()[0])["status"] in ("ok", "not_available")
