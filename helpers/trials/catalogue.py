"""The remedies of env/remedies.yaml, and which of them are for a box."""

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
"""The name of a build in sentences."""
DEFAULT_SECONDS = 10.0
"""How long a trial of a user's own workload is taken to last, as nobody has measured it."""


@dataclass(frozen=True)
class Remedy:
    """One remedy. The comment at the head of env/remedies.yaml explains the fields; ``work`` is the
    user's own workload, which no remedy there has.
    """

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
        """The trials that decide it: of the workload without the remedy, and with it.

        Raises ValueError if there is no such workload or preset.
        """
        preset = load(self.preset)
        if self.work:  # the preset alone is the change
            seconds = DEFAULT_SECONDS
            control = treated = self.work
        else:
            seconds = BUILT_IN[self.workload].seconds
            changed = {**self.control, **self.change}
            control = workload(self.workload, **self.control)
            treated = workload(self.workload, **changed)
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
    """The remedies with these names, or all without names. Raises ValueError for an unknown
    name.
    """
    by_name = {remedy.id: remedy for remedy in remedies()}
    for name in names:
        if name not in by_name:
            raise ValueError(f"remedy {name!r}: expected some of {', '.join(by_name)}")
    return tuple(by_name[name] for name in names or by_name)


def elsewhere(remedy: Remedy, build: str, kinds: Sequence[str]) -> str:
    """Which other boxes a remedy is for, in words; empty if it is for a box of these ``kinds`` with
    this ``build`` of torch.

    Asked in this order: does it need a GPU, or the lack of one; is its preset for the other vendor;
    is it for one kind of boxes only (``Remedy.kind``: AMD or APUs).
    """
    if remedy.needs not in ("", *kinds):
        if remedy.needs == "gpu":
            return "boxes with a GPU"
        return "boxes without a GPU"
    other_vendor = _other_vendor(load(remedy.preset), build)
    if other_vendor:
        return other_vendor
    if remedy.kind in kinds:
        return ""
    return remedy.kind  # empty for a remedy of all kinds of boxes


def not_for(preset: Preset, build: str) -> str:
    """Why a preset is not for boxes with this ``build`` of torch, in words: it is for the other
    vendor. Empty if it is for them.
    """
    other = _other_vendor(preset, build)
    if not other:
        return ""
    return f"not for this box because it is for {other}, and this is {VENDORS[build]}"


def _other_vendor(preset: Preset, build: str) -> str:
    """The only vendor that a preset is for, if that is not the vendor of ``build``; else empty."""
    only = preset.fields.get("only", "")
    if build not in VENDORS or only == build:
        return ""
    return VENDORS.get(only, "")


def pairs(
    wanted: Sequence[Remedy], *, gpu: bool, build: str = ""
) -> tuple[list[Pair], dict[str, str]]:
    """(the pairs of trials for the remedies that trials on this box can decide, why the others are
    not tried, by their ids).

    ``gpu`` says whether there is a free one; ``build`` (cuda, rocm) leaves out presets for the
    other vendor.
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
    """Why no trial on such a box decides a remedy, in words; empty if one does."""
    if remedy.how == "argued":
        return "no trial decides it"
    # A remedy that is predicted sets torch's allocator of GPU memory (env/remedies.yaml).
    if not gpu and (remedy.needs == "gpu" or remedy.how == "predicted"):
        return NO_GPU
    if gpu and remedy.needs == "cpu":
        return "not tried because it is for boxes without a GPU"
    return not_for(load(remedy.preset), build)
