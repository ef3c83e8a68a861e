"""Which boxes the runs of a batch are about, and which parameters tell runs apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from .shapes import Run

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


def boxes_of(runs: Iterable[Run]) -> list[str]:
    """The boxes that runs are about, each once.

    A closing report reads the records of other runs and says nothing new about a box. A box on
    which only closing reports ran is left out, unless all runs are closing reports.
    """
    every = list(runs)
    looked_at = [run for run in every if not run.reads_batch] or every
    return list(dict.fromkeys(run.box for run in looked_at))


def swept(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """For each run the parameters whose values differ among the runs of its notebook on its box,
    such as ("reserve=8GiB",).
    """
    groups = grouped(runs, attrgetter("notebook", "box"))
    differing = {key: _differing(alike) for key, alike in groups}
    return [_in_words(run, differing[run.notebook, run.box]) for run in runs]


def differences(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """For each run what tells it from the other runs of its notebook on its box: the parameters
    that differ (``swept``), and a number such as "run 2 of 3" if others have the same parameters.
    """
    keys = [
        (run.notebook, run.box, parameters)
        for run, parameters in zip(runs, swept(runs), strict=True)
    ]
    counts = Counter(keys)
    so_far: Counter[object] = Counter()
    apart = []
    for key in keys:
        so_far[key] += 1
        _, _, parts = key
        if counts[key] > 1:
            parts = (*parts, f"run {so_far[key]} of {counts[key]}")
        apart.append(parts)
    return apart


def _differing(runs: Sequence[Run]) -> set[str]:
    """The names of the parameters that do not have the same value in all of these runs."""
    parameters = [_all_parameters(run) for run in runs]
    names = set[str]().union(*parameters)
    differing = set()
    for name in names:
        values = {str(of_run.get(name)) for of_run in parameters}
        if len(values) > 1:
            differing.add(name)
    return differing


def _in_words(run: Run, names: set[str]) -> tuple[str, ...]:
    """These parameters of a run, each as a text, in the order of its record: "no preset" for an
    empty value, else "preset=NAME". One that names the batch's folder says nothing, and is left
    out.
    """
    parts = []
    for name, value in _all_parameters(run).items():
        is_batch_folder = "{batch}" in str(value)
        if name not in names or is_batch_folder:
            continue
        if value == "":
            parts.append(f"no {name}")
        else:
            parts.append(f"{name}={value}")
    return tuple(parts)


def _all_parameters(run: Run) -> dict[str, object]:
    """The parameters of a run, with its preset and GPU."""
    return {**run.parameters, "preset": run.preset, "gpu": run.gpu}


def grouped(
    items: Iterable[Item], key: Callable[[Item], Key]
) -> list[tuple[Key, tuple[Item, ...]]]:
    """(key, the items with this key), in order of first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [(name, tuple(members)) for name, members in groups.items()]
