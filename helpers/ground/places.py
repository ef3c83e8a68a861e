"""Where the checkout lies, where results are written, and what a person types to run a command."""

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


def _outputs() -> Path:
    """The folder for all results: the one that the variable CASEBOOK_OUTPUTS names; without it
    ``outputs`` of the checkout. An installed package has no checkout, and another user's checkout
    cannot be written to: then ``outputs`` of the current folder.
    """
    chosen = os.environ.get("CASEBOOK_OUTPUTS")
    if chosen:
        return Path(chosen).absolute()
    ours = CHECKOUT / "outputs"
    # Before the first use the folder is not there yet, and would be made in the checkout.
    may_write = os.access(ours, os.W_OK) or (
        not ours.exists() and os.access(CHECKOUT, os.W_OK)
    )
    if IN_CHECKOUT and may_write:
        return ours
    return Path.cwd() / "outputs"


OUTPUTS = _outputs()
"""The folder for all results: batches, pages, caches."""


def kept(path: Path) -> Path:
    """The folder of a batch or of a run that a person means by ``path``. Pages and the terminal
    show only the names of batches and runs, so a bare name is looked up below OUTPUTS.

    Returns ``path`` itself if it exists; else the batch of that name; else the run of that name in
    the newest batch that has one; else ``path`` unchanged, whose reader then says that it is
    missing.
    """
    if path.exists():
        return path
    batch = OUTPUTS / path
    if batch.is_dir():
        return batch
    # The name of a batch begins with its time (batch/journal.py), so the newest is the last.
    runs = sorted(OUTPUTS.glob(f"*/{glob.escape(path.name)}/run.json"))
    if runs and len(path.parts) == 1:  # a bare name; a longer path says which folder
        return runs[-1].parent
    return path


ONE_FILE = "python3 capture.pyz"
"""How capture is typed where one file holds the package (``make capture.pyz``)."""


def _program() -> str:
    """What a person types to run the workbook on this machine, as it is set up now: ``casebook``;
    ``python3 -m helpers`` in a checkout where no set-up has made that command; ONE_FILE if this
    code runs from capture.pyz.
    """
    if not CHECKOUT.is_dir():  # it is capture.pyz, a file
        return ONE_FILE
    # The command of the checkout's set-up, and that of the environment in which this code runs.
    scripts = (SET_UP / "bin" / "casebook", Path(sys.prefix) / "bin" / "casebook")
    if IN_CHECKOUT and not any(script.exists() for script in scripts):
        return "python3 -m helpers"
    return "casebook"


PROGRAM = _program()


def typed_here(command: str) -> str:
    """A command line as a person can paste it here: ``casebook`` before a verb becomes PROGRAM.

    capture.pyz knows only the verbs ``capture`` and ``diagnose``; there the other commands keep
    ``casebook``, since they need a set-up.
    """
    verb = "[a-z]"  # every verb begins so
    if PROGRAM == ONE_FILE:
        verb = "(capture|diagnose)"
    # At the start, or behind a blank or a semicolon: not the end of a path such as bin/casebook.
    return re.sub(rf"(?<![^\s;])casebook (?={verb})", f"{PROGRAM} ", command)
