"""Torch of another interpreter: real CPU torch, stand-ins for other builds, and every way in which the child can end."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look import commands, framework
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.reading import NOT_ALLOWED, NOT_AVAILABLE

SAMPLES = Path(__file__).parent / "samples" / "torch"
FACTS = Path(framework.__file__).parents[1] / "torchside" / "facts.py"

# What every stand-in torch shares: a native part that refuses whatever would take a context.
STAND_IN = """
import types, sys
__version__ = "{version}"
def _context(*args, **kwargs):
    raise SystemExit("a GPU context was taken")
version = types.SimpleNamespace(cuda={cuda}, hip={hip}, git_version="0123abc", debug=False)
_C = types.SimpleNamespace(_cuda_getDeviceCount=_context, _cuda_getArchFlags=lambda: "gfx1100 gfx1201",
                           _cuda_getAllocatorBackend=lambda: "native", _cuda_getDriverVersion=lambda: 12080,
                           _cudnn=types.SimpleNamespace(getRuntimeVersion=lambda: (9, 10, 2)))
cuda = types.SimpleNamespace(is_available=_context, init=_context, device_count=_context, get_device_properties=_context,
                             mem_get_info=_context, get_arch_list=_context,
                             nccl=types.SimpleNamespace(version=lambda: (2, 27, 5)))
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=_context))
"""


def torch_at(folder: Path, body: str) -> Path:
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(body)
    return folder


def facts(folder: Path, *options: str) -> dict[str, object]:
    ended = subprocess.run(
        [sys.executable, "-S", "-c", FACTS.read_text(), *options],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = ended.stdout.splitlines()
    return json.loads(line)


def table(row: object) -> Bundle:
    writer = BundleWriter("test", "constructed", "0", "2026-01-01T00:00:00Z")
    writer.add(
        "command",
        framework.TABLE,
        row.read_text() if isinstance(row, Path) else json.dumps(row) + "\n",
    )
    return writer.bundle()


def test_the_build_of_a_rocm_torch_with_its_devices() -> None:
    box = table(SAMPLES / "rocm-2.9.jsonl")
    found = framework.framework(box)
    assert (found.build, found.version.value, found.hip.value) == (
        "rocm",
        "2.9.1+rocm6.4",
        "6.4.43484-123eb5128",
    )
    assert (found.python.value, found.archs) == ("3.12.3", ("gfx942", "gfx1100", "gfx1151"))
    assert (
        found.cuda.why == "not part of this build"
        and found.settings.value == "expandable_segments:True"
    )
    first, second = found.devices
    assert (first.pci, first.integrated, first.total.value) == ("0000:c3:00.0", True, 50197430272)
    assert (first.free.value, first.driver_total.value) == (49800000000, 50197430272)
    assert (second.pci, second.integrated) == ("", False)
    assert second.free.why == "torch.OutOfMemoryError: HIP out of memory"
    assert framework.devices_reading(box).value == 2


def test_an_old_cuda_torch_says_what_it_cannot_tell() -> None:
    box = table(SAMPLES / "cuda-1.13.jsonl")
    found = framework.framework(box)
    assert (found.build, found.cuda.value, found.hip.status) == ("cuda", "11.7", NOT_AVAILABLE)
    assert "_accelerator_getAllocatorSettings" in found.settings.why
    assert framework.devices_reading(box).why == "not asked for: it would take a context on the GPU"


def test_a_torch_that_does_not_import_is_one_reading() -> None:
    box = table(SAMPLES / "broken.jsonl")
    found = framework.framework(box)
    assert (found.build, found.python.value, found.devices) == ("", "3.10.12", ())
    for reading in (found.version, found.hip, framework.devices_reading(box)):
        assert reading.status == NOT_AVAILABLE and "libhipblas.so.2" in reading.why


def test_a_table_that_was_never_taken_says_so() -> None:
    box = BundleWriter("test", "constructed", "0", "now").bundle()
    assert (
        framework.framework(box).version.why == framework.devices_reading(box).why == "not captured"
    )
    refused = framework.framework(
        table({"status": "not_allowed", "why": "/opt/venv/bin/python3: may not execute it"})
    )
    assert refused.version.status == NOT_ALLOWED


def test_the_torch_beside_this_test_is_read_in_a_child() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("this interpreter has no torch")
    (row,) = framework.collect(sys.executable, 120)
    found = framework.framework(table(row))
    assert found.version.ok and row["import_s"] > 0
    assert row["devices_taken"] is False and row["devices"] == []
    assert {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb"} <= set(row["allocator_names"])
    assert found.build in ("cpu", "cuda", "rocm")


def test_an_interpreter_without_torch_says_so() -> None:
    row = facts(Path("/nonexistent"))
    assert row["status"] == "not_available" and str(row["why"]).startswith("no torch in ")


@pytest.mark.parametrize(
    ("cuda", "hip", "by"), [("'12.8'", None, "nvml"), (None, "'6.4.43484'", "amdsmi")]
)
def test_by_default_no_context_is_taken(
    tmp_path: Path, cuda: str | None, hip: str | None, by: str
) -> None:
    body = (
        STAND_IN.format(version="2.9.0", cuda=cuda, hip=hip)
        + f"cuda._device_count_{by} = lambda: 3\n"
    )
    row = facts(torch_at(tmp_path, body))
    assert (row["status"], row["device_count"], row["device_count_by"]) == ("ok", 3, by)
    assert (row["archs"], row["cudnn"], row["nccl"]) == (["gfx1100", "gfx1201"], "9.10.2", "2.27.5")
    assert row["driver_cuda"] == (12080 if cuda else None)


def test_where_only_the_runtime_could_count_it_is_not_asked(tmp_path: Path) -> None:
    body = (
        STAND_IN.format(version="2.9.0", cuda=None, hip="'7.0'")
        + "cuda._device_count_amdsmi = lambda: -1\n"
    )
    row = facts(torch_at(tmp_path, body))
    assert row["device_count"] is None and "would open the driver" in row["unread"]["device_count"]  # type: ignore[index]


def test_devices_are_taken_when_asked_for_and_one_sick_device_hides_no_other(
    tmp_path: Path,
) -> None:
    body = (
        STAND_IN.format(version="2.10.0", cuda="'12.8'", hip=None)
        + """
