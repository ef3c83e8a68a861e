"""The recorder says which files of a kernel are cells of a notebook."""

import sys
import types

from helpers.allocator.stack_frames import place_in_words
from helpers.allocator.under_torch.cells import cells, place


def test_ipython_tells_which_file_holds_which_cell(monkeypatch):
    shell = types.SimpleNamespace(
        compile=types.SimpleNamespace(_filename_map={"/tmp/ipykernel_3/88.py": 9})
    )
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert place("/tmp/ipykernel_3/88.py", 4) == "cell 9, line 4"
    assert place("/home/someone/data.py", 4) == "data.py:4"


def test_the_compiler_of_the_installed_ipython_keeps_that():
    from IPython.core.compilerop import CachingCompiler

    compiler = CachingCompiler()
    name = compiler.cache("x = 1", 5)
    assert compiler._filename_map[name] == 5


def test_outside_of_ipython_there_are_no_cells(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert cells() == {}


def test_a_place_is_the_programs_own_line_and_then_the_call_that_it_makes_there():
    frames = (
        "torch/nn/functional.py:1700 relu",
        "torch/nn/modules/module.py:1794 _call_impl",
        "model.py:31 forward",
        "torch/nn/modules/module.py:1794 _call_impl",
        "train.py:8 main",
    )
    assert place_in_words(frames) == "model.py:31 forward, in torch/nn/functional.py:1700 relu"
    assert place_in_words(frames[2:]) == "model.py:31 forward"
    assert place_in_words(frames[:1]) == frames[0]
    assert place_in_words(()) == "no Python frame"
