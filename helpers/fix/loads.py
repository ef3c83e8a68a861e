"""Changes of copies of weights that need not be on the card, and of memory that the cache or a CUDA
graph holds while another needs it.
"""

from __future__ import annotations

import re

import libcst as cst

from helpers.fix.change import Change, Changes, Results
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called, keyword

SAME_VALUES = "a copy on the CPU has the same values"
UPDATED_THERE = (
    "the copy has the same values, but its updates may round differently on the CPU"
)
STARTERS = re.compile(r"(subprocess|mp|os|torch\.multiprocessing|multiprocessing)\b")
"""Modules that start a process, as programs name them."""
CHILDREN = (
    "run",
    "Popen",
    "call",
    "check_call",
    "check_output",
    "spawn",
    "start_processes",
    "system",
)
"""Functions of these modules that start one."""


def changes_of_loads(program: Program) -> Changes:
    """Checkpoints loaded to the CPU where the call does not say where to, and copies of a model or
    of its state kept there.
    """
    holding = program.names_of_holding_places()
    for source, call in program.calls("load"):
        loads = source.code(call.func) == "torch.load" and call.args
        # Without a refused request several processes fill the card together: then it is not known
        # which lines hold its memory, and each load may.
        may_hold = program.facts.refusal is None or source.place(call) in holding
        if loads and may_hold and not keyword(call, "map_location"):
            yield Change(
                title=f"Load the checkpoint to the CPU ({source.place(call)})",
                results=Results.SAME,
                why="whatever loads it copies it to its own device",
                costs="RAM for the checkpoint for as long as the program keeps it",
                edits=(source.with_argument(call, "map_location", '"cpu"'),),
                only_on_a_gpu=True,
            )
    for source, call in program.calls("deepcopy"):
        yield from state_on_the_cpu(source, call)
        if not source.calls("state_dict", below=call):
            yield Change(
                title=f"Keep the copy on the CPU ({source.place(call)})",
                results=Results.ROUNDED,
                why=UPDATED_THERE,
                costs="RAM for the copy, and a transfer whenever it is updated",
                edits=(source.after(call, ".cpu()"),),
                only_on_a_gpu=True,
            )
    yield from _saved_states(program)


def state_on_the_cpu(source: SourceFile, call: cst.Call) -> Changes:
    """``copy.deepcopy(model.state_dict())`` as a dictionary of copies on the CPU. Nothing where
    what ``call`` copies is not the result of ``state_dict()``.
    """
    state = call.args[0].value
    if not isinstance(state, cst.Call) or called(state) != "state_dict":
        return
    copies = f'name: value.to("cpu", copy=True) for name, value in {source.code(state)}.items()'
    yield Change(
        title=f"Keep the copied state on the CPU ({source.place(call)})",
        results=Results.SAME,
        why=SAME_VALUES,
        costs="RAM for the copy, and a transfer whenever it is made or loaded",
        edits=(source.replaced(call, f"{{{copies}}}"),),
        only_on_a_gpu=True,
    )


def _saved_states(program: Program) -> Changes:
    """``{name: value.clone() for name, value in model.state_dict().items()}``, cloned on the CPU."""
    for source, copies in program.find(cst.DictComp):
        text = source.code(copies)
        if "state_dict()" in text and ".cpu()" not in text:
            value = re.sub(r"\.clone\(\)$", "", source.code(copies.value))
            yield Change(
                title=f"Keep the saved state on the CPU ({source.place(copies)})",
                results=Results.SAME,
                why=SAME_VALUES,
                costs="RAM for the copy, and a transfer whenever it is saved",
                edits=(source.replaced(copies.value, f"{value}.cpu().clone()"),),
                only_on_a_gpu=True,
            )


def emptied_before_children(program: Program) -> Changes:
    """The allocator's cache given back to the driver before another process starts."""
    for source, call in program.calls(*CHILDREN):
        if STARTERS.match(source.code(call.func)):
            statement = source.statement(call)
            edit = source.lines_before(statement, "torch.cuda.empty_cache()")
            yield Change(
                title=f"Empty the cache before the other process starts ({source.place(call)})",
                results=Results.SAME,
                why="nothing in the cache is in use",
                costs="later requests have to ask the driver again",
                edits=(edit,),
            )


def one_pool_for_graphs(program: Program) -> Changes:
    """CUDA graphs captured into one memory pool. Without ``pool`` torch gives each graph a pool of
    its own, which nothing else can use.
    """
    for source, call in program.calls("graph"):
        # The pool is made below the imports, which bring ``torch``.
        if source.code(call.func) != "torch.cuda.graph" or not source.imports:
            continue
        edit = source.lines_after(
            source.imports[-1], "", "GRAPH_POOL = torch.cuda.graph_pool_handle()"
        )
        yield Change(
            title=f"Capture all CUDA graphs into one memory pool ({source.place(call)})",
            results=Results.SAME,
            why="unless what one graph returned is read after another was replayed",
            costs="a graph that is replayed may overwrite what another returned",
            edits=(edit, source.with_argument(call, "pool", "GRAPH_POOL")),
            only_if_measured=True,
        )
