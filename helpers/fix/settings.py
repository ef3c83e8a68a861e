"""The allocator's settings: one variable, or the line of the program that should set it."""

from __future__ import annotations

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile
from helpers.settings.trouble import SettingsTrouble

ALIKE = "the allocator only places the same requests elsewhere"
"""Why no setting of the allocator changes the results."""
EXPANDABLE = "expandable_segments:True"


def changes_of_settings(program: Program) -> Changes:
    """The program's own setting corrected. Then, if the recorded requests pass in a replay under
    some setting: expandable segments, unless a rehearsal failed with them, and that setting.
    """
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


def _corrected(program: Program) -> Changes:
    """The program's own setting of the allocator, which torch refused or did not read, as it was
    meant: on the command line, or at the line that sets it.
    """
    trouble = program.facts.settings
    if trouble is None:
        return
    variable, _, meant = trouble.instead.partition("=")
    # No line of the program sets it, so it came with the environment.
    if not trouble.where and meant:
        yield Change(
            title=f"Set {trouble.instead} in the place of {trouble.value}",
            results=Results.SAME,
            why=ALIKE,
            environment={variable: meant},
        )
    for source, statement in program.statements_at([trouble.where]):
        edits = _reworded(source, statement, trouble)
        if trouble.kind == "late":  # set after torch had read it
            edits = _moved_up(source, statement)
        if edits:
            yield Change(
                title=f"Set {trouble.variable} as it was meant ({source.place(statement)})",
                results=Results.SAME,
                why=ALIKE,
                edits=tuple(edits),
                only_on_a_gpu=True,
            )


def _reworded(
    source: SourceFile, statement: cst.SimpleStatementLine, trouble: SettingsTrouble
) -> list[TextEdit]:
    """A statement that sets the allocator, with the variable and the value that were meant."""
    variable, _, meant = trouble.instead.partition("=")
    edits = []
    for string in source.find(cst.SimpleString, statement):
        text = source.code(string)
        # The value was wrong, or else the name of the variable.
        if meant and trouble.value and trouble.value in text:
            edits.append(source.replaced(string, text.replace(trouble.value, meant)))
        elif variable and text.strip("'\"") == trouble.variable:
            text = text.replace(trouble.variable, variable)
            edits.append(source.replaced(string, text))
    return edits


def _moved_up(source: SourceFile, statement: cst.SimpleStatementLine) -> list[TextEdit]:
    """A statement moved before the first import of torch; nothing where torch is not imported."""
    for other in source.module.body:
        text = source.code(other)
        if not isinstance(other, cst.SimpleStatementLine):
            continue
        if text.startswith(("import torch", "from torch")):
            lines = [source.code(statement)]
            before, _, _ = source.content.partition(text)
            if "import os" not in before:  # os.environ is what the statement sets
                lines.insert(0, "import os")
            return [source.lines_before(other, *lines), source.without(statement)]
    return []
