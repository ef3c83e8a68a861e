"""Several ranks of one program: each on its own card."""

from __future__ import annotations

import re

import libcst as cst

from helpers.fix.change import Change, Changes, Results
from helpers.fix.program import Program
from helpers.fix.source import SourceFile

RANK = 'int(os.environ["LOCAL_RANK"])'
"""The number of a rank on its machine, as torchrun sets it."""
DISTRIBUTED = re.compile(r"init_process_group|LOCAL_RANK|local_rank")
"""Words of a file that runs as one of several ranks."""
FIRST_CARD = re.compile(r"""["']cuda:0["']""")
WHY = "each rank computes what it did, on a card of its own"


def one_device_a_rank(program: Program) -> Changes:
    """torch.cuda.set_device where a file calls it nowhere, and the card of the rank where a file
    names card 0 for all ranks.
    """
    for source in program.sources:
        if DISTRIBUTED.search(source.content):
            yield from _set_device(source)
            yield from _named_first(source)


def _set_device(source: SourceFile) -> Changes:
    """set_device after init_process_group, where the file has none."""
    if source.calls("set_device"):
        return
    for call in source.calls("init_process_group"):
        statement = source.statement(call)
        line = source.lines_after(statement, f"torch.cuda.set_device({RANK})")
        yield Change(
            title=f"Give each rank its own card ({source.place(call)})",
            results=Results.SAME,
            why=WHY,
            edits=(*source.with_import("import os"), line),
        )


def _named_first(source: SourceFile) -> Changes:
    """One change of all places in a file that name card 0: the card of the rank in its stead."""
    edits = []
    places: list[cst.CSTNode] = []
    for string in source.find(cst.SimpleString):
        if FIRST_CARD.fullmatch(source.code(string)):
            card = "f\"cuda:{os.environ['LOCAL_RANK']}\""
            edits.append(source.replaced(string, card))
            places.append(string)
    for call in source.calls("cuda", "set_device", "device"):
        if len(call.args) == 1 and source.code(call.args[0].value) == "0":
            edits.append(source.replaced(call.args[0].value, RANK))
            places.append(call)
    if edits:
        yield Change(
            title=f"Use the card of the rank, not card 0 ({source.place(places[0])})",
            results=Results.SAME,
            why=WHY,
            edits=(*edits, *source.with_import("import os")),
        )
