"""Which remedies are there, what is each expected to do on a box, and what did it do? Table, predictions, measurements.

Measured, predicted and argued stay apart: a verdict other than ``predicted`` rests on trials on this very box, or on what the
audit of its settings knows of its build and chip.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.trace import Trace
from helpers.allocator.whatif import Row, whatif
from helpers.load import effect, fixplan
from helpers.load.box import is_this_box, torch_interpreter
from helpers.load.claims import claims
from helpers.load.effect import LEAST, Comparison, Effect, compare
from helpers.load.fixplan import Arm, FixPlan, Pair, Planned, Ran
from helpers.load.study import study
from helpers.load.targets import CPU, free_targets, largest_pool
from helpers.load.trial import TrialRecord
from helpers.load.workloads import workload
from helpers.look.bundle import Bundle
from helpers.look.framework import framework
from helpers.look.gpus import gpus
from helpers.look.reading import parse_size, show_bytes
from helpers.settings.presets import Preset, findings, load
from helpers.settings.releases import VersionError
from helpers.settings.table import CONF_NAMES, HOST_NAMES
from helpers.settings.text import SettingsError

PATH = Path(__file__).resolve().parents[2] / "env" / "remedies.yaml"
HOW = ("measured", "predicted", "argued")
# Seconds of a trial of each workload, start-up of torch included, on a slow two-core box; a plan is made with these.
SECONDS = {"training": 9.0, "volume": 4.5, "tuning": 6.0, "churn": 3.5}
OPEN = ("depends", "unsupported")
RECORDED = "not available because recorded"
NO_GPU = "not available because this box has no GPU"
VENDORS = {"cuda": ("CUDA", r"CUDA|NVIDIA"), "rocm": ("ROCm", r"ROCm|RDNA|Strix Halo|Instinct")}


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
    verdict: str = ""
    why: str = ""
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """What a remedy is expected to do. ``verdict`` is one of the fix verdicts; the rows are the replays it rests on, if any.

    ``audited``: the audit of the settings alone decided, so no trial is needed to know it.
    """

    verdict: str
    why: str
    control: Row | None = None
    treated: Row | None = None
    audited: bool = False


@dataclass(frozen=True)
class FixRow:
    """A line of the fix table. The three columns are words; ``memory`` and ``time`` are the measured effects, if any."""

    remedy: str
    says: str
    claims: tuple[str, ...]
    predicted: str
    measured: str
    argued: str
    verdict: str
    memory: Effect | None = None
    time: Effect | None = None


@lru_cache(maxsize=1)
def remedies() -> tuple[Remedy, ...]:
    """Every remedy, in the order of the file. Raises ValueError where a row is not as it should be."""
    import yaml

    known = {claim.id for claim in claims()}
    found: list[Remedy] = []
    for row in yaml.safe_load(PATH.read_text(encoding="utf-8"))["remedies"]:
        try:
            one = Remedy(**{**row, "claims": tuple(row["claims"])})
            if not (
                one.how in HOW
                and one.goal in LEAST
                and one.needs in ("", "cpu", "gpu")
                and set(one.claims) <= known
            ):
                raise ValueError(
                    "expected how, goal and needs as the head of the file says, and claims of env/claims.yaml"
                )
            if one.how == "argued" and (one.verdict not in effect.VERDICTS or not one.why):
                raise ValueError(
                    f"an argued remedy has a verdict ({', '.join(effect.VERDICTS)}) and a why"
                )
            if one.how != "argued":
                _arms(one)
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{PATH.name}: remedy {row.get('id')!r}: {error}") from error
        found.append(one)
    return tuple(found)


def _arms(remedy: Remedy) -> tuple[Arm, Arm]:
    preset, seconds = load(remedy.preset), SECONDS[remedy.workload]
    control = workload(remedy.workload, **remedy.control)
    treated = workload(remedy.workload, **{**remedy.control, **remedy.change})
    return (
        Arm(control.words, control, seconds=seconds),
        Arm(
            f"{treated.words}{f' under {preset.name}' if preset.environ else ''}",
            treated,
            preset,
            seconds,
        ),
    )


def not_for(preset: Preset, build: str) -> str:
    """Why a preset is not for boxes of that ``build``: its line "for" names the other vendor alone. Empty where it is."""
    named = [
        vendor
        for vendor, (_, words) in VENDORS.items()
        if re.search(words, preset.fields.get("for", ""))
    ]
    if build not in VENDORS or len(named) != 1 or named == [build]:
        return ""
    return f"not for this box because it is for {VENDORS[named[0]][0]}, and this is {VENDORS[build][0]}"


def pairs(
    wanted: Sequence[Remedy], *, gpu: bool, build: str = ""
) -> tuple[list[Pair], dict[str, str]]:
    """The remedies that a trial on this box can decide, each beside its control, and why the others are not tried.

    ``build`` (cuda, rocm): presets for the other vendor are not tried.
    """
    open_claims = {claim.id for claim in claims() if claim.verdict in OPEN}
    found, why = [], {}
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
            found.append(
                Pair(one.id, *_arms(one), tells=2.0 if open_claims & set(one.claims) else 1.0)
            )
    return found, why


def predict(
    remedy: Remedy, capacity_bytes: int, trace: Trace | None, torch: str, build: str, gfx: str = ""
) -> Prediction:
    """What the preset of a remedy would do on a card of that size: by the audit of its settings, then by a replay of ``trace``.

    ``torch`` as it prints itself, ``build`` cuda or rocm. Without a preset, or without a trace where one is needed, nothing is
    predicted; nor is a preset for the other vendor, which is not supported.
    """
    if not remedy.preset:
        return Prediction(
            "not_enough_evidence", "nothing predicts what a change of the work itself saves"
        )
    preset = load(remedy.preset)
    if set(preset.environ) <= set(HOST_NAMES):
        return Prediction(
            "not_enough_evidence",
            "only a trial shows what a setting of the C library or OpenMP does",
        )
    if foreign := not_for(preset, build):
        return Prediction("not_supported", foreign, audited=True)
    said = sorted(findings(preset, torch, build, gfx), key=lambda one: one.verdict == "ineffective")
    verdicts = {one.verdict for one in said}
    first = f"{said[0].name}: {said[0].says}" if said else ""
    if said and verdicts <= {"ineffective", "misspelt", "too_late", "shadowed", "unsupported"}:
        if "unsupported" in verdicts:
            return Prediction(
                "not_supported",
                next(one.says for one in said if one.verdict == "unsupported"),
                audited=True,
            )
        return Prediction("ineffective", first, audited=True)
    if verdicts & {"dangerous", "contradictory"}:
        return Prediction("harmful", first, audited=True)
    conf = next((preset.environ[name] for name in CONF_NAMES if preset.environ.get(name)), "")
    if not conf:
        harmful = preset.fields.get("status") == "harmful"
        return Prediction(
            "harmful" if harmful else "no_effect", first or "no table of settings knows it"
        )
    if trace is None:
        return Prediction("not_enough_evidence", "no trace to replay")
    try:
        answer = whatif(trace, Card(capacity_bytes), torch=torch, build=build, confs=["", conf])
    except (SettingsError, VersionError, ValueError) as error:
        return Prediction(
            "not_supported" if isinstance(error, SettingsError) else "not_enough_evidence",
            str(error),
        )
    rows = {row.settings: row for row in answer.rows}
    return _replayed(rows[""], rows[conf], capacity_bytes, answer.needs_bytes)


def _replayed(control: Row, treated: Row, capacity_bytes: int, needs_bytes: int) -> Prediction:
    card = f"on {show_bytes(capacity_bytes)}"
    told = (
        f"{card} peak reserved {show_bytes(treated.peak_reserved_high_bytes)}, with default settings "
        f"{show_bytes(control.peak_reserved_high_bytes)}"
    )
    ratio = treated.peak_reserved_high_bytes / max(1, control.peak_reserved_high_bytes)
    inert = ("it changes nothing", "garbage_collection_threshold: does nothing")
    harm = [flag for flag in treated.flags if not flag.startswith(inert)]
    if harm:
        verdict, why = "harmful", harm[0]
    elif treated.flags:
        verdict, why = "ineffective", treated.flags[0]
    elif treated.passes != control.passes:
        verdict, why = (
            ("helps", "it passes, the default settings run out")
            if treated.passes
            else ("harmful", "it runs out, the default settings pass")
        )
    elif not treated.passes:
        verdict, why = "no_effect", f"both run out, and {show_bytes(needs_bytes)} more are needed"
    elif ratio <= 1 - LEAST["memory"] or 1 / ratio <= 1 - LEAST["memory"]:
        verdict, why = "helps" if ratio < 1 else "harmful", "both pass"
    else:
        verdict, why = "no_effect", "both pass"
    return Prediction(verdict, f"{why}: {told}", control, treated)


def measured(pair: Pair, remedy: Remedy, ran: Ran) -> Comparison:
    """The verdict of the trials of a pair: only repeats that both arms have count."""
    repeats = sorted(
        {repeat for name, repeat in ran.records if name == pair.control.name}
        & {repeat for name, repeat in ran.records if name == pair.treated.name}
    )
    arms = [
        [ran.records[arm.name, repeat] for repeat in repeats]
        for arm in (pair.control, pair.treated)
    ]
    return compare(
        *(arm_of(one, pair.control.workload.measure) for one in arms),
        goal=remedy.goal,
        answer=remedy.answer,
    )


def arm_of(records: Sequence[TrialRecord], measure: str) -> effect.Arm:
    """The trials of one arm as they are compared: on a GPU what torch reserved, on the CPU resident memory."""

    def memory(record: TrialRecord) -> float | None:
        if record.device != "cpu":
            of_session = record.driver_used_bytes if measure == "session" else None
            return of_session or record.peak_reserved_bytes or record.driver_used_bytes
        return record.work_bytes if measure == "work" else record.rss_anon_bytes

    def seconds(record: TrialRecord) -> float | None:
        # Fresh processes pay for their start; within one process the start is the same for both and only blurs.
        return (
            record.step_seconds
            if measure == "work"
            else record.seconds
            if record.complete
            else None
        )

    whole = [record if record.outcome == "ok" else None for record in records]
    return effect.Arm(
        tuple(record.outcome for record in records),
        tuple(tuple(record.loss) for record in records),
        {
            "memory": tuple(memory(one) if one else None for one in whole),
            "time": tuple(seconds(one) if one else None for one in whole),
        },
    )


def fix_table(
    wanted: Sequence[Remedy],
    *,
    recorded: bool,
    predictions: Mapping[str, Prediction],
    tried: Sequence[Pair] = (),
    ran: Ran | None = None,
    not_tried: Mapping[str, str] | None = None,
) -> list[FixRow]:
    """A row for each remedy: what was predicted, measured and argued, and the verdict for this box.

    ``tried`` and ``ran`` are a plan's pairs and what came of them; ``not_tried`` says why of the others. On a recorded box
    nothing is measured, and no verdict is more than ``predicted``. What the claims' ledger says stands among the arguments.
    """
    by_name, reasons = {pair.name: pair for pair in tried}, {claim.id: claim for claim in claims()}
    rows: list[FixRow] = []
    for one in wanted:
        guess = predictions.get(one.id)
        predicted = f"{guess.verdict}: {guess.why}" if guess else "not predicted"
        argued = f"{one.verdict}: {one.why}" if one.how == "argued" else ""
        ledger = "; ".join(
            f"claim {ident} is {reasons[ident].verdict}: {reasons[ident].reason}"
            for ident in one.claims[:1]
        )
        pair = by_name.get(one.id)
        told: Comparison | None = None
        if recorded:
            words, verdict = RECORDED, "predicted" if guess or argued else "not_enough_evidence"
        elif pair and ran and pair.treated.name in ran.refused:
            words, verdict = (
                f"not available because {ran.refused[pair.treated.name]}",
                "not_supported",
            )
        elif pair and ran:
            told = measured(pair, one, ran)
            words, verdict = told.why, told.verdict
        else:
            words = (not_tried or {}).get(one.id, "not tried")
            verdict = "predicted" if guess or argued else "not_enough_evidence"
        if guess and verdict == "predicted" and guess.verdict == "not_enough_evidence":
            verdict = "not_enough_evidence"
        if guess and guess.audited and not recorded and verdict not in ("helps", "harmful"):
            # The build or the chip settles it: trials that show nothing, or none, only agree.
            verdict = (
                guess.verdict if guess.verdict in ("ineffective", "not_supported") else verdict
            )
        rows.append(
            FixRow(
                one.id,
                one.says,
                one.claims,
                predicted,
                words,
                argued or ledger,
                verdict,
                told.memory if told else None,
                told.time if told else None,
            )
        )
    return rows


def forest(rows: Sequence[FixRow]) -> list[dict[str, Any]]:
    """The measured effects for a forest plot, strongest first: remedy, what, ratio, low, high, least, verdict."""
    found = [
        {
            "remedy": row.remedy,
            "what": one.what,
            "ratio": one.ratio,
            "low": one.low,
            "high": one.high,
            "least": LEAST[one.what],
            "verdict": row.verdict,
        }
        for row in rows
        for one in (row.memory, row.time)
        if one and one.pairs >= effect.FEWEST_PAIRS
    ]
    return sorted(found, key=lambda one: -abs(math.log(one["ratio"])))


def adopt(rows: Sequence[FixRow]) -> list[str]:
    """The presets that trials on this box showed to help, the strongest first: what to put into a preset of one's own."""
    known = {one.id: one.preset for one in remedies()}
    helping = [
        row for row in rows if row.verdict == "helps" and known.get(row.remedy) and row.memory
    ]
    return [
        known[row.remedy]
        for row in sorted(helping, key=lambda row: row.memory.ratio if row.memory else 1.0)
    ]


