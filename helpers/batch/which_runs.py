"""Which boxes the runs of a batch are about, and what tells repeated runs apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from .shapes import Run

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


def boxes_of(runs: Iterable[Run]) -> list[str]:
    """The boxes that runs are about, each once; not one on which only the closing report ran."""
    every = list(runs)
    looked_at = [run for run in every if not run.reads_batch] or every
    return list(dict.fromkeys(run.box for run in looked_at))


def swept(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Of each run the parameters that differ from other runs of its notebook on its box."""
    apart: dict[int, tuple[str, ...]] = {}
    for _, numbers in grouped(
        range(len(runs)), lambda at: (runs[at].notebook, runs[at].box)
    ):
        alike = [runs[at] for at in numbers]
        apart.update((at, _differing(runs[at], alike)) for at in numbers)
    return [apart[at] for at in range(len(runs))]


def differences(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """What tells each run from the others of its notebook on its box: the parameters that differ,
    and, if another run has the same parameters, its number among these.
    """
    parameters = swept(runs)
    keys = [
        (run.notebook, run.box, parts)
        for run, parts in zip(runs, parameters, strict=True)
    ]
    counts = Counter(keys)
    so_far: Counter[object] = Counter()
    apart = []
    for key in keys:
        so_far[key] += 1
        which = f"run {so_far[key]} of {counts[key]}"
        parts = key[2]
        if counts[key] > 1:
            parts = (*parts, which)
        apart.append(parts)
    return apart


def _differing(run: Run, alike: Sequence[Run]) -> tuple[str, ...]:
    """The parameters of a run that are not the same in all of these runs, each as a text."""
    values = _all_parameters(run)
    others = [_all_parameters(other) for other in alike]
    names = [
        name
        for name, value in values.items()
        if "{batch}" not in str(value)
        and len({str(other.get(name)) for other in others}) > 1
    ]
    return tuple(
        f"no {name}" if values[name] == "" else f"{name}={values[name]}"
        for name in names
    )


def _all_parameters(run: Run) -> dict[str, object]:
    return {**run.parameters, "preset": run.preset, "gpu": run.gpu}


def grouped(
    items: Iterable[Item], key: Callable[[Item], Key]
) -> list[tuple[Key, tuple[Item, ...]]]:
    """Items under their key, both in order of first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [(name, tuple(members)) for name, members in groups.items()]
