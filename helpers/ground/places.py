"""Where the checkout lies, and where everything that is kept goes."""

from __future__ import annotations

import glob
import os
import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
"""What holds helpers, env and notebooks: a checkout, or the folder of an installed package that
is laid out like one.
"""
IN_CHECKOUT = (CHECKOUT / "pyproject.toml").is_file()
SET_UP = CHECKOUT / ".venv"
"""What the set-up makes: the workbook's own Python, its packages, and the command ``casebook``."""
_OURS = CHECKOUT / "outputs"
_MAY_WRITE = os.access(_OURS if _OURS.exists() else CHECKOUT, os.W_OK)
_PLACE = _OURS if IN_CHECKOUT and _MAY_WRITE else Path.cwd() / "outputs"
OUTPUTS = Path(os.environ.get("CASEBOOK_OUTPUTS") or _PLACE).absolute()
"""Where everything that is kept goes: in the checkout; below the folder where a command is typed
for an installed package, and where the checkout is another user's.
"""


def kept(path: Path) -> Path:
    """A folder as it is named from here, else the batch of that name below outputs, else the run
    of that name in the newest batch that has one: pages and the terminal name both without a path.
    """
    if path.exists():
        return path
    ours = OUTPUTS / path
    if ours.is_dir():
        return ours
    runs = sorted(OUTPUTS.glob(f"*/{glob.escape(path.name)}/run.json"))
    if runs and len(path.parts) == 1:
        return runs[-1].parent
    return path


ONE_FILE = "python3 capture.pyz"


def _program() -> str:
    """What a person types to run the workbook, on this machine as it is set up now."""
    if not CHECKOUT.is_dir():  # one file holds the package
        return ONE_FILE
    scripts = (SET_UP / "bin" / "casebook", Path(sys.prefix) / "bin" / "casebook")
    if IN_CHECKOUT and not any(script.exists() for script in scripts):
        return "python3 -m helpers"
    return "casebook"


PROGRAM = _program()


def typed_here(command: str) -> str:
    """A command as it can be pasted here: ``casebook`` is spelt as this machine has it."""
    verb = "(capture|diagnose)" if PROGRAM == ONE_FILE else "[a-z]"
    return re.sub(rf"(?<![^\s;])casebook (?={verb})", f"{PROGRAM} ", command)
