"""``%load_ext vram_casebook``: GPU memory by name in a notebook of one's own.

The folder of this file is on the path where the workbook is installed. Elsewhere two lines do it:
``import sys; sys.path.append("FOLDER OF THIS FILE")`` and ``%load_ext vram_casebook``. The
workbook's modules are loaded under a name of their own: a notebook's folder may have a package
named helpers.
"""

import importlib
import os
import sys
import types

PACKAGE = "_vram_casebook"
HELPERS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _module(name: str) -> types.ModuleType:
    """A module of helpers/magics, loaded as a part of PACKAGE."""
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [HELPERS]
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.magics.{name}")


def load_ipython_extension(shell: object) -> None:
    """IPython calls this for ``%load_ext vram_casebook``."""
    _module("hooks").load_ipython_extension(shell)


def unload_ipython_extension(shell: object) -> None:
    """IPython calls this for ``%unload_ext vram_casebook``."""
    _module("hooks").unload_ipython_extension(shell)


def transformers_callback(out: str = "out_of_memory.pickle") -> object:
    """A callback for ``transformers.Trainer``: at the first out-of-memory it keeps torch's snapshot
    in ``out``, and prints the answer.
    """
    return _module("trainers").transformers_callback(out)


def lightning_callback(out: str = "out_of_memory.pickle") -> object:
    """A callback for Lightning's ``Trainer`` that does the same."""
    return _module("trainers").lightning_callback(out)
