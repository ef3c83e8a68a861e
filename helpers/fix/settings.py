"""The allocator's settings: one variable, or the line of the program that should set it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile

ALIKE = "the allocator only places the same requests elsewhere"
EXPANDABLE = "expandable_segments:True"


def changes_of_settings(program: Program) -> Iterator[Change]:
    """Expandable segments, and the setting under which the recorded requests pass, if any does."""
    yield from _corrected(program)
    replays = program.facts.replays
    if replays is None or not replays.passes_with:
        return
    repeat = program.facts.expandable
    fails_again = repeat is not None and not (repeat.fits or repeat.stopped)
    for conf in dict.fromkeys((EXPANDABLE, replays.passes_with)):
        if conf == EXPANDABLE and fails_again:
            continue
        yield Change(
            title=f"Set {program.facts.conf_variable}={conf}",
            results=Results.SAME,
            why=ALIKE,
            environment={program.facts.conf_variable: conf},
        )


def _corrected(program: Program) -> Iterator[Change]:
    """The program's own setting as it was meant, before torch is imported."""
    trouble = program.facts.settings
    if trouble is None:
        return
    variable, _, meant = trouble.instead.partition("=")
    if not trouble.where and meant:
        yield Change(
            title=f"Set {trouble.instead} in the place of {trouble.value}",
            results=Results.SAME,
            why=ALIKE,
            environment={variable: meant},
        )
    meant = meant or trouble.value
    for source, line in program.places([trouble.where]):
        for statement in source.statements_at(line):
            strings = [
                node
                for node in source.find(cst.SimpleString, statement)
                if trouble.value and trouble.value in source.code(node)
            ]
            edits = [
                source.replaced(node, source.code(node).replace(trouble.value, meant))
                for node in strings
            ]
            edits += [
                source.replaced(
                    node, source.code(node).replace(trouble.variable, variable)
                )
                for node in source.find(cst.SimpleString, statement)
                if variable and source.code(node).strip("'\"") == trouble.variable
            ]
            if trouble.kind == "late":
                edits = list(_moved_up(source, statement))
            if edits:
                yield Change(
                    title=f"Set {trouble.variable} as it was meant ({source.place(statement)})",
                    results=Results.SAME,
                    why=ALIKE,
                    edits=tuple(edits),
                    only_on_a_gpu=True,
                )


def _moved_up(
    source: SourceFile, statement: cst.SimpleStatementLine
) -> Iterator[TextEdit]:
    """A statement moved before the first import of torch."""
    for other in source.module.body:
        text = source.code(other)
        if isinstance(other, cst.SimpleStatementLine) and text.startswith(
            ("import torch", "from torch")
        ):
            before, _, _ = source.text.decode().partition(text)
            imports = [] if "import os" in before else ["import os"]
            yield source.lines_before(other, *imports, source.code(statement))
            yield source.without(statement)
            return
