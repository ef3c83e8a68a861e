"""Which remedies are there, and which of them are for a box?

The one table is env/remedies.yaml. Reading it needs PyYAML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from helpers.ground.child import CHECKOUT
from helpers.settings.presets import Preset, load
from helpers.trials.fixplan import Arm, Pair
from helpers.trials.workload import BUILT_IN, Parameter, Workload, workload

PATH = CHECKOUT / "env" / "remedies.yaml"
NO_GPU = "not available because this box has no GPU"
VENDORS = {"cuda": "CUDA", "rocm": "ROCm"}
"""What a build is called."""


@dataclass(frozen=True)
class Remedy:
    """One remedy, as env/remedies.yaml has it; its head explains the fields."""

    id: str
    says: str
    how: str
    workload: str = ""
    control: Mapping[str, Parameter] = field(default_factory=dict)
    change: Mapping[str, Parameter] = field(default_factory=dict)
    preset: str = ""
    goal: str = "memory"
    answer: str = ""
    needs: str = ""
    kind: str = ""
    verdict: str = ""
    why: str = ""
    unrehearsed: str = ""
    claims: tuple[str, ...] = ()
    work: Workload | None = None

    def pair(self) -> Pair:
        """The trials that decide it: the workload (or ``work``) without it, and with it.

        Raises ValueError where there is none.
        """
        preset = load(self.preset)
        seconds = 10.0 if self.work else BUILT_IN[self.workload].seconds
        control = self.work or workload(self.workload, **self.control)
        treated = self.work or workload(
            self.workload, **{**self.control, **self.change}
        )
        name = treated.words
        if preset.environ:
            name += f" under {preset.name}"
        with_it = Arm(name, treated, preset, seconds)
        without = Arm(control.words, control, seconds=seconds)
        return Pair(self.id, without, with_it, self.goal, self.answer)


@cache
def remedies() -> tuple[Remedy, ...]:
    """Every remedy, in the order of the file."""
    import yaml

    rows = yaml.safe_load(PATH.read_text(encoding="utf-8"))["remedies"]
    return tuple(Remedy(**{**row, "claims": tuple(row["claims"])}) for row in rows)


def chosen(names: Sequence[str]) -> tuple[Remedy, ...]:
    """The remedies named, or all where none is. Raises ValueError for one that does not exist."""
    by_name = {remedy.id: remedy for remedy in remedies()}
    for name in names:
        if name not in by_name:
            raise ValueError(f"remedy {name!r}: expected some of {', '.join(by_name)}")
    return tuple(by_name[name] for name in names or by_name)


def elsewhere(remedy: Remedy, build: str, kinds: Sequence[str]) -> str:
    """The other boxes that a remedy is for; empty if it is for this box, whose torch is of this
    ``build``, and which is of these ``kinds``.
    """
    if remedy.needs and remedy.needs not in kinds:
        return "boxes with a GPU" if remedy.needs == "gpu" else "boxes without a GPU"
    other_vendor = _other_vendor(load(remedy.preset), build)
    if other_vendor:
        return other_vendor
    return "" if remedy.kind in kinds else remedy.kind


def not_for(preset: Preset, build: str) -> str:
    """Why a preset is not for boxes of that ``build``: it is for the other vendor alone. Empty if
    it is for them.
    """
    other = _other_vendor(preset, build)
    if not other:
        return ""
    return f"not for this box because it is for {other}, and this is {VENDORS[build]}"


def _other_vendor(preset: Preset, build: str) -> str:
    """The vendor whose builds alone a preset is for, unless it is this build's."""
    only = preset.fields.get("only", "")
    if build not in VENDORS or only == build:
        return ""
    return VENDORS.get(only, "")


def pairs(
    wanted: Sequence[Remedy], *, gpu: bool, build: str = ""
) -> tuple[list[Pair], dict[str, str]]:
    """The remedies that a trial on this box can decide, each beside its control, and why the
    others are not tried.

    ``build`` (cuda, rocm): presets for the other vendor are not tried.
    """
    listed = []
    not_tried = {}
    for remedy in wanted:
        why = _why_untried(remedy, gpu, build)
        if why:
            not_tried[remedy.id] = why
        else:
            listed.append(remedy.pair())
    return listed, not_tried


def _why_untried(remedy: Remedy, gpu: bool, build: str) -> str:
    """Why no trial on such a box decides a remedy, or empty."""
    if remedy.how == "argued":
        return "no trial decides it"
    if not gpu and (remedy.needs == "gpu" or remedy.how == "predicted"):
        return NO_GPU
    if gpu and remedy.needs == "cpu":
        return "not tried because it is for boxes without a GPU"
    return not_for(load(remedy.preset), build)
