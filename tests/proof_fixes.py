"""The part of the proof on a GPU about fixes: predicted peaks beside measured ones, trials, an assert and memory.

Each workload is recorded on the card without settings, and its trace is replayed under other settings: the errors are a table and
nothing is passed or failed by them. Whether a real device-side assert is told apart from
out of memory is passed or failed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.record import record
from helpers.allocator.replay import replay
from helpers.allocator.trace_file import read_trace
from helpers.ground.child import transcript
from helpers.settings.table import CONF_NAMES
from helpers.trials import targets
from helpers.trials.targets import Target
from helpers.trials.tuning import command, outcome_of
from helpers.trials.workload import Workload, argv, workload

ROOT = Path(__file__).resolve().parents[1]
CONFS = ("", "expandable_segments:True")
WORKLOADS = (
    workload("training"),
    workload("training", batch=64),
    workload("training", batch=64, checkpointing=1),
    workload("training", batch=64, accumulate=4),
    workload("training", layers=8, width=512, length=256),
    workload("churn"),
)
REMEDIES = {
    "cuda": ("expandable", "checkpointing", "accumulate"),
    "rocm": ("expandable-rocm", "checkpointing", "accumulate"),
}
START_S = 90.0
RUN_S = 60.0
PROBE = """import json, torch
from helpers.trials.under_torch.device import gpu_trouble, pci_address
trouble, reason = gpu_trouble(torch)
found = {"why": f"{trouble}{': ' + reason if reason else ''}", "torch": str(torch.__version__)}
if not trouble:
    found |= {"device": torch.cuda.get_device_name(0), "pci": pci_address(torch, 0), "count": torch.cuda.device_count(),
              "total_bytes": torch.cuda.get_device_properties(0).total_memory, "build": "rocm" if torch.version.hip else "cuda"}
print(json.dumps(found))
"""
OBJECTIVE = """import torch
def run(p):
    if p["do"] == "oom":
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    if p["do"] == "assert":
        torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].sum().item()
    return torch.ones(1 << 20, device="cuda").sum().item()
