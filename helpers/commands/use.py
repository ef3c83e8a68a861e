"""What every command shares: how wrong use is said, how a box is opened, and how JSON is printed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 -- subscribed when imported, and capture runs on Python 3.8

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[[argparse.Namespace], int]
Verb = Callable[[str, Run, str], argparse.ArgumentParser]
"""Registers a verb (name, what runs it, what it says in the help) and gives its parser for more arguments."""


class WrongUse(Exception):
    """Bad input: one line with what was seen, what was expected and what to do. Exit 2."""


def print_json(value: Any) -> None:
    """One JSON value, for people who read it too."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def open_named_box(name: str) -> Any:
    """live, a bundle, or a name from env/boxes; WrongUse where it is none."""
    from helpers.look.archive import BundleError
    from helpers.look.boxes import open_box

    try:
        return open_box(name)
    except BundleError as error:
        raise WrongUse(str(error)) from error
