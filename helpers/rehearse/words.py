"""What a rehearsal stands on and takes for granted, as rows: words.json, which says what each of
its keys holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve().parent


class Fault(TypedDict):
    """Whose fault a failure is, and why."""

    whose: str
    says: str


class FaultOfError(Fault):
    """A fault that errors show which fit the pattern ``seen``."""

    seen: str


class Workspace(TypedDict):
    """What a library takes beside what the program asks for: so many ``times`` what was counted
    under ``count``, or ``most_mib`` more, unless the variable ``cap`` limits it.
    """

    count: str
    times: int
    most_mib: int
    cap: str
    says: str


class Words(TypedDict):
    """The keys of words.json."""

    needs: list[str]
    answers: dict[str, int]
    outputs: list[tuple[str, str, list[int], str]]
    constant: dict[str, str]
    card: dict[str, str]
    decides: list[str]
    says: dict[str, str]
    workspaces: list[Workspace]
    known: dict[str, str]
    libraries: dict[str, str]
    ends: list[FaultOfError]
    named: Fault
    crash: Fault
    unanswered: Fault
    exit: Fault
    sizes: Fault
    other: Fault
    bounds: dict[str, str]
    rocm: list[str]
    outside: str


WORDS: Words = json.loads((HERE / "words.json").read_text(encoding="utf-8"))