CPU_BYTES = 20 << 30
OUT = Path(__file__).resolve().parents[2] / "outputs" / "trials"


@dataclass(frozen=True)
class FixStudy:
    """The fix table of a box with what it rests on; ``plan`` and ``ran`` are None where nothing was tried, ``why`` says why."""

    rows: tuple[FixRow, ...]
    capacity_bytes: int
    torch: str
    build: str
    recorded: bool
    plan: FixPlan | None
    ran: Ran | None
    why: str


def chosen(names: str) -> tuple[Remedy, ...]:
    """The remedies named, with blanks between, or all. Raises ValueError for one that does not exist."""
    known = {one.id: one for one in remedies()}
    if unknown := [name for name in names.split() if name not in known and name != "all"]:
        raise ValueError(f"remedy {unknown[0]!r}: expected all, or some of {', '.join(known)}")
    return (
        tuple(known.values())
        if "all" in names.split()
        else tuple(known[name] for name in names.split())
    )


def box_of(bundle: Bundle, capacity: str = "") -> tuple[int, str, str]:
    """(bytes of the card to predict for, torch, build) of a box; a box without a GPU is predicted for a card of 20 GiB."""
    facts = framework(bundle)
    torch = str(facts.version.value) if facts.version.ok else "2.14.1"
    build = "rocm" if any(gpu.driver == "amdgpu" for gpu in gpus(bundle)) else "cuda"
    size = parse_size(capacity) if capacity else largest_pool(bundle)[0] or CPU_BYTES
    return size, torch.split("+")[0], build


