"""The program that ran out of memory: its sources, its command, and what was found about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from helpers.fix.change import Change, TextEdit
from helpers.fix.settings_file import SettingsFile
from helpers.fix.source import Node, SourceFile, called
from helpers.judge.program_facts import ProgramFacts
from helpers.judge.program_questions import needed_bytes
from helpers.rehearse.scratch import copied, in_copy

Located = Iterator[tuple[SourceFile, Node]]
"""Nodes of libcst in the sources, each with its file."""


@dataclass(frozen=True)
class Program:
    """``sources``: the Python files of the program, first the one that its ``command`` line runs.
    ``facts``: what its recording shows. ``files``: those from which it reads its settings.
    """

    sources: Sequence[SourceFile]
    command: Sequence[str]
    facts: ProgramFacts
    files: Sequence[SettingsFile] = ()

    def file(self, name: str) -> SourceFile | SettingsFile:
        """The source or the settings file of that name."""
        files: list[SourceFile | SettingsFile] = [*self.sources, *self.files]
        return next(file for file in files if file.name == name)

    def find(self, kind: type[Node]) -> Located[Node]:
        """The nodes of a kind in all sources, each with its source."""
        for source in self.sources:
            for node in source.find(kind):
                yield source, node

    def calls(self, *names: str) -> Located[cst.Call]:
        """Calls of functions or methods with these names in all sources, each with its source."""
        for source, call in self.find(cst.Call):
            if called(call) in names:
                yield source, call

    def classes_of(self, name: str) -> set[str]:
        """The classes of which a name may be an object: of ``self.head = Sequential(Linear(4, 2))``
        Sequential and Linear. A class is what has a capital letter first.
        """
        classes: set[str] = set()
        for source, assign in self.find(cst.Assign):
            if source.target(assign) == name:
                names = source.names_called(assign.value)
                classes |= {name for name in names if name[:1].isupper()}
        return classes

    @property
    def functions(self) -> set[str]:
        """The functions and methods that its sources define."""
        return {function.name.value for _, function in self.find(cst.FunctionDef)}

    @property
    def classes(self) -> set[str]:
        """The classes that its sources define."""
        return {owner.name.value for _, owner in self.find(cst.ClassDef)}

    def is_module(self, name: str) -> bool:
        """Whether a name stands for a module of torch: an object of a class is assigned to it, or a
        method of modules is called on it.
        """
        uses = rf"(?<![\w.]){re.escape(name)}\.(?:parameters|train|eval|state_dict)\("
        return self.mentions(uses) or bool(self.classes_of(name))

    def mentions(self, pattern: str | re.Pattern[str]) -> bool:
        """Whether a pattern is found in one of its sources."""
        return any(re.search(pattern, source.content) for source in self.sources)

    def places(self, frames: Sequence[str]) -> Iterator[tuple[SourceFile, int]]:
        """The file and line of each frame such as "train.py:36 evaluate"; frames of files that are
        no source of the program are left out.
        """
        for frame in frames:
            for source in self.sources:
                line = source.line_of(frame)
                if line:
                    yield source, line
                    break

    def statements_at(self, frames: Sequence[str]) -> Located[cst.SimpleStatementLine]:
        """The simple statements on the lines of such frames, each with its source."""
        for source, line in self.places(frames):
            for statement in source.statements_at(line):
                yield source, statement

    def holding_places(self) -> Iterator[tuple[SourceFile, int]]:
        """The lines that hold most of the memory, and those that led to the refused request."""
        return self.places(holding_frames(self.facts))

    def names_of_holding_places(self) -> set[str]:
        """Those lines as text, such as train.py:36."""
        return {source.place_of(line) for source, line in self.holding_places()}

    @property
    def times_too_large(self) -> float:
        """By how many times the program needs more memory than it can use; 1 where that is not
        known, or where it needs no more.
        """
        facts = self.facts
        if facts.refusal is None or not facts.usable_bytes:
            return 1.0
        return max(1.0, needed_bytes(facts, facts.refusal) / facts.usable_bytes)

    @property
    def trains(self) -> bool:
        """Whether its sources compute gradients, by themselves or through a trainer."""
        return any(self.calls("backward", "fit", "train"))


def holding_frames(facts: ProgramFacts) -> list[str]:
    """The frames of what holds most of the memory, and those that led to the refused request."""
    frames = [row.line for row in facts.holding]
    if facts.refusal is not None:
        frames += [facts.refusal.where, *facts.refusal.callers]
    return frames


def changed_files(program: Program, change: Change) -> dict[str, bytes]:
    """The files that a change touches, by name, as they are with it."""
    edits: dict[str, list[TextEdit]] = {}
    for edit in change.edits:
        edits.setdefault(edit.name, []).append(edit)
    return {name: program.file(name).edited(rows) for name, rows in edits.items()}


@contextmanager
def changed_copy(
    program: Program, change: Change, folder: Path
) -> Iterator[tuple[Path, list[str]]]:
    """A copy of the program's folder with a change made, and the command that runs it there."""
    with copied(folder) as copy:
        for name, text in changed_files(program, change).items():
            (copy / name).write_bytes(text)
        yield copy, in_copy(changed_command(program, change), folder, copy)


def changed_command(program: Program, change: Change) -> list[str]:
    """The program's command line with what the change puts into it."""
    return [change.replaces.get(at, word) for at, word in enumerate(program.command)]
