"""nvidia-smi's XML where it is large or cut, and NVML against a library of our making."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_boxes import box

from helpers.ground.shapes import NOT_ALLOWED
from helpers.look import nvidia, nvml
from helpers.look.bundle import Text

QUERY = Path(__file__).parent / "samples" / "nvidia-smi-460" / "query.xml"


def listed(words):
    return list(nvidia.parse_xml(Text(words, "ok", "", "nvidia-smi -q -x", "item")).gpus)


def test_deep_and_wide_xml_is_read_without_harm():
    deep = "<a>" * 50_000 + "</a>" * 50_000 + '<gpu id="00000000:01:00.0"/>'
    assert listed(f"<nvidia_smi_log>{deep}</nvidia_smi_log>") == []


def test_of_cut_xml_the_whole_gpus_stand():
    words = QUERY.read_text()
    ends = words.index("</gpu>") + 6, words.rindex("</gpu>") + 6
    assert listed(words[: ends[0] + 200]) == ["0000:65:00.0"]
    for at in range(0, len(words), 331):
        assert len(listed(words[:at])) == sum(at >= end for end in ends)


def test_an_empty_process_table_is_a_true_zero():
    head, _, rest = QUERY.read_text().partition("\t\t\t<process_info>")
    words = head + rest[rest.index("\t\t</processes>") :]
    assert nvidia.holder_count(box({nvidia.XML: words})).value == 0


def test_structures_are_those_of_nvidias_own_package():
    pynvml = pytest.importorskip("pynvml")
    pairs = (
        (nvml.NvmlMemory, "c_nvmlMemory_v2_t"),
        (nvml.Pci, "nvmlPciInfo_t"),
        (nvml.NvmlProcess, "c_nvmlProcessInfo_v3_t"),
        (nvml.Window, "c_nvmlBAR1Memory_t"),
    )

    def layout(shape):
        places = ((name, getattr(shape, name)) for name, *_ in shape._fields_)
        return [(name, place.offset, place.size) for name, place in places]

    for ours, theirs in pairs:
        assert layout(ours) == layout(getattr(pynvml, theirs)), theirs


def test_numbers_are_those_of_nvidias_own_package():
    pynvml = pytest.importorskip("pynvml")
    for name in ("NO_PERMISSION", "INSUFFICIENT_SIZE", "FUNCTION_NOT_FOUND"):
        assert getattr(nvml, name) == getattr(pynvml, f"NVML_ERROR_{name}")
    assert nvml.MEMORY_VERSION == pynvml.nvmlMemory_v2


LIBRARY = Path(__file__).parent / "programs" / "nvml.c"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler to build a stand-in for NVML")
    folders = {}
    for name, options in (("new", []), ("old", ["-DOLD"])):
        folder = tmp_path_factory.mktemp(name)
        argv = [compiler, "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", *options, str(LIBRARY)]
        subprocess.run(argv, cwd=folder, check=True, capture_output=True)
        folders[name] = folder
    return folders


@pytest.fixture
def ask(monkeypatch, libraries):
    """The rows of the stand-in, ``new`` or ``old``, with its faults named in ``mode``."""

    def rows(name, mode="", timeout_s=5.0):
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries[name]))
        monkeypatch.setenv("FAKE_NVML", mode)
        return nvidia.collect_nvml(timeout_s)

    return rows


def sizes(row):
    return [row[f"{part}_bytes"] for part in ("total", "reserved", "free", "used")]


def test_nvml_is_read_in_a_child(ask):
    first, second = ask("new", "refuse")
    assert (first["pci"], first["name"]) == ("00000000:A1:00.0", "Card 1")
    assert sizes(first) == [1000, 7, 3, 990]
    held = [(one["pid"], one["gpu_instance"], one["used_bytes"]) for one in first["compute"]]
    assert held == [(500, 0, 64), (501, 0, None)]
    assert (first["graphics"], first["cuda_driver"]) == ([], "13.0")
    assert [first[name] for name in nvml.LINK] == [1, 4, 8, 16]
    assert [second[name] for name in nvml.LINK] == [None] * 4
    gpus = nvidia.gpus(box(nvml=[first, second]))
    assert [gpu.used.status for gpu in gpus] == ["ok", NOT_ALLOWED]
    assert (gpus[1].bar1_total.bytes, gpus[1].bar1_used.bytes) == (256, 250)
    assert "Insufficient Permissions" in gpus[1].used.why
    why = "nvmlDeviceGetGraphicsRunningProcesses_v3: Not Supported"
    assert second["unread"]["graphics"]["why"] == why


def test_a_driver_before_525_reads_as_not_available_with_the_reason(ask):
    first = ask("old")[0]
    assert (first["status"], first["name"]) == ("ok", "Card 1")
    assert sizes(first) == [None] * 4
    assert first["compute"] is None
    (gpu, _) = nvidia.gpus(box(nvml=ask("old")))
    assert gpu.used.status == "not_available"
    assert gpu.used.why.endswith("not in this driver; NVML is read from driver 525 on")


def test_more_processes_than_room_are_all_read(ask):
    assert len(ask("new", "many")[0]["compute"]) == 100


def test_a_lost_gpu_does_not_hide_the_other(ask):
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
def test_nvml_that_fails_leaves_one_row_with_the_reason(ask, mode, why):
    (row,) = ask("new", mode, 0.5 if mode == "hang" else 5.0)
    assert row["status"] == "not_available" and why in row["why"]


def test_without_the_library_the_row_says_so():
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has NVIDIA's library")
    (row,) = nvidia.collect_nvml(5.0)
    assert row["status"] == "not_available" and "libnvidia-ml.so.1" in row["why"]


def test_the_nvml_program_needs_nothing_but_its_interpreter():
    program = Path(nvml.__file__).read_text()
    assert "from ." not in program and "import helpers" not in program
    argv = [sys.executable, "-I", "-c", program]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert json.loads(ended.stdout.splitlines()[0])["status"] in ("ok", "not_available")
