"""nvidia-smi's XML where it is large or cut, and NVML against a library of our making."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_boxes import box

from helpers.look import nvidia, nvml
from helpers.look.bundle import Text
from helpers.look.reading import NOT_ALLOWED

QUERY = Path(__file__).parent / "samples" / "nvidia-smi-460" / "query.xml"


def listed(words: str) -> list[str]:
    listing = nvidia.parse_xml(Text(words, "ok", "", "nvidia-smi -q -x", "item"))
    return [gpu.pci for gpu in listing.gpus]


def test_deep_and_wide_xml_is_read_without_harm() -> None:
    deep = "<a>" * 50_000 + "</a>" * 50_000 + '<gpu id="00000000:01:00.0"/>'
    assert listed(f"<nvidia_smi_log>{deep}</nvidia_smi_log>") == ["0000:01:00.0"]


def test_of_cut_xml_the_whole_gpus_stand() -> None:
    words = QUERY.read_text()
    ends = words.index("</gpu>") + 6, words.rindex("</gpu>") + 6
    assert listed(words[: ends[0] + 200]) == ["0000:65:00.0"]
    for at in range(0, len(words), 331):
        assert len(listed(words[:at])) == sum(at >= end for end in ends)


def test_an_empty_process_table_is_a_true_zero() -> None:
    head, _, rest = QUERY.read_text().partition("\t\t\t<process_info>")
    words = head + rest[rest.index("\t\t</processes>") :]
    assert nvidia.holder_count(box({nvidia.XML: words})).value == 0


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

    def layout(shape: type[ctypes.Structure]) -> list[tuple[str, int, int]]:
        places = ((name, getattr(shape, name)) for name, *_ in shape._fields_)
        return [(name, place.offset, place.size) for name, place in places]

    assert layout(ours) == layout(getattr(pynvml, theirs))


def test_numbers_are_those_of_nvidias_own_package() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in ("NO_PERMISSION", "INSUFFICIENT_SIZE", "FUNCTION_NOT_FOUND"):
        assert getattr(nvml, name) == getattr(pynvml, f"NVML_ERROR_{name}")
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
        argv = [compiler, "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", *options, "nvml.c"]
        subprocess.run(argv, cwd=folder, check=True, capture_output=True)
        folders[name] = folder
    return folders


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Path]):
    """The rows of the stand-in, ``new`` or ``old``, with its faults named in ``mode``."""

    def rows(name: str, mode: str = "", timeout_s: float = 5.0) -> list[dict]:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries[name]))
        monkeypatch.setenv("FAKE_NVML", mode)
        return nvidia.collect_nvml(timeout_s)

    return rows


def sizes(row: dict) -> list[int | None]:
    return [row[f"{part}_bytes"] for part in ("total", "reserved", "free", "used")]


def test_nvml_is_read_in_a_child(ask) -> None:
    first, second = ask("new", "refuse")
    assert (first["pci"], first["name"]) == ("00000000:A1:00.0", "Card 1")
    assert sizes(first) == [1000, 7, 3, 990]
    assert [(one["pid"], one["gpu_instance"], one["used_bytes"]) for one in first["compute"]] == [
        (500, 0, 64),
        (501, 0, None),
    ]
    assert (first["graphics"], first["cuda_driver"]) == ([], "13.0")
    gpus = nvidia.gpus(box(nvml=[first, second]))
    assert [gpu.used.status for gpu in gpus] == ["ok", NOT_ALLOWED]
    assert "Insufficient Permissions" in gpus[1].used.why
    why = "nvmlDeviceGetGraphicsRunningProcesses_v3: Not Supported"
    assert second["unread"]["graphics"]["why"] == why


def test_an_old_driver_answers_by_its_first_functions(ask) -> None:
    first = ask("old")[0]
    assert sizes(first) == [100, None, 30, 70]
    assert first["compute"][0] == {"pid": 500, "gpu_instance": None, "used_bytes": 64}


def test_more_processes_than_room_are_all_read(ask) -> None:
    assert len(ask("new", "many")[0]["compute"]) == 100


def test_a_lost_gpu_does_not_hide_the_other(ask) -> None:
    first, second = ask("new", "lost")
    assert (first["status"], second["status"]) == ("ok", "not_available")
    assert "nvmlDeviceGetHandleByIndex_v2" in second["why"]


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("mismatch", "nvmlInit_v2: Driver/library version mismatch"),
        ("none", "NVML counts no GPU"),
        ("crash", "killed by SIGABRT"),
        ("hang", "stopped after 0.5 s"),
    ],
)
def test_nvml_that_fails_leaves_one_row_with_the_reason(ask, mode: str, why: str) -> None:
    (row,) = ask("new", mode, 0.5 if mode == "hang" else 5.0)
    assert row["status"] == "not_available" and why in row["why"]


def test_without_the_library_the_row_says_so() -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has NVIDIA's library")
    (row,) = nvidia.collect_nvml()
    assert row["status"] == "not_available" and "libnvidia-ml.so.1" in row["why"]


def test_the_nvml_program_needs_nothing_but_its_interpreter() -> None:
    program = Path(nvml.__file__).read_text()
    assert "from ." not in program and "import helpers" not in program
    argv = [sys.executable, "-I", "-c", program]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert json.loads(ended.stdout.splitlines()[0])["status"] in ("ok", "not_available")
