"""Which changes are worth a try for a cause, and in which order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace

from helpers.fix.activations import activations_in_ram, changes_of_activations
from helpers.fix.arguments import (
    results_changed_by_arguments,
    results_kept_by_arguments,
)
from helpers.fix.batches import evaluation_in_chunks, micro_batches
from helpers.fix.change import Change, Changes, TextEdit
from helpers.fix.files import misspelt_settings
from helpers.fix.graphs import frozen_parts
from helpers.fix.kept import changes_of_what_is_kept
from helpers.fix.loads import (
    changes_of_loads,
    emptied_before_children,
    one_pool_for_graphs,
)
from helpers.fix.losses import cross_entropy_in_parts
from helpers.fix.optimizers import smaller_states, steps_one_by_one
from helpers.fix.precision import changes_of_precision
from helpers.fix.program import Program
from helpers.fix.ranks import one_device_a_rank
from helpers.fix.regions import fails_in_evaluation, fails_in_step
from helpers.fix.rewrites import rewritten_expressions
from helpers.fix.settings import changes_of_settings
from helpers.fix.sizes import smaller_batches, smaller_portions

Proposals = Callable[[Program], Changes]
"""A rule: it proposes changes of a program."""
FITTING: dict[str, tuple[Proposals, ...]] = {
    "user-leak": (changes_of_what_is_kept,),
    "true-capacity": (changes_of_what_is_kept,),
    "allocator-fragmentation": (changes_of_settings, changes_of_what_is_kept),
    "config-ineffective": (
        changes_of_settings,
        misspelt_settings,
        results_kept_by_arguments,
    ),
    "allocator-cache-not-returned": (emptied_before_children, changes_of_settings),
    "multi-gpu-imbalance": (one_device_a_rank, changes_of_loads),
}
"""By the label of a verdict, what removes that cause: it is tried before SMALLER."""
SMALLER: tuple[Proposals, ...] = (
    misspelt_settings,
    one_device_a_rank,
    changes_of_loads,
    one_pool_for_graphs,
    rewritten_expressions,
    frozen_parts,
    smaller_portions,
    evaluation_in_chunks,
    changes_of_activations,
    results_kept_by_arguments,
    cross_entropy_in_parts,
    micro_batches,
    steps_one_by_one,
    activations_in_ram,
    changes_of_settings,
)
"""What makes room with the same results, up to rounding."""
ONLY_TRAINING: tuple[Proposals, ...] = (
    frozen_parts,
    cross_entropy_in_parts,
    micro_batches,
    steps_one_by_one,
    activations_in_ram,
    smaller_states,
)
"""What makes no room where the card is too small for an evaluation."""
ONLY_PASSES: tuple[Proposals, ...] = (
    rewritten_expressions,
    smaller_portions,
    evaluation_in_chunks,
    frozen_parts,
    changes_of_activations,
    cross_entropy_in_parts,
    activations_in_ram,
    micro_batches,
    smaller_batches,
)
"""What makes no room where the card is too small for weights, gradients and the optimizer's
states.
"""
OTHER_RESULTS: tuple[Proposals, ...] = (
    results_changed_by_arguments,
    changes_of_precision,
    smaller_states,
    smaller_batches,
)
"""What makes room by training differently: tried last, those first that keep the batch."""

USES_TORCH = re.compile(r"^(?!\s*(?:from|import)\b).*\btorch\.", re.MULTILINE)
"""A line of a change that reads the name ``torch``; imports name it and do not read it."""


def candidates(program: Program, cause: str) -> Changes:
    """Changes to try, each once: first those that remove the cause and keep the results, last those
    that train differently.

    ``cause``: the label of the verdict. Rules that make no room where the program fails are left
    out. Changes that other rules proposed, but that train differently, wait with the last.
    """
    seen: set[object] = set()  # what changes do; two rules may propose the same edits
    in_vain: tuple[Proposals, ...] = ()
    if fails_in_evaluation(program):
        in_vain = ONLY_TRAINING
    elif fails_in_step(program):
        in_vain = ONLY_PASSES
    proposals = [*FITTING.get(cause, ()), *SMALLER, *OTHER_RESULTS]
    proposals = [propose for propose in proposals if propose not in in_vain]
    late = []
    for propose in proposals:
        for change in _proposed(propose, program):
            environment = tuple(change.environment.items())
            does = (change.edits, environment, tuple(change.replaces.items()))
            if does in seen or change.is_empty:
                continue
            seen.add(does)
            change = _with_torch_imported(program, change)
            if change.comes_late or propose in OTHER_RESULTS:
                late.append(change)
            else:
                yield change
    yield from late


def _proposed(propose: Proposals, program: Program) -> Changes:
    """What a rule proposes. Programs are written in any way: where a rule cannot read this one, a
    line on stderr says so, and the other rules go on.
    """
    try:
        yield from propose(program)
    except Exception as error:  # noqa: BLE001 - the other rules still apply
        complaint = f"{propose.__name__} could not read this program: {type(error).__name__}: {error}"
        print(f"casebook: {complaint}", file=sys.stderr)


def _with_torch_imported(program: Program, change: Change) -> Change:
    """A change that also imports torch, into each file whose new lines use it and that does not
    import it yet.
    """
    imports: list[TextEdit] = []
    for source in program.sources:
        texts = [edit.text for edit in change.edits if edit.name == source.name]
        uses_torch = any(USES_TORCH.search(text) for text in texts)
        if uses_torch and not source.imports_torch:
            imports += source.with_import("import torch")
    return replace(change, edits=(*change.edits, *imports))
