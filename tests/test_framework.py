"""Torch of another interpreter: real CPU torch, stand-ins for other builds, and every way in which the child can end."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_boxes import box

from helpers.ground.shapes import NOT_AVAILABLE
from helpers.look import commands, framework

FACTS = Path(framework.__file__).parent / "under_torch" / "facts.py"

# What every stand-in torch shares: a native part that refuses whatever would take a context.
STAND_IN = """
import types, sys
__version__ = "{version}"
def _context(*args, **kwargs):
    raise SystemExit("a GPU context was taken")
version = types.SimpleNamespace(cuda={cuda}, hip={hip}, git_version="0123abc", debug=False)
_C = types.SimpleNamespace(_cuda_getDeviceCount=_context, _cuda_getArchFlags=lambda: "gfx1100 gfx1201")
cuda = types.SimpleNamespace(is_available=_context, init=_context, device_count=_context, get_device_properties=_context,
                             mem_get_info=_context, get_arch_list=_context)
"""


def torch_at(folder, body):
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(body)
    return folder


def facts(folder, *options):
    argv = [sys.executable, "-S", "-c", FACTS.read_text(), *options]
    env = {"PYTHONPATH": str(folder)}
    (line,) = subprocess.check_output(argv, env=env, text=True).splitlines()
    return json.loads(line)


def test_the_torch_beside_this_test_is_read_in_a_child():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("this interpreter has no torch")
    (row,) = framework.collect(sys.executable, 120)
    found = framework.framework(box(torch=[row]))
    assert found.version.ok
    assert row["devices_taken"] is False and row["devices"] == []
    assert found.build in ("cpu", "cuda", "rocm")


def test_an_interpreter_without_torch_says_so():
    row = facts(Path("/nonexistent"))
    assert row["status"] == "not_available" and str(row["why"]).startswith("no torch in ")


@pytest.mark.parametrize(("cuda", "hip"), [("'12.8'", None), (None, "'6.4.43484'")])
def test_by_default_no_context_is_taken(tmp_path, cuda, hip):
    row = facts(torch_at(tmp_path, STAND_IN.format(version="2.9.0", cuda=cuda, hip=hip)))
    assert (row["status"], row["archs"]) == ("ok", ["gfx1100", "gfx1201"])


def test_devices_are_taken_when_asked_for_and_one_sick_device_hides_no_other(tmp_path):
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
    first, second = framework.framework(box(torch=[row])).devices
    assert (first.pci, first.free.value, first.integrated) == ("0000:c4:00.0", 1 << 29, False)
    assert (second.total.value, second.free.status) == (1 << 30, NOT_AVAILABLE)


def test_a_runtime_that_does_not_start_gives_its_words(tmp_path):
    body = STAND_IN.format(version="2.9.0", cuda=None, hip="'6.4'")
    body += "def init():\n    raise RuntimeError('No HIP GPUs are available')\ncuda.init = init\n"
    made = box(torch=[facts(torch_at(tmp_path, body), "--devices")])
    assert framework.devices_reading(made).why == "RuntimeError: No HIP GPUs are available"
    assert framework.framework(made).version.ok


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
def test_a_broken_import_is_a_reason(tmp_path, body, why):
    row = facts(torch_at(tmp_path, body))
    assert row["status"] == "not_available" and why in str(row["why"])


def test_what_libraries_print_does_not_mix_with_the_answer(tmp_path):
    body = 'import os, sys, warnings\nprint("chatter"); os.write(1, b"more chatter")\nwarnings.warn("no numpy")\n'
    body += STAND_IN.format(version="1.13.1", cuda="'11.7'", hip=None)
    row = facts(torch_at(tmp_path, body))
    assert row["torch"] == "1.13.1" and "no numpy" not in str(row)


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
    tmp_path, monkeypatch, body, limit_s, why
):
    monkeypatch.setenv("PYTHONPATH", str(torch_at(tmp_path, body)))
    (row,) = framework.collect(sys.executable, limit_s)
    assert row["status"] == "not_available" and row["python"] == sys.executable
    assert why in row["why"]


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
def test_a_program_is_believed_only_when_it_answers_and_ends_well(source, why):
    (row,) = commands.run_python(sys.executable, source, (), 20)
    assert row["status"] == "not_available" and why in row["why"]


def test_an_interpreter_that_is_not_there(tmp_path):
    assert framework.collect(str(tmp_path / "python"), 5)[0]["status"] == "not_available"
    (tmp_path / "locked").write_text("#!/bin/sh\n")
    assert framework.collect(str(tmp_path / "locked"), 5)[0]["status"] == "not_allowed"


def test_a_torch_beside_the_current_folder_or_the_program_is_not_taken(tmp_path, monkeypatch):
    torch_at(tmp_path, "raise RuntimeError('the wrong torch')")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facts.py").write_text(FACTS.read_text())
    for words in (["-c", FACTS.read_text()], [str(tmp_path / "facts.py")]):
        answer = subprocess.check_output([sys.executable, "-S", *words])
        assert "no torch in" in json.loads(answer)["why"]
