"""Which remedies are there, what is each expected to do on a box, and what did it do?

Table, predictions, measurements.

Measured, predicted and argued stay apart: a verdict other than ``predicted`` rests on trials on
this very box, or on what the audit of its settings knows of its build and chip.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.load import read
from helpers.allocator.study import study
from helpers.allocator.trace import Trace
from helpers.allocator.whatif import whatif
from helpers.ground.child import CHECKOUT, OUTPUTS
from helpers.ground.replays import Replay
from helpers.ground.units import parse_size, show_bytes
from helpers.look.bundle import Bundle, is_this_box
from helpers.look.cards import GpuCard, largest_pool
from helpers.look.framework import framework
from helpers.look.gpus import Gpu, gpus
from helpers.settings.presets import Preset, findings, load
from helpers.settings.releases import VersionError
from helpers.settings.table import CONF_NAMES, HOST_NAMES
from helpers.settings.text import SettingsError
from helpers.tell.claims import claims
from helpers.trials import effect, fixplan
from helpers.trials.effect import LEAST, Comparison, Effect, compare
from helpers.trials.fixplan import Arm, FixPlan, Pair, Ran
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.record import TrialRecord
from helpers.trials.targets import CPU, free_targets
from helpers.trials.workload import SECONDS, Workload, workload

PATH = CHECKOUT / "env" / "remedies.yaml"
OUT = OUTPUTS / "trials"
CPU_BYTES = 20 << 30
RECORDED_RUNS = CHECKOUT / "env" / "traces" / "remedies"
"""What each workload asked of torch's own allocator on a card that is not there
(tests/record_remedies.py).
"""
OPEN = ("depends", "unsupported")
RECORDED = "not available because recorded"
NO_GPU = "not available because this box has no GPU"
VENDORS = {"cuda": ("CUDA", r"CUDA|NVIDIA"), "rocm": ("ROCm", r"ROCm|RDNA|Strix Halo|Instinct")}
INERT = {"ineffective", "misspelt", "too_late", "shadowed", "unsupported"}
"""Verdicts of the audit under which a setting does nothing."""
EFFECTS = dict.fromkeys(("no_effect", "ineffective", "not_supported"), "no effect")
EFFECTS |= {"helps": "helps", "harmful": "harms"}
"""What a verdict comes to for whoever asks what to do; any other is ``untested``."""


@dataclass(frozen=True)
class Remedy:
    """One remedy, as env/remedies.yaml has it; its head explains the fields."""

    id: str
    says: str
    how: str
    workload: str = ""
    control: Mapping[str, Any] = field(default_factory=dict)
    change: Mapping[str, Any] = field(default_factory=dict)
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

    def pair(self, tells: float = 1.0) -> Pair:
        """The trials that decide it: the workload (or ``work``) without it, and with it.

        Raises ValueError where there is none.
        """
        preset = load(self.preset)
        seconds = SECONDS.get(self.workload, 10.0)
        control = self.work or workload(self.workload, **self.control)
        treated = self.work or workload(self.workload, **{**self.control, **self.change})
        under = f" under {preset.name}" if preset.environ else ""
        with_it = Arm(treated.words + under, treated, preset, seconds)
        without = Arm(control.words, control, seconds=seconds)
        return Pair(self.id, without, with_it, tells, self.goal, self.answer)


@dataclass(frozen=True)
class Prediction:
    """What a remedy is expected to do. ``verdict`` is one of the fix verdicts.

    ``audited``: the audit of the settings alone decided, so no trial is needed to know it.
    ``saves``: the share of the peak that a replay saved, ``rehearsed``: of what this very
    remedy and its control asked of torch's own allocator.
    """

    verdict: str
    why: str
    audited: bool = False
    saves: float | None = None
    rehearsed: bool = False


@dataclass(frozen=True)
class FixRow:
    """A line of the fix table.

    The three columns are words; ``memory`` and ``time`` are the measured effects, if any.

    ``guess`` is the verdict that was predicted, else argued, ``saves`` the share of memory
    predicted, ``why`` the reason in full.
    """

    remedy: str
    says: str
    claims: tuple[str, ...]
    predicted: str
    measured: str
    argued: str
    verdict: str
    memory: Effect | None = None
    time: Effect | None = None
    guess: str = ""
    saves: float | None = None
    why: str = ""
    rehearsed: bool = False
    audited: bool = False

    @property
    def effect(self) -> str:
        """What it does on this box: helps, harms, no effect, or untested."""
        return EFFECTS.get(self.guess if self.verdict == "predicted" else self.verdict, "untested")

    @property
    def saved(self) -> float | None:
        """The share of memory saved, as measured, else as predicted."""
        return 1 - self.memory.ratio if self.memory else self.saves

    @property
    def by(self) -> str:
        """What its effect rests on; nothing where it is untested."""
        if self.memory or self.verdict not in ("predicted", "not_enough_evidence"):
            return "trials" if self.memory else "audit"
        if self.effect == "untested":
            return ""
        if self.argued == f"{self.guess}: {self.why}":
            return "argument"
        replayed = "rehearsal" if self.rehearsed else "replay"
        return "audit" if self.saves is None and not self.rehearsed else replayed


@lru_cache(maxsize=1)
def remedies() -> tuple[Remedy, ...]:
    """Every remedy, in the order of the file."""
    import yaml

    rows = yaml.safe_load(PATH.read_text(encoding="utf-8"))["remedies"]
    return tuple(Remedy(**{**row, "claims": tuple(row["claims"])}) for row in rows)


def chosen(names: Sequence[str]) -> tuple[Remedy, ...]:
    """The remedies named, or all where none is. Raises ValueError for one that does not exist."""
    known = {one.id: one for one in remedies()}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"remedy {unknown[0]!r}: expected some of {', '.join(known)}")
    return tuple(known[name] for name in names or known)


def elsewhere(one: Remedy, build: str, kinds: Sequence[str]) -> str:
    """The other boxes that a remedy is for; empty where it is for this one, of such a build,
    which is of these kinds.
    """
    foreign = _other(load(one.preset), build) if one.preset else ""
    if one.needs and one.needs not in kinds:
        return "boxes with a GPU" if one.needs == "gpu" else "boxes without a GPU"
    return foreign or ("" if one.kind in ("", *kinds) else one.kind)


def not_for(preset: Preset, build: str) -> str:
    """Why a preset is not for boxes of that ``build``: its line "for" names the other vendor alone.

    Empty where it is.
    """
    other = _other(preset, build)
    words = f"not for this box because it is for {other}, and this is "
    return words + VENDORS[build][0] if other else ""


def _other(preset: Preset, build: str) -> str:
    made_for = preset.fields.get("for", "")
    named = [vendor for vendor, (_, words) in VENDORS.items() if re.search(words, made_for)]
    if build not in VENDORS or len(named) != 1 or named == [build]:
        return ""
    return VENDORS[named[0]][0]


def pairs(
    wanted: Sequence[Remedy], *, gpu: bool, build: str = ""
) -> tuple[list[Pair], dict[str, str]]:
    """The remedies that a trial on this box can decide, each beside its control, and why the
    others are not tried.

    ``build`` (cuda, rocm): presets for the other vendor are not tried.
    """
    open_claims = {claim.id for claim in claims() if claim.verdict in OPEN}
    found = []
    why = {}
    for one in wanted:
        if one.how == "argued":
            why[one.id] = "no trial decides it"
        elif not gpu and (one.needs == "gpu" or one.how == "predicted"):
            why[one.id] = NO_GPU
        elif gpu and one.needs == "cpu":
            why[one.id] = "not tried because it is for boxes without a GPU"
        elif foreign := not_for(load(one.preset), build):
            why[one.id] = foreign
        else:
            found.append(one.pair(2.0 if open_claims & set(one.claims) else 1.0))
    return found, why


# Predicted.


def predict(
    remedy: Remedy, capacity_bytes: int, trace: Trace | None, torch: str, build: str, gfx: str = ""
) -> Prediction:
    """What the preset of a remedy would do on a card of that size: by the audit of its
    settings, then by a replay of ``trace``.

    ``torch`` as it prints itself, ``build`` cuda or rocm. A remedy without a preset changes the
    work itself: see rehearsed. Without a trace where one is needed nothing is predicted; nor is
    a preset for the other vendor, which is not supported.
    """
    unknown = "not_enough_evidence"
    if not remedy.preset:
        return rehearsed(remedy, capacity_bytes, torch, build)
    preset = load(remedy.preset)
    if set(preset.environ) <= set(HOST_NAMES):
        why = "only a trial shows what a setting of the C library or OpenMP does"
        return Prediction(unknown, why)
    found = _audited(preset, torch, build, gfx)
    if found.audited:
        return found
    conf = next((preset.environ[name] for name in CONF_NAMES if preset.environ.get(name)), "")
    if not conf:
        return found
    if trace is None:
        return Prediction(unknown, "no trace to replay")
    try:
        answer = whatif(trace, Card(capacity_bytes), torch=torch, build=build, confs=["", conf])
    except SettingsError as error:
        return Prediction("not_supported", str(error))
    except (VersionError, ValueError) as error:
        return Prediction(unknown, str(error))
    rows = {row.settings: row for row in answer.rows}
    return _replayed(rows[""], rows[conf], capacity_bytes, answer.needs_bytes)


def recorded_path(work: Workload) -> Path:
    """Where the requests of a built-in workload with these parameters are kept, if they were
    recorded.
    """
    words = [work.name, *(f"{key}-{value}" for key, value in sorted(work.parameters.items()))]
    return RECORDED_RUNS / f"{'-'.join(words).replace('_', '-')}.parquet"


def rehearsed(remedy: Remedy, capacity_bytes: int, torch: str, build: str) -> Prediction:
    """What a change of the work does on a card of that size: it and its control, as they were
    rehearsed, replayed there.

    Their requests are those of torch 2.14.1 on an A100 that is not there; the card, the release
    and the build are the box's. What it does to time and to the answer only a trial shows.
    """
    pair = remedy.pair()
    unknown = "not_enough_evidence"
    paths = [recorded_path(arm.workload) for arm in (pair.control, pair.treated)]
    if remedy.unrehearsed:
        return Prediction(unknown, f"not rehearsed because {remedy.unrehearsed}")
    try:
        control, treated = (_replay_of(path, capacity_bytes, torch, build) for path in paths)
    except ValueError as error:
        return Prediction(unknown, f"not rehearsed because {error}")
    return beside_control(control, treated, capacity_bytes)


def beside_control(control: Any, treated: Any, card_bytes: int) -> Prediction:
    """What two rehearsals on such a card come to, whose ``passes``,
    ``peak_reserved_high_bytes`` and ``flags`` are a Replay's.
    """
    told = _replayed(control, treated, card_bytes, 0)
    why = re.sub("(the )?default settings", "its control", told.why)
    return replace(told, why=f"rehearsed: {why}", rehearsed=True)


@lru_cache(maxsize=256)
def _replay_of(path: Path, capacity_bytes: int, torch: str, build: str) -> Replay:
    how: dict[str, Any] = {"torch": torch, "build": build, "confs": [""]}
    return whatif(read(path), Card(capacity_bytes), **how).rows[0]


def _audited(preset: Preset, torch: str, build: str, gfx: str) -> Prediction:
    """What the audit says of its settings, ``audited`` where that decides; else what the
    preset's own status says.
    """
    if foreign := not_for(preset, build):
        return Prediction("not_supported", foreign, audited=True)
    said = sorted(findings(preset, torch, build, gfx), key=lambda one: one.verdict == "ineffective")
    verdicts = {one.verdict for one in said}
    first = f"{said[0].name}: {said[0].says}" if said else ""
    if said and verdicts <= INERT:
        unsupported = [one.says for one in said if one.verdict == "unsupported"]
        if unsupported:
            return Prediction("not_supported", unsupported[0], audited=True)
        return Prediction("ineffective", first, audited=True)
    if verdicts & {"dangerous", "contradictory"}:
        return Prediction("harmful", first, audited=True)
    status = "harmful" if preset.fields.get("status") == "harmful" else "no_effect"
    return Prediction(status, first or "no table of settings knows it")


def _replayed(control: Replay, treated: Replay, card_bytes: int, needs_bytes: int) -> Prediction:
    """What the replay of both says: a danger first, then who passes, then the peaks."""
    peaks = [row.peak_reserved_high_bytes for row in (control, treated)]
    ratio = peaks[1] / max(1, peaks[0])
    inert = ("it changes nothing", "garbage_collection_threshold: does nothing")
    harm = [flag for flag in treated.flags if not flag.startswith(inert)]
    verdict = "no_effect"
    why = "every request is met either way"
    if treated.flags:
        verdict = "harmful" if harm else "ineffective"
        why = (harm or treated.flags)[0]
    elif treated.passes and not control.passes:
        verdict = "helps"
        why = "it passes, the default settings run out"
    elif control.passes and not treated.passes:
        verdict = "harmful"
        why = "it runs out, the default settings pass"
    elif not treated.passes:
        more = f", and {show_bytes(needs_bytes)} more are needed"
        why = "both run out" + more * bool(needs_bytes)
    elif min(ratio, 1 / ratio) <= 1 - LEAST["memory"]:
        verdict = "helps" if ratio < 1 else "harmful"
    with_it = show_bytes(peaks[1])
    without = show_bytes(peaks[0])
    both = f"peak reserved {with_it}, with default settings {without}"
    told = f"{why}: on {show_bytes(card_bytes)} {both}"
    return Prediction(verdict, told, saves=1 - ratio if treated.passes else None)


# Measured.


def comparison(pair: Pair, ran: Ran) -> Comparison:
    """What the trials of a pair decide: only repeats that both arms have count.

    A refused remedy is not supported.
    """
    control, treated = (arm_of(arm, pair.control.workload.measure) for arm in ran.arms(pair))
    told = compare(control, treated, goal=pair.goal, answer=pair.answer)
    refused = ran.refused.get(pair.treated.name)
    return replace(told, verdict="not_supported", why=refused) if refused else told


def preset_trials(
    wanted: Workload, presets: Sequence[Preset], *, goal: str, repeats: int, seed: int, **how: Any
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """A workload under each preset beside itself without: a row a preset, and what a reader of
    them must know, a line each.

    ``how`` as of fixplan.run. Raises ValueError in one line where nothing can be tried.
    """
    control = Arm(wanted.words, wanted)
    tried = []
    for preset in presets:
        treated = Arm(f"{wanted.words} under {preset.name}", wanted, preset)
        tried.append(Pair(preset.name, control, treated, goal=goal))
    ran = fixplan.run(fixplan.plan(tried, repeats=repeats, budget_s=math.inf, seed=seed), **how)
    both = {"troubles": list(ran.troubles), "kept": list(ran.kept)}
    rows = []
    for pair in tried:
        told = comparison(pair, ran)
        row = {"preset": pair.name, "workload": wanted.words, "verdict": told.verdict}
        effects = {"memory": asdict(told.memory), "time": asdict(told.time)}
        rows.append({**row, "why": told.why, **effects, **both})
    return rows, ran.remarks


def arm_of(records: Sequence[TrialRecord], measure: str) -> effect.Arm:
    """The trials of one arm as they are compared: on a GPU what torch reserved, on the CPU
    resident memory.

    Fresh processes pay for their start; within one process (``measure`` work) it is the same
    for both and only blurs.
    """

    def memory(one: TrialRecord) -> float | None:
        if one.device == "cpu":
            return one.work_bytes if measure == "work" else one.rss_anon_bytes
        of_session = one.driver_used_bytes if measure == "session" else None
        return of_session or one.peak_reserved_bytes or one.driver_used_bytes

    def seconds(one: TrialRecord) -> float | None:
        of_session = one.seconds if one.complete else None
        return one.step_seconds if measure == "work" else of_session

    measures = {"memory": memory, "time": seconds}
    return effect.Arm(
        tuple(one.outcome for one in records),
        tuple(tuple(one.loss) for one in records),
        {
            what: tuple(of(one) if one.outcome == "ok" else None for one in records)
            for what, of in measures.items()
        },
    )


# The table.


def fix_table(
    wanted: Sequence[Remedy],
    *,
    recorded: bool,
    predictions: Mapping[str, Prediction],
    tried: Sequence[Pair] = (),
    ran: Ran | None = None,
    not_tried: Mapping[str, str] | None = None,
) -> list[FixRow]:
    """A row for each remedy: what was predicted, measured and argued, and the verdict for this
    box.

    ``tried`` and ``ran`` are a plan's pairs and what came of them; ``not_tried`` says why of
    the others. On a recorded box nothing is measured, and no verdict is more than
    ``predicted``. What the claims' ledger says stands among the arguments.
    """
    by_name = {pair.name: pair for pair in tried}
    ledger = {one.id: f"claim {one.id}, {one.verdict}: {one.reason}" for one in claims()}
    rows: list[FixRow] = []
    for one in wanted:
        guess = predictions.get(one.id)
        pair = by_name.get(one.id)
        predicted = f"{guess.verdict}: {guess.why}" if guess else "not predicted"
        argued = f"{one.verdict}: {one.why}" if one.how == "argued" else ""
        noted = argued or "".join(ledger[ident] for ident in one.claims[:1])
        # Without a trial: what was predicted or argued, as far as that is anything.
        nothing = guess.verdict == "not_enough_evidence" if guess else not argued
        verdict = "not_enough_evidence" if nothing else "predicted"
        row = FixRow(one.id, one.says, one.claims, predicted, RECORDED, noted, verdict)
        known = guess or Prediction(one.verdict, one.why)
        why = noted if nothing and noted else known.why
        row = replace(row, guess=known.verdict, saves=known.saves, why=why)
        row = replace(row, rehearsed=known.rehearsed, audited=known.audited)
        if not recorded:
            row = replace(row, measured=(not_tried or {}).get(one.id, "not tried"))
            if pair and ran:
                told = comparison(pair, ran)
                row = replace(row, verdict=told.verdict, memory=told.memory, time=told.time)
                refused = "not available because " * (told.verdict == "not_supported")
                row = replace(row, measured=refused + told.why, why=told.why)
            settled = guess and guess.audited and guess.verdict in ("ineffective", "not_supported")
            if guess and settled and row.verdict not in ("helps", "harmful"):
                # The build or the chip settles it: trials that show nothing, or none, only agree.
                row = replace(row, verdict=guess.verdict)
        rows.append(row)
    return rows


def forest(rows: Sequence[FixRow]) -> list[dict[str, Any]]:
    """The measured effects for a forest plot, strongest first: remedy, what, ratio, low, high."""
    found = []
    for row in rows:
        for one in (row.memory, row.time):
            if one and one.pairs >= effect.FEWEST_PAIRS:
                known = {name: getattr(one, name) for name in ("what", "ratio", "low", "high")}
                found.append({"remedy": row.remedy, **known})
    return sorted(found, key=lambda one: -abs(math.log(one["ratio"])))


def adopt(rows: Sequence[FixRow]) -> list[str]:
    """The presets that trials on this box showed to help, the strongest first: what to put into
    a preset of one's own.
    """
    known = {one.id: one.preset for one in remedies()}
    helping = [
        (row.memory.ratio, known[row.remedy])
        for row in rows
        if row.verdict == "helps" and known.get(row.remedy) and row.memory
    ]
    return [preset for _, preset in sorted(helping)]


@dataclass(frozen=True)
class FixStudy:
    """The fix table of a box with what it rests on; ``plan`` and ``ran`` are None where nothing
    was tried, ``why`` says why.

    ``elsewhere`` counts the remedies that are for other boxes, by those.
    """

    rows: tuple[FixRow, ...]
    capacity_bytes: int
    torch: str
    build: str
    recorded: bool
    plan: FixPlan | None
    ran: Ran | None
    why: str
    elsewhere: Mapping[str, int] = field(default_factory=dict)


def box_of(bundle: Bundle, capacity: str = "") -> tuple[int, str, str]:
    """(bytes of the card to predict for, torch with its ROCm release, build) of a box; without
    a GPU it is a card of 20 GiB.
    """
    facts = framework(bundle)
    torch = str(facts.version.value) if facts.version.ok else "2.14.1"
    build = "rocm" if any(gpu.driver == "amdgpu" for gpu in gpus(bundle)) else "cuda"
    size = parse_size(capacity) if capacity else largest_pool(bundle)[0] or CPU_BYTES
    if build == "rocm" and "+rocm" not in torch and facts.hip.ok:
        torch = re.sub(
            r"(\+.*)?$", f"+rocm{'.'.join(str(facts.hip.value).split('.')[:2])}", torch, count=1
        )
    return size, torch if "+rocm" in torch else torch.split("+")[0], build


def fix_study(
    bundle: Bundle | GpuCard,
    names: Sequence[str] = (),
    *,
    of: Sequence[Remedy] = (),
    trace: str = "growing-loop",
    capacity: str = "",
    repeats: int = 3,
    budget_s: float = 0.0,
    seed: int = 0,
) -> FixStudy:
    """Predict each remedy for the box and, where it is this machine and ``budget_s`` is above
    0, try what fits that time.

    ``names`` are remedies, those for other boxes too; without any they are all that are for
    this box, or those of ``of``, which no file has. A GpuCard is a card that is in no box.
    Raises ValueError (fixplan.BudgetError) in one line.
    """
    if isinstance(bundle, GpuCard):
        size = bundle.total_bytes
        torch = "2.14.1"
        build = bundle.vendor
        listed: Sequence[Gpu] = ()
        recorded = True
        kinds = ["gpu", {"rocm": "AMD", "cuda": "NVIDIA"}[build]]
    else:
        (size, torch, build), listed = box_of(bundle, capacity), gpus(bundle)
        recorded = not is_this_box(bundle)
        kinds = ["gpu" if listed else "cpu", *(gpu.vendor for gpu in listed)]
    gfx = next((gpu.indices["gfx"] for gpu in listed if gpu.indices.get("gfx")), "")
    kinds += ["APUs"] * any(gpu.integrated for gpu in listed)
    places = [(one, elsewhere(one, build, kinds)) for one in of or chosen(names)]
    wanted = [one for one, other in places if names or of or not other]
    others = Counter(other for _, other in places if other and not (names or of))
    requests: Trace = study(trace, capacity=str(size)).trace
    guessed = [one for one in wanted if one.how != "argued"]
    guesses = {one.id: predict(one, size, requests, torch, build, gfx) for one in guessed}
    free = [] if recorded or isinstance(bundle, GpuCard) else free_targets(bundle)[0]
    target = next(iter(free), CPU)
    tried, not_tried = pairs(wanted, gpu=target.pci != "cpu", build=build)
    plan = None
    ran = None
    why = "the box is recorded, so nothing can be tried on it"
    if not recorded:
        why = "no time budget was given" if tried else "no remedy chosen can be tried here"
    if not recorded and budget_s > 0 and tried:
        run = partial(fixplan.run, python=torch_interpreter(), out=OUT, target=target)
        how: dict[str, Any] = {"repeats": repeats, "budget_s": budget_s, "seed": seed}
        plan, ran = fixplan.within(tried, run=run, **how)
        why = ""
        not_tried = {**not_tried, **plan.left_out}
    told: dict[str, Any] = {"tried": plan.pairs if plan else (), "ran": ran}
    told |= {"not_tried": not_tried, "predictions": guesses}
    rows = fix_table(wanted, recorded=recorded, **told)
    return FixStudy(tuple(rows), size, torch, build, recorded, plan, ran, why, others)
