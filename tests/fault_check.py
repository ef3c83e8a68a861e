"""What must hold of a batch after its faults, judged by the log of the truth and by the bare JSON of the records.

Shares no code with the journal: it has its own reader of records and its own idea of what may be repeated.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from fault_kinds import CUTS, DISK, IN_RUN, KILLED, SIGNALS, Case, Life, lines
from fault_stand_in import answer

ENDS = ("answered", "failed", "died", "timed_out", "stuck", "rebooted", "node_lost", "skipped")
MAY_START_LATER = ("interrupt", "limit", "quarantine", "disk", "box")


def read(path: Path) -> dict[str, Any] | None:
    """A record as bare JSON, or None."""
    try:
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) and found.get("schema_version") == 2 else None
    except (OSError, ValueError):
        return None


def snapshot(batch: Path | None) -> dict[str, Any]:
    """The records of a batch by run and attempt, those of earlier attempts too."""
    found: dict[str, Any] = {}
    for path in sorted(batch.glob("*/run.json")) if batch else ():
        for place in (path, *sorted(path.parent.glob("earlier/*/run.json"))):
            record = read(place)
            key = f"{path.parent.name} {record['attempt']}" if record else ""
            if record and (place == path or key not in found):
                found[key] = record
    return found


def whole(folder: Path) -> bool:
    """Whether the notebook in a run's folder came to its end with a verdict."""
    try:
        cells = json.loads((folder / "notebook.ipynb").read_bytes())["cells"]
    except (OSError, ValueError):
        return False
    code = [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"])]
    done = all(c["metadata"].get("papermill", {}).get("status") == "completed" for c in code)
    return done and any("vnd.casebook.verdict" in json.dumps(cell["outputs"]) for cell in code)


def bare(record: dict[str, Any] | None) -> dict[str, Any] | None:
    """A record without what a reader fills in by itself, and what a look at the box adds later."""
    if record is None:
        return None
    summary = (record.get("verdict") or {}).get("summary")
    return {**record, "verdict": summary, "gate": "", "quarantined": ""}


def summary(
    case: Case, violations: list[str], began: float, outside: list[str], **more: Any
) -> dict[str, Any]:
    """A batch and what became of it, as a row of the campaign. ``more``: struck, in_run, where they are not usual."""
    begun = {event["run"] for event in case.log() if event["what"] == "begin"}
    states = Counter(record["state"] for record in case.lives[-1].snapshot.values())
    row = {"seed": case.seed, "jobs": case.jobs, "outside": outside, "struck": outside}
    row |= {"in_run": [], "violations": violations, "states": dict(states)}
    row |= {"lives": len(case.lives), "runs": len(begun), **more}
    longest_s = max(life.seconds for life in case.lives)
    return {**row, "longest_s": longest_s, "seconds": time.monotonic() - began}


class Check:
    """The violations of a case, each one line that begins with what does not hold."""

    def __init__(self, case: Case):
        assert case.batch
        self.case = case
        self.batch = case.batch
        self.log = case.log()
        self.found = list[str]()
        self.records = snapshot(self.batch)
        self.now = {path.parent.name: read(path) for path in sorted(self.batch.glob("*/run.json"))}
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in self.log:
            if event["run"]:
                self.events[f"{event['run']} {event['attempt']}"].append(event)
        results = [life.result or {} for life in case.lives]
        held = [line for result in results for line in result.get("unrecorded", ())]
        self.unrecorded = {line.split(":")[0] for line in held}
        self.lives = {life.number: life for life in case.lives}

    def all(self) -> list[str]:
        self._lives()
        self._answers()
        self._nothing_lost()
        self._nothing_repeated()
        self._true_states()
        self._alone()
        self._spoiled()
        self._readable()
        self._no_process()
        return self.found

    def no(self, what: str, about: Any) -> None:
        self.found.append(f"{what}: {about}")

    def began_in(self, key: str) -> Life | None:
        begun = [event for event in self.events[key] if event["what"] == "begin"]
        return self.lives.get(begun[0]["life"]) if begun else None

    def says(self, key: str, what: str) -> list[dict[str, Any]]:
        return [event for event in self.events[key] if event["what"] == what]

    def _lives(self) -> None:
        for life in self.case.lives:
            told = life.result
            if life.overran:
                about = f"life {life.number} ({life.fault}) after {life.seconds:.0f} s"
                self.no("the batch does not end", about)
            if told and "traceback" in told:
                self.no("the supervisor broke", told["traceback"].strip().splitlines()[-1])
            if told and "refused" in told and not any(word in life.fault for word in DISK):
                self.no("a batch is refused", f"{told['refused']} ({life.fault})")
            if told and "runs" in told:
                self._result(life, told)
        self.found += self.case.refusals

    def _result(self, life: Life, told: dict[str, Any]) -> None:
        good = all(run["state"] == "answered" for run in told["runs"]) and not told["unrecorded"]
        if told["code"] != (130 if told["interrupted"] else 0 if good else 1):
            self.no("exit code", told["code"])
        known = {line.split(":")[0] for line in told["unrecorded"]} | set(self.case.spoiled)
        for run in told["runs"]:
            disk = life.snapshot.get(f"{run['run_id']} {run['attempt']}")
            if bare(disk) != bare(run) and run["run_id"] not in known:
                seen = f"{run['state']}, on the disk {(disk or {}).get('state')} ({life.fault})"
                self.no("the result is not the record", f"{run['run_id']}: {seen}")

    def _answers(self) -> None:
        for key, record in self.records.items():
            if record["state"] == "answered":
                ends = {event["answer"] for event in self.says(key, "end")}
                seen = (record["verdict"] or {}).get("summary")
                if ends != {seen} or seen != answer(*self._named(key)):
                    about = f"{key}: {seen}, its end in the log: {ends or 'none'}"
                    self.no("false answered", about)

    def _nothing_lost(self) -> None:
        for key in self.events:
            (name, attempt), state = self._named(key), self.records.get(key, {}).get("state")
            spoiled = name in self.case.spoiled
            for event in self.says(key, "recorded"):
                if state != event["state"] and not spoiled:
                    now = f"now {self.records.get(key, {})}"[:200]
                    self.no("measured and lost", f"{key}: recorded as {event['state']}, {now}")
            if self.says(key, "end"):
                here = self.batch / name
                files = [here / "answer.json", here / "earlier" / str(attempt) / "answer.json"]
                kept = [json.loads(path.read_text()) for path in files if path.exists()]
                if answer(name, attempt) not in kept:
                    self.no("measured and lost", f"{key}: what it wrote is gone")
                if state not in ENDS and not spoiled and name not in self.unrecorded:
                    self.no("measured and lost", f"{key}: it ended, its record: {state}")
        for life, next_life in pairwise(self.case.lives):
            for key, before in life.snapshot.items() if next_life.snapshot else ():
                spoiled = key.split()[0] in self.case.spoiled
                after = next_life.snapshot.get(key)
                fixed = before["state"] in ENDS and not self._may_change(before) and not spoiled
                if fixed and bare(after) != bare(before):
                    states = f"{before['state']} to {(after or {}).get('state')}"
                    faults = f"({life.fault}, then {next_life.fault})"
                    self.no("an ended record changed", f"{key}: {states} {faults}")

    def _may_change(self, record: dict[str, Any]) -> bool:
        return bool(
            record["state"] == "skipped" and record["stopped_by"] in (*MAY_START_LATER, "record")
        )

    def _nothing_repeated(self) -> None:
        killed: Counter[str] = Counter()
        for key in sorted(self.events, key=self._named):
            name, attempt = self._named(key)
            begins = self.says(key, "begin")
            if len(begins) > 1:
                self.no("repeated", f"{key} began {len(begins)} times")
            if not all(event["state"] == "started" and event["own"] for event in begins):
                self.no("began without its record", f"{key}: {begins[0]['state']}")
            before = f"{name} {attempt - 1}"
            life = self.began_in(f"{name} {attempt - 1}")
            cut_off = self.records.get(before, {}).get("stopped_by") == "batch_end"
            if cut_off and whole(self.batch / name / "earlier" / str(attempt - 1)):
                self.no("repeated", f"{key}: its attempt {attempt - 1} was saved whole")
            if attempt > 1 and life:
                states = [event["state"] for event in self.says(before, "recorded")]
                ended = [state for state in states if state != "failed"]
                lives = [one for one in self.case.lives if one.number <= life.number]
                seen = [one.snapshot[before] for one in lives if before in one.snapshot]
                seen = [record for record in seen if record["stopped_by"] != "interrupt"]
                # What was skipped had not begun.
                ended += [record["state"] for record in seen if record["state"] in ENDS[:-1]]
                if ended or life.fault in CUTS or life.fault.startswith("host OOM"):
                    was = f"its attempt {attempt - 1} was {ended or 'cut off'}"
                    self.no("repeated", f"{key}: {was} under: {life.fault}")
                killed[name] += life.fault not in SIGNALS
                if killed[name] > 1:
                    self.no("repeated", f"{key}: the third time after two ends of its batch")
                if life.fault not in (*KILLED, *SIGNALS, *DISK):
                    why = f"nothing cut its attempt {attempt - 1} off ({life.fault})"
                    self.no("repeated", f"{key}: {why}")
            state = self.records.get(key, {}).get("state")
            if state == "skipped" and name not in self.case.spoiled:
                self.no("skipped, and it ran", key)

    def _true_states(self) -> None:
        for name, record in self.now.items():
            if name in self.case.spoiled:
                continue
            if record is None or (record["state"] not in ENDS and name not in self.unrecorded):
                self.no("no end of a run", f"{name}: {record and record['state']}")
                continue
        for key, record in self.records.items():
            name = key.split()[0]
            life = self.began_in(key)
            state = record["state"]
            if life is None:
                heard = record["stopped_by"] != "disk" and not self._never_heard(record)
                if heard and state not in ("skipped", "planned", "started"):
                    self.no("a state without a begin", f"{key}: {state}: {record['cause']}")
                continue
            if state not in ENDS or name in self.unrecorded or name in self.case.spoiled:
                continue
            if record["stopped_by"] == "interrupt" and life.fault not in SIGNALS:
                self.no("an interrupt that nobody sent", f"{key} ({life.fault})")
            fault = self.case.faults.get(name, "") if record["attempt"] == 1 else ""
            going = life.snapshot.get(key, {}).get("state") == "started"
            going = going and not self.says(key, "recorded")
            if life.fault in CUTS and life.struck and going:
                was_saved = state == "answered" and whole(self.batch / name)
                if state != "rebooted" and not was_saved:
                    self.no("a reboot that was not found", f"{key}: {state}: {record['cause']}")
            elif life.struck and life.fault in (*KILLED, *CUTS, *SIGNALS, *DISK):
                continue
            elif state not in IN_RUN.get(fault, {"answered"}):
                under = f"under {fault or 'no fault'}, {life.fault}"
                self.no("a false state", f"{key}: {state} ({record['cause']}) {under}")

    def _never_heard(self, record: dict[str, Any]) -> bool:
        """Started, and cut off before its runner could tell the log."""
        return (
            record["stopped_by"] == "batch_end"
            or record["state"] == "rebooted"
            or any(life.struck and life.fault in SIGNALS for life in self.case.lives)
        )

    def _alone(self) -> None:
        spans = []
        for key, events in self.events.items():
            own = [event["t"] for event in events if event["what"] in ("begin", "end", "recorded")]
            if self.says(key, "begin"):
                spans.append((min(own), max(own), key, events[0]["life"], self._danger(key)))
        for began, _, key, _, danger in spans:
            beside = [one for one in spans if one[2] != key and one[0] <= began < one[1]]
            looks = {danger, *(one[4] for one in beside)} == {"looks"}
            if len(beside) >= self.case.jobs or (beside and not looks):
                self.no("not alone", f"{key} ({danger}) began beside {[one[2] for one in beside]}")
        unclean: dict[int, str] = {}
        for event in self.log:
            life = event["life"]
            if event["what"] in ("clean", "dirty", "shut") and unclean.get(life) != "shut":
                unclean[life] = event["what"]
            elif event["what"] == "begin" and unclean.get(life) in ("dirty", "shut"):
                key = f"{event['run']} {event['attempt']}"
                if self._danger(key) != "looks":
                    self.no("began on a box that is not clean", key)
        stuck = [
            (min(event["t"] for event in self.events[key]), self._boot(key))
            for key, record in self.records.items()
            if record["state"] == "stuck" and self.events[key]
        ]
        for began, _, key, _, danger in spans:
            boots = [boot for since, boot in stuck if began > since]
            if danger != "looks" and self._boot(key) in boots:
                self.no("began after a process that nothing ends", key)

    def _named(self, key: str) -> tuple[str, int]:
        return key.split()[0], int(key.split()[1])

    def _danger(self, key: str) -> str:
        return str((self.now.get(key.split()[0]) or {"danger": "looks"})["danger"])

    def _boot(self, key: str) -> str:
        life = self.began_in(key)
        return life.boot if life else ""

    def _spoiled(self) -> None:
        for name, content in self.case.spoiled.items():
            if (self.batch / name / "run.json").read_bytes() != content:
                self.no("a record that cannot be read was written over", name)
            last = self.case.lives[-1].result or {}
            if not any(name in line for line in last.get("unreadable", ())):
                self.no("a record that cannot be read is not named", name)
            spoiled = max((life.number for life in self.case.lives if life.said == name), default=0)
            own = [key for key in self.events if key.split()[0] == name]
            begins = [event for key in own for event in self.says(key, "begin")]
            if any(event["life"] > spoiled for event in begins):
                self.no("repeated", f"{name}: its record cannot be read")

    def _readable(self) -> None:
        from helpers.batch.record import read_batch
        from helpers.batch.report import write_index
        from helpers.batch.status import status_json, status_text

        view = read_batch(self.batch)
        text = status_text(view)
        json.dumps(status_json(view))
        known = {run.run_id for run in view.runs} | set(self.case.spoiled)
        if known != set(self.now) or len(view.unreadable) != len(self.case.spoiled):
            self.no("status does not read the result", view.counts)
        page = write_index(self.batch).read_text().lower()
        if "<html" not in page or not all(run.run_id in text for run in view.runs):
            self.no("status or page", "does not name every run")

    def _no_process(self) -> None:
        deaf = lines(self.case.control / "deaf")
        own = ("child", "begin", "kernel")
        events = [event for event in self.log if event["what"] in own]
        pids = {event.get("child", event["pid"]) for event in events}
        for pid in sorted(pids):
            try:
                there = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            ours = b"sleep" in there or b"fault_stand_in" in there
            if ours and str(pid) not in deaf and pid != os.getpid():
                self.no("a process is left", f"{pid}: {there[:60]!r}")
