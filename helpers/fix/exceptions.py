"""Exceptions that a program keeps: each holds the frames that it came through, and their tensors."""

from __future__ import annotations

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called
from helpers.fix.stores import PUTS

PARTS = (cst.Arg, cst.Assign, cst.DictElement, cst.Element)
"""What a name is directly a part of where it stands for the whole exception: ``log(error)``, and
not ``error.args``.
"""


def exceptions_without_frames(program: Program) -> Changes:
    """One change of all exceptions that their handlers keep: they are kept without their
    tracebacks. Handlers that raise are left as they are: whoever catches the exception next may
    print its traceback.
    """
    edits: list[TextEdit] = []
    places = []
    raises_again = _raises_in_handlers(program)
    for source, handler in program.find(cst.ExceptHandler):
        if handler.name is None or source.find(cst.Raise, handler):
            continue
        error = source.code(handler.name.name)
        names = source.find(cst.Name, handler.body)
        kept = [name for name in names if _keeps(source, name, error)]
        if not kept:
            continue
        places.append(source.place(kept[0]))
        for name in kept:
            edits.append(source.replaced(name, f"{error}.with_traceback(None)"))
        if raises_again:
            # An exception keeps the one during whose handling it was raised.
            without_causes = f"{error}.__cause__ = {error}.__context__ = None"
            edits.append(source.lines_before(source.statement(kept[0]), without_causes))
    if edits:
        yield Change(
            title=f"Keep the exceptions without their tracebacks ({', '.join(places)})",
            results=Results.SAME,
            why="type and text of the exceptions stay",
            costs="a kept exception no longer says on which line it was raised",
            edits=tuple(edits),
        )


def _raises_in_handlers(program: Program) -> bool:
    """Whether the sources raise an exception while they handle another, which it then keeps."""
    raised = program.find(cst.Raise)
    return any(source.around(error, cst.ExceptHandler) for source, error in raised)


def _keeps(source: SourceFile, name: cst.Name, error: str) -> bool:
    """Whether a handler stores its exception, called ``error``, at this name: it puts it into a
    collection, or assigns it.
    """
    call = source.around(name, cst.Call)
    is_put = call is not None and called(call) in PUTS
    # Below a call the name is an argument: ``text = str(error)`` keeps no exception.
    is_assigned = call is None and source.around(name, cst.Assign) is not None
    stands_alone = isinstance(source.parent(name), PARTS)
    return name.value == error and stands_alone and (is_put or is_assigned)
