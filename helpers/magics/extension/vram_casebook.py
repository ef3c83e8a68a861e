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


def _hooks():
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [HELPERS]
        sys.modules[PACKAGE] = package
    return importlib.import_module(PACKAGE + ".magics.hooks")


def load_ipython_extension(shell):
    """IPython calls this for ``%load_ext vram_casebook``."""
    _hooks().load_ipython_extension(shell)


def unload_ipython_extension(shell):
    """IPython calls this for ``%unload_ext vram_casebook``."""
    _hooks().unload_ipython_extension(shell)
