"""Stands in for a GPU build of torch in a recorded program: an allocator that only counts, with torch's memory history.

What the recorder touches of torch has its shape here (torch/cuda/__init__.py and torch/cuda/memory.py of 2.7); nothing else.
"""

import importlib
import os
import types

if "BROKEN_TORCH" in os.environ:
    raise OSError("libamdhip64.so.6: cannot open shared object file: No such file or directory")

__version__ = "2.7.0+standin"
version = types.SimpleNamespace(
    cuda="12.6" if "CPU_TORCH" not in os.environ else None, hip=None, git_version="0" * 40
)
observers = []
_C = types.SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append)
_lazy_modules = {"_inductor"}


def __getattr__(name):
    if name in _lazy_modules:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(name)


from . import cuda  # noqa: E402, F401
