"""Exceptions that a program keeps: each holds the frames that it came through, and their tensors."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called
from helpers.fix.stores import PUTS

PARTS = (cst.Arg, cst.Assign, cst.DictElement, cst.Element)
"""Where a name stands for the exception itself, and not for what is asked of it."""


def exceptions_without_frames(program: Program) -> Iterator[Change]:
    """Exceptions that their handlers keep, without their tracebacks."""
    edits: list[TextEdit] = []
    places = []
    raises_again = bool(_raised_in_handlers(program))
    for source, handler in program.find(cst.ExceptHandler):
        if handler.name is None or source.find(cst.Raise, handler):
            continue
        error = source.code(handler.name.name)
        kept = [
            name
            for name in source.find(cst.Name, handler.body)
            if _keeps(source, name, error)
        ]
        if not kept:
            continue
        places.append(source.place(kept[0]))
        edits += [
            source.replaced(name, f"{error}.with_traceback(None)") for name in kept
        ]
        if raises_again:
            earlier = f"{error}.__cause__ = {error}.__context__ = None"
            edits.append(source.lines_before(source.statement(kept[0]), earlier))
    if edits:
        yield Change(
            title=f"Keep the exceptions without their tracebacks ({', '.join(places)})",
            results=Results.SAME,
            why="type and text of the exceptions stay",
            costs="a kept exception no longer says on which line it was raised",
            edits=tuple(edits),
        )


def _raised_in_handlers(program: Program) -> list[cst.Raise]:
    """Exceptions that are raised while another is handled, and so refer to it."""
    return [
        error
        for source, error in program.find(cst.Raise)
        if source.around(error, cst.ExceptHandler) is not None
    ]


def _keeps(source: SourceFile, name: cst.Name, error: str) -> bool:
    """Whether an exception's handler puts it away, or assigns it, where its name is written."""
    call = source.around(name, cst.Call)
    is_put = call is not None and called(call) in PUTS
    is_assigned = call is None and source.around(name, cst.Assign) is not None
    stands_alone = isinstance(source.parent(name), PARTS)
    return name.value == error and stands_alone and (is_put or is_assigned)