class Properties:
    name, total_memory, multi_processor_count, major, minor, uuid = "Card", 1 << 30, 10, 9, 0, b"x"
    pci_domain_id, pci_bus_id, pci_device_id, is_integrated = 0, 0xc4, 0, 0
def mem_get_info(index):
    if index:
        raise RuntimeError("CUDA error: out of memory\\nCompile with TORCH_USE_CUDA_DSA")
    return (1 << 29, 1 << 30)
cuda.init = lambda: None
cuda.device_count = lambda: 2
cuda.get_device_properties = lambda index: Properties
cuda.mem_get_info = mem_get_info
"""
    )
    row = facts(torch_at(tmp_path, body), "--devices")
    first, second = framework.framework(table(row)).devices
    assert (first.pci, first.free.value, first.integrated) == ("0000:c4:00.0", 1 << 29, False)
    assert (second.total.value, second.free.status) == (1 << 30, NOT_AVAILABLE)
    assert row["device_count_by"] == "runtime"


def test_a_runtime_that_does_not_start_gives_its_words(tmp_path: Path) -> None:
    body = (
        STAND_IN.format(version="2.9.0", cuda=None, hip="'6.4'")
        + """
def init():
    raise RuntimeError("No HIP GPUs are available")
cuda.init = init
"""
    )
    box = table(facts(torch_at(tmp_path, body), "--devices"))
    assert framework.devices_reading(box).why == "RuntimeError: No HIP GPUs are available"
    assert framework.framework(box).version.ok


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise KeyError('libamd_smi.so')", "KeyError: 'libamd_smi.so'"),
        ("import no_such_dependency", "No module named 'no_such_dependency'"),
        ("import ctypes; ctypes.CDLL('libhipblas-nowhere.so.2')", "libhipblas-nowhere.so.2"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "no __version__"),
    ],
)
def test_a_broken_import_is_a_reason(tmp_path: Path, body: str, why: str) -> None:
    row = facts(torch_at(tmp_path, body))
    assert row["status"] == "not_available" and why in str(row["why"])


def test_what_libraries_print_does_not_mix_with_the_answer(tmp_path: Path) -> None:
    body = 'import os, sys, warnings\nprint("chatter"); os.write(1, b"more chatter")\nwarnings.warn("no numpy")\n'
    row = facts(
        torch_at(tmp_path, body + STAND_IN.format(version="1.13.1", cuda="'11.7'", hip=None))
    )
    assert row["torch"] == "1.13.1" and row["warnings"] == ["no numpy"]


def test_names_in_the_allocators_binary_are_found(tmp_path: Path) -> None:
    torch_at(tmp_path, STAND_IN.format(version="2.4.0", cuda="'12.1'", hip=None))
    (tmp_path / "torch" / "lib" / "libc10_cuda.so").write_bytes(
        b"\0PYTORCH_CUDA_ALLOC_CONF\0expandable_segments\0"
    )
    assert facts(tmp_path)["allocator_names"] == ["PYTORCH_CUDA_ALLOC_CONF", "expandable_segments"]


@pytest.mark.parametrize(
    ("body", "limit_s", "why"),
    [
        ("import os; os.kill(os.getpid(), 11)", 20, "killed by SIGSEGV"),
        ("import os; os._exit(7)", 20, "ended with exit status 7 and no answer"),
        (
            "import os; os.write(2, b'HSA exception: nothing left'); os.abort()",
            20,
            "last words: HSA exception: nothing left",
        ),
        ("import time; time.sleep(60)", 0.6, "stopped after 0.6 s"),
    ],
)
def test_a_child_that_dies_or_hangs_leaves_its_end_and_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, limit_s: float, why: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(torch_at(tmp_path, body)))
    (row,) = framework.collect(sys.executable, limit_s)
    assert (
        row["status"] == "not_available" and row["python"] == sys.executable and why in row["why"]
    )


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"import os; print('{oops', flush=True); os.kill(os.getpid(), 40)", "killed by signal 40"),
        (b"print('[1]'); print('{oops')", "ended with exit status 0 and no answer"),
        (
            b"print('{\"status\": \"ok\"}', flush=True); raise SystemExit('late')",
            "ended with exit status 1 and no answer; its",
        ),
    ],
)
def test_a_program_is_believed_only_when_it_answers_and_ends_well(source: bytes, why: str) -> None:
    (row,) = commands.ask(sys.executable, source, (), 20)
    assert row["status"] == "not_available" and why in row["why"]


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    assert framework.collect(str(tmp_path / "python"), 5)[0]["status"] == "not_available"
    (tmp_path / "locked").write_text("#!/bin/sh\n")
    assert framework.collect(str(tmp_path / "locked"), 5)[0]["status"] == "not_allowed"


def test_a_torch_beside_the_current_folder_or_the_program_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_at(tmp_path, "raise RuntimeError('the wrong torch')")
    monkeypatch.chdir(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-S", "-c", FACTS.read_text()], capture_output=True, text=True, check=True
    )
    assert "no torch in" in json.loads(ended.stdout)["why"]
    (tmp_path / "facts.py").write_text(FACTS.read_text())
    ended = subprocess.run(
        [sys.executable, "-S", str(tmp_path / "facts.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no torch in" in json.loads(ended.stdout)["why"]


KEYS = st.sampled_from(
    [
        "status",
        "why",
        "torch",
        "unread",
        "devices",
        "index",
        "total_bytes",
        "archs",
        "device_count",
        "import_s",
        "environment",
        "hip",
        "pci",
        "python_version",
    ]
)
ROW = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner | st.just("ok"), max_size=6)
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(ROW)
def test_any_row_is_read_or_refused_with_a_reason(row: object) -> None:
    found = framework.framework(table(row))
    assert found.version.ok or found.version.why
    assert (found.build == "") <= (not found.version.ok)
    assert framework.devices_reading(table(row)).unit == "count"
