"""Smaller numbers: bfloat16 in place of float32."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Edit, Results
from helpers.fix.program import Program
from helpers.fix.regions import forward_regions
from helpers.fix.source import Source, keyword

AUTOCAST = 'with torch.autocast("cuda", dtype=torch.bfloat16):'
OTHER_NUMBERS = "bfloat16 has 8 bits of precision"
NUMBERED_INPUT = re.compile(r"Embedding|input_ids|tokens|from_pretrained")
"""How a program says that its model gets whole numbers, which need no conversion to bfloat16."""
HALF = re.compile(r"""['"](bfloat16|bf16)['"]""")


def changes_of_precision(program: Program) -> Iterator[Change]:
    """A switch that the program has, autocast around its forward pass, weights in bfloat16."""
    yield from _own_switch(program)
    yield from _weights(program)
    for region in forward_regions(program):
        source = region.source
        if "autocast" not in source.text.decode():
            edit = source.within(region.first, region.last, AUTOCAST)
            yield _in_bfloat16(source, region.first, edit, "Compute the forward pass")


def _own_switch(program: Program) -> Iterator[Change]:
    """An option of the command line whose choices include bfloat16."""
    for source, call in program.calls("add_argument"):
        choices = keyword(call, "choices")
        default = keyword(call, "default")
        half = HALF.search(source.code(choices.value)) if choices else None
        if half is None or default is None or half[0] in source.code(default.value):
            continue
        yield Change(
            title=f"Choose {half[1]} ({source.place(call)})",
            results=Results.OTHER,
            why=OTHER_NUMBERS,
            costs="nothing on a GPU with bfloat16; it is faster",
            edits=(source.replaced(default.value, half[0]),),
        )


def _weights(program: Program) -> Iterator[Change]:
    """Weights that are not trained: of a model that is put into evaluation where it is made, and all of
    them in a program that does not train, if what the model gets may stay as it is.
    """
    for source, call in program.calls("eval"):
        assign = source.around(call, cst.Assign)
        if assign is not None and assign.value is call:
            yield _in_bfloat16(source, call, source.after(call, ".to(torch.bfloat16)"))
    if program.trains or not program.mentions(NUMBERED_INPUT):
        return
    for source, argument in program.find(cst.Arg):
        if re.fullmatch(r"(torch_)?dtype ?= ?torch\.float32,?", source.code(argument)):
            edit = source.replaced(argument.value, "torch.bfloat16")
            yield _in_bfloat16(source, argument, edit)
    for source, call in program.calls("cuda", "to"):
        function = call.func
        model = function.value if isinstance(function, cst.Attribute) else None
        if isinstance(model, cst.Call) and source.code(model.func)[:1].isupper():
            yield _in_bfloat16(source, call, source.after(model, ".to(torch.bfloat16)"))


def _in_bfloat16(
    source: Source, node: cst.CSTNode, edit: Edit, aim: str = "Keep the weights"
) -> Change:
    return Change(
        title=f"{aim} in bfloat16 ({source.place(node)})",
        results=Results.OTHER,
        why=OTHER_NUMBERS,
        costs="nothing on a GPU with bfloat16; it is faster",
        edits=(edit,),
    )