"""
ASKED = ("fine", "oom", "assert")
EXPECTED = ("ok", "oom", "device_assert")


def environment(conf: str = "", **more: str) -> dict[str, str]:
    """This checkout first, and no allocator setting but ``conf``."""
    confs = dict.fromkeys(CONF_NAMES, conf) if conf else {}
    return targets.environment(more={**confs, **more})


def seen_by(python: str) -> dict[str, Any]:
    """The first card that its torch sees, by PROBE; ``why`` says why there is none."""
    pipes: Any = {"capture_output": True, "text": True, "timeout": START_S}
    try:
        done = subprocess.run([python, "-c", PROBE], check=False, env=environment(), **pipes)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"why": f"{python} does not say what torch sees ({type(error).__name__})"}


def fixes_part(python: str, out: Path, limit_bytes: int | None, ends: float) -> dict:
    """An assert and memory told apart, predicted beside measured peaks, then trials while there is time."""
    card = seen_by(python)
    if card["why"]:
        return {"rows": [], "status": "not_available", "why": card["why"]}
    total = min(card["total_bytes"], limit_bytes or card["total_bytes"])
    visible = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}[card["build"]]
    target = Target(card["pci"] or "unknown", visible, "0", "cuda", several=False)
    first = {"assert": told_apart(python, ends)}
    print(json.dumps(first), flush=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="casebook-fixes-") as folder:
        for wanted in WORKLOADS:
            if time.monotonic() > ends - 30:
                why = {"status": "skipped", "why": "the time is used up"}
                rows.append({"workload": wanted.words, **why})
                continue
            rows += predicted_and_measured(python, Path(folder), wanted, target, card, total)
            print(json.dumps(rows[-len(CONFS) :]), flush=True)
        found = {**card, "rows": rows, **first}
        found["trials"] = trials(python, Path(folder), card, target, ends)
    errors = [abs(row["error"]) for row in rows if row.get("error") is not None]
    found |= {"compared": len(errors), "largest_error": max(errors, default=None)}
    return {**found, "status": "measured" if errors and found["assert"]["same"] else "failed"}


def told_apart(python: str, ends: float, objective: str = OBJECTIVE) -> dict[str, Any]:
    """Each of ASKED as a trial of the tuning loop: after a real assert its context is dead, after memory not."""
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "objective.py"
        path.write_text(objective)
        for do in ASKED:
            limit_s = max(1.0, min(START_S, ends - time.monotonic()))
            argv = command(python, f"{path}:run", {"do": do})
            result = transcript(argv, limit_s, {}, env=environment()).last("result")
            outcome = outcome_of(result) if result else "died"
            message = str(result.get("message", ""))[:200]
            context = result.get("context")
            said.append({"asked": do, "outcome": outcome, "context": context, "message": message})
    return {"same": tuple(row["outcome"] for row in said) == EXPECTED, "said": said}


def predicted_and_measured(
    python: str,
    folder: Path,
    wanted: Workload,
    target: Target,
    card: dict[str, Any],
    total_bytes: int,
) -> list[dict[str, Any]]:
    """A row for each of CONFS: the replay of the recorded trace, and what the card reserved."""
    name = "".join(letter if letter.isalnum() else "-" for letter in wanted.words)
    command = argv(wanted, python, 0, target)
    if target.visible_variable:
        command = ["env", f"{target.visible_variable}={target.visible_value}", *command]
    kept = record(command, folder / f"{name}.pickle")
    if kept.trace is None:
        return [{"workload": wanted.words, "status": "failed", "why": kept.why_no_trace}]
    trace = read_trace(kept.trace)
    rows = []
    for conf in CONFS:
        guess = replay(trace, conf, Card(total_bytes), torch=card["torch"], build=card["build"])
        told = measured(argv(wanted, python, 0, target), conf, target)
        rows.append(row(wanted, conf, guess.peak_reserved_bytes, guess.peak_allocated_bytes, told))
    return rows


def measured(command: list[str], conf: str, target: Target) -> dict[str, Any]:
    """What a workload told at its end (or that it ran out), under ``conf``."""
    visible = target.visible_variable
    env = environment(conf, **({visible: target.visible_value} if visible else {}))
    done = transcript(command, START_S, dict.fromkeys(("ready", "step"), RUN_S), env=env)
    told = {key: value for row in done.rows for key, value in row.items()}
    return {**told, "how": done.ended.how, "last": done.ended.last_line}


def row(
    wanted: Workload, conf: str, reserved_bytes: int, allocated_bytes: int, told: dict[str, Any]
) -> dict[str, Any]:
    """Predicted, measured, and the error of the peak reserved as a share of what was measured."""
    found = told.get("peak_reserved_bytes")
    line = {
        "workload": wanted.words,
        "conf": conf,
        "predicted_bytes": reserved_bytes,
        "measured_bytes": found,
        "predicted_allocated_bytes": allocated_bytes,
        "measured_allocated_bytes": told.get("peak_allocated_bytes"),
        "error": round(reserved_bytes / found - 1, 4) if found else None,
        "status": told.get("event", "failed"),
    }
    if found:
        return line
    why = told.get("message") or told.get("why") or f"{told['how']}: {told['last']}"
    return {**line, "why": why}


def trials(python: str, folder: Path, card: dict[str, Any], target: Target, ends: float) -> Any:
    """Control beside remedy on the card, with verdicts; or why there are none."""
    try:
        from helpers.trials import fixplan
        from helpers.trials.catalogue import pairs, remedies
        from helpers.trials.fixes import fix_table
    except ImportError as error:
        return f"not run because {error.name} is not installed in this Python"
    wanted = [one for one in remedies() if one.id in REMEDIES[card["build"]]]
    tried, not_tried = pairs(wanted, gpu=True, build=card["build"])
    try:
        made = fixplan.plan(tried, repeats=3, budget_s=ends - time.monotonic())
    except fixplan.BudgetError as error:
        return f"not run because {error}"
    ran = fixplan.run(made, python=python, out=folder / "trials", target=target)
    given: Any = {"tried": made.pairs, "ran": ran, "not_tried": {**not_tried, **made.left_out}}
    table = fix_table(wanted, recorded=False, predictions={}, **given)
    names = ("remedy", "verdict", "measured")
    rows = [{name: getattr(one, name) for name in names} for one in table]
    return {"troubles": ran.troubles, "refused": dict(ran.refused), "rows": rows}
