"""Smaller numbers: bfloat16 in place of float32."""

from __future__ import annotations

import re

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.regions import forward_regions

AUTOCAST = 'with torch.autocast("cuda", dtype=torch.bfloat16):'
OTHER_NUMBERS = "bfloat16 has 8 bits of precision"
"""Why results differ in bfloat16; float32 has 24."""
HALF = re.compile(r"""['"](bfloat16|bf16)['"]""")
"""bfloat16 as a choice of an option, with its quotes."""


def changes_of_precision(program: Program) -> Changes:
    """The program's own option for bfloat16, and autocast around its forward passes."""
    yield from _own_switch(program)
    for region in forward_regions(program):
        source = region.source
        if "autocast" not in source.content:
            edit = source.within(region.first, region.last, AUTOCAST)
            title = f"Compute the forward pass in bfloat16 ({region.place})"
            yield _in_bfloat16(title, edit)


def _own_switch(program: Program) -> Changes:
    """An option of the program whose choices include bfloat16: that becomes its default."""
    for source, call in program.calls("add_argument"):
        half = HALF.search(source.argument(call, "choices"))
        default = source.argument(call, "default")
        if half is None or not default or half[0] in default:
            continue
        title = f"Choose {half[1]} ({source.place(call)})"
        yield _in_bfloat16(title, source.with_argument(call, "default", half[0]))


def _in_bfloat16(title: str, edit: TextEdit) -> Change:
    """An edit after which the program computes in bfloat16."""
    return Change(
        title=title,
        results=Results.OTHER,
        why=OTHER_NUMBERS,
        costs="nothing on a GPU with bfloat16; it is faster",
        edits=(edit,),
    )
