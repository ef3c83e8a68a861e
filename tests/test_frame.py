"""The frame of programs under torch: rows alone on stdout, the end on stderr, limits, and whether memory ran out."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.trials.under_torch import frame

ROOT = Path(__file__).resolve().parents[1]
NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
)


class OutOfMemoryError(RuntimeError):
    pass


TORCH = SimpleNamespace(cuda=SimpleNamespace(OutOfMemoryError=OutOfMemoryError))


@pytest.mark.parametrize(
    ("error", "oom"),
    [
        (OutOfMemoryError("HIP out of memory. Tried to allocate 384.00 MiB."), True),
        (MemoryError(), True),
        (RuntimeError(NO_MEMORY), True),
        (RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("a paper about out of memory"), False),
    ],
)
def test_whether_memory_ran_out_has_one_answer(error, oom):
    assert frame.is_oom(TORCH, error) is oom


def program(body, *options):
    """A program of that body in a child: its rows, stderr and exit code."""
    text = f"import os, resource, signal, sys\nfrom helpers.trials.under_torch import frame\ndef work(o):\n{body}\nframe.run(work)\n"
    argv = [sys.executable, "-c", text, *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr, done.returncode


def test_only_rows_reach_the_parent():
    body = " print('a library')\n os.write(1, b'its C code')\n yield {'got': o['x']}\n os.system('echo child')"
    rows, words, code = program(body, '{"x": 5}')
    assert (rows, code) == ([{"got": 5}], 0)
    assert all(said in words for said in ("a library", "its C code", "child"))


def test_rows_of_before_an_error_stay_and_the_error_is_the_last_word():
    rows, words, code = program(" yield {'n': 1}\n raise KeyError('mine')", "{}")
    assert (rows, code) == ([{"n": 1}], 1) and words.strip().endswith("KeyError: 'mine'")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGSEGV"])
def test_a_program_that_is_ended_or_crashes_shows_where_it_was(name):
    _, words, code = program(f" yield {{}}\n os.kill(os.getpid(), signal.{name})", "{}")
    assert code == -getattr(signal, name) and "in work" in words


def test_private_memory_is_limited_from_now_on_and_lifted_again():
    body = """
 frame.limit_host(64 << 20)
 try:
  bytearray(512 << 20)
 except MemoryError as error:
  yield {'oom': str(error) == ''}
 frame.lift_host_limit()
 yield {'bytes': len(bytearray(512 << 20)), 'held': frame.own_bytes('VmRSS'), 'none': frame.own_bytes('NoSuch')}"""
    (first, second), words, code = program(body, "{}")
    assert first["oom"] and second["bytes"] == 512 << 20, words
    assert second["held"] > 1 << 20 and second["none"] == 0


@pytest.mark.parametrize(
    ("content", "missing", "says"),
    [
        ("raise OSError('libamdhip64.so.6: no such file\\nmore')", False, "OSError: libamdhip64"),
        ("import no_such_package", False, "ModuleNotFoundError: No module named 'no_such"),
        (None, True, "ModuleNotFoundError: No module named 'torch'"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, content, missing, says):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if content is None:
        monkeypatch.setattr(sys, "path", [])
    else:
        (tmp_path / "torch.py").write_text(content)
        monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(frame.NoTorch) as error:
        frame.import_torch()
    assert str(error.value).startswith(says) and "\n" not in str(error.value)
    assert error.value.missing is missing