def fix_study(
    bundle: Bundle,
    names: str = "all",
    *,
    trace: str = "growing-loop",
    capacity: str = "",
    repeats: int = 3,
    budget_s: float = 0.0,
    seed: int = 0,
    out: Path = OUT,
    on_trial: Callable[[Planned, TrialRecord | None], None] = lambda planned, record: None,
) -> FixStudy:
    """Predict each remedy for the box and, where it is this machine and ``budget_s`` is above 0, try what fits that time.

    Raises ValueError (fixplan.PlanError) in one line.
    """
    wanted = chosen(names)
    size, torch, build = box_of(bundle, capacity)
    requests: Trace = study(trace, capacity=str(size)).trace
    guesses: Mapping[str, Prediction] = {
        one.id: predict(one, size, requests, torch, build) for one in wanted if one.how != "argued"
    }
    recorded = not is_this_box(bundle)
    plan, ran, why = None, None, "recorded: nothing can be tried on it here" if recorded else ""
    target = CPU
    if not recorded:
        target = next(iter(free_targets(bundle)[0]), CPU)
    tried, not_tried = pairs(wanted, gpu=target.pci != "cpu", build=build)
    if not recorded and budget_s > 0 and tried:
        plan, ran = fixplan.within(
            tried,
            repeats=repeats,
            budget_s=budget_s,
            seed=seed,
            run=partial(
                fixplan.run, python=torch_interpreter(), out=out, target=target, on_trial=on_trial
            ),
        )
    elif not recorded:
        why = "no time budget was given" if tried else "no remedy chosen can be tried here"
    told = {**not_tried, **(plan.left_out if plan else {})}
    rows = fix_table(
        wanted,
        recorded=recorded,
        predictions=guesses,
        tried=plan.pairs if plan else (),
        ran=ran,
        not_tried=told,
    )
    return FixStudy(tuple(rows), size, torch, build, recorded, plan, ran, why)
