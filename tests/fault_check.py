"""What must hold of a batch after its faults, judged by the log of the truth and by the bare JSON of the records.

Shares no code with the journal: it has its own reader of records and its own idea of what may be repeated.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from fault_kinds import CUTS, DISK, FLEET, IN_RUN, KILLED, SIGNALS, Case, Life
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
            if record and not (
                place != path and f"{record['run_id']} {record['attempt']}" in found
            ):
                found[f"{path.parent.name} {record['attempt']}"] = record
    return found


def bare(record: dict[str, Any] | None) -> dict[str, Any] | None:
    """A record without what a reader fills in by itself, and what a look at the box adds later."""
    return record and {
        **record,
        "verdict": (record.get("verdict") or {}).get("summary"),
        "gate": "",
        "quarantined": "",
    }


class Check:
    """The violations of a case, each one line that begins with what does not hold."""

    def __init__(self, case: Case):
        assert case.batch
        self.case, self.batch, self.log, self.found = case, case.batch, case.log(), list[str]()
        self.records = snapshot(self.batch)
        self.now = {path.parent.name: read(path) for path in sorted(self.batch.glob("*/run.json"))}
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in self.log:
            if event["run"]:
                self.events[f"{event['run']} {event['attempt']}"].append(event)
        self.unrecorded = {
            line.split(":")[0]
            for life in case.lives
            for line in (life.result or {}).get("unrecorded", ())
        }
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
                self.no(
                    "the batch does not end",
                    f"life {life.number} ({life.fault}) after {life.seconds:.0f} s",
                )
            if told and "traceback" in told:
                self.no("the supervisor broke", told["traceback"].strip().splitlines()[-1])
            if told and "refused" in told and not any(word in life.fault for word in DISK):
                self.no("a batch is refused", f"{told['refused']} ({life.fault})")
            if told and "runs" in told:
                good = (
                    all(run["state"] == "answered" for run in told["runs"])
                    and not told["unrecorded"]
                )
                if told["code"] != (130 if told["interrupted"] else 0 if good else 1):
                    self.no("exit code", told["code"])
                held = {line.split(":")[0] for line in told["unrecorded"]}
                for run in told["runs"]:
                    disk = life.snapshot.get(f"{run['run_id']} {run['attempt']}")
                    if bare(disk) != bare(run) and run["run_id"] not in held | set(
                        self.case.spoiled
                    ):
                        self.no(
                            "the result is not the record",
                            f"{run['run_id']}: {run['state']}, on the disk "
                            f"{(disk or {}).get('state')} ({life.fault})",
                        )
        self.found += self.case.refusals

    def _answers(self) -> None:
        for key, record in self.records.items():
            if record["state"] == "answered":
                ends = {event["answer"] for event in self.says(key, "end")}
                seen = (record["verdict"] or {}).get("summary")
                if ends != {seen} or seen != answer(*self._named(key)):
                    self.no(
                        "false answered", f"{key}: {seen}, its end in the log: {ends or 'none'}"
                    )

    def _nothing_lost(self) -> None:
        for key in self.events:
            name = key.split()[0]
            for event in self.says(key, "recorded"):
                if (
                    self.records.get(key, {}).get("state") != event["state"]
                    and name not in self.case.spoiled
                ):
                    self.no(
                        "measured and lost",
                        f"{key}: recorded as {event['state']}, now {self.records.get(key, {})}"[
                            :200
                        ],
                    )
            if self.says(key, "end") and not self.case.real:
                kept = [
                    self.batch / name / "answer.json",
                    self.batch / name / "earlier" / key.split()[1] / "answer.json",
                ]
                if not any(
                    path.exists() and json.loads(path.read_text()) == answer(*self._named(key))
                    for path in kept
                ):
                    self.no("measured and lost", f"{key}: what it wrote is gone")
                state = self.records.get(key, {}).get("state")
                if (
                    state not in ENDS
                    and name not in self.case.spoiled
                    and name not in self.unrecorded
                ):
                    self.no("measured and lost", f"{key}: it ended, its record: {state}")
        for number, life in enumerate(self.case.lives):
            for key, before in life.snapshot.items():
                later = (
                    self.case.lives[number + 1].snapshot
                    if number + 1 < len(self.case.lives)
                    else {}
                )
                fixed = (
                    before["state"] in ENDS
                    and not self._may_change(before)
                    and key.split()[0] not in self.case.spoiled
                )
                if later and fixed:
                    after = later.get(key)
                    if bare(after) != bare(before):
                        self.no(
                            "an ended record changed",
                            f"{key}: {before['state']} to {(after or {}).get('state')} "
                            f"({life.fault}, then {self.case.lives[number + 1].fault})",
                        )

    def _may_change(self, record: dict[str, Any]) -> bool:
        return bool(
            record["state"] == "skipped" and record["stopped_by"] in (*MAY_START_LATER, "record")
        )

    def _nothing_repeated(self) -> None:
        killed: Counter[str] = Counter()
        for key in sorted(self.events, key=lambda key: (key.split()[0], int(key.split()[1]))):
            name, attempt = key.split()[0], int(key.split()[1])
            begins = self.says(key, "begin")
            if len(begins) > 1:
                self.no("repeated", f"{key} began {len(begins)} times")
            if not all(event["state"] == "started" and event["own"] for event in begins):
                self.no("began without its record", f"{key}: {begins[0]['state']}")
            before, life = f"{name} {attempt - 1}", self.began_in(f"{name} {attempt - 1}")
            if attempt > 1 and life:
                ended = [
                    event["state"]
                    for event in self.says(before, "recorded")
                    if event["state"] != "failed"
                ]
                seen = [
                    one.snapshot[before]
                    for one in self.case.lives
                    if one.number <= life.number and before in one.snapshot
                ]
                ended += [
                    record["state"]
                    for record in seen
                    if record["state"] in ENDS and record["stopped_by"] != "interrupt"
                ]
                if ended or life.fault in CUTS or life.fault.startswith("host OOM"):
                    self.no(
                        "repeated",
                        f"{key}: its attempt {attempt - 1} was {ended or 'cut off'} under: {life.fault}",
                    )
                killed[name] += life.fault not in SIGNALS
                if killed[name] > 1:
                    self.no("repeated", f"{key}: the third time after two ends of its batch")
                if life.fault not in (*KILLED, *SIGNALS, *DISK):
                    self.no(
                        "repeated",
                        f"{key}: nothing cut its attempt {attempt - 1} off ({life.fault})",
                    )
            if (
                self.records.get(key, {}).get("state") == "skipped"
                and name not in self.case.spoiled
            ):
                self.no("skipped, and it ran", key)

    def _true_states(self) -> None:
        for name, record in self.now.items():
            if name in self.case.spoiled:
                continue
            if record is None or (record["state"] not in ENDS and name not in self.unrecorded):
                self.no("no end of a run", f"{name}: {record and record['state']}")
                continue
        for key, record in self.records.items():
            name, life = key.split()[0], self.began_in(key)
            state = record["state"]
            if (
                life is None
                or name in self.case.spoiled
                or name in self.unrecorded
                or state not in ENDS
            ):
                if (
                    life is None
                    and state not in ("skipped", "planned", "started")
                    and record["stopped_by"] != "disk"
                    and not self._never_heard(record)
                ):
                    self.no("a state without a begin", f"{key}: {state}: {record['cause']}")
                continue
            if record["stopped_by"] == "interrupt" and life.fault not in SIGNALS:
                self.no("an interrupt that nobody sent", f"{key} ({life.fault})")
            fault = self.case.faults.get(name, "") if record["attempt"] == 1 else ""
            undone = not self.says(key, "recorded")
            if (
                life.fault in CUTS
                and life.struck
                and undone
                and life.snapshot.get(key, {}).get("state") == "started"
            ):
                if state != "rebooted":
                    self.no("a reboot that was not found", f"{key}: {state}: {record['cause']}")
            elif life.struck and life.fault in (*KILLED, *CUTS, *SIGNALS, *DISK):
                continue
            elif state not in IN_RUN.get(fault, {"answered"}) and not (
                life.fault in FLEET and state == "node_lost"
            ):
                self.no(
                    "a false state",
                    f"{key}: {state} ({record['cause']}) under {fault or 'no fault'}, {life.fault}",
                )

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
            if len(beside) >= self.case.jobs or (
                beside and {danger, *(one[4] for one in beside)} != {"looks"}
            ):
                self.no("not alone", f"{key} ({danger}) began beside {[one[2] for one in beside]}")
        shut: dict[str, bool] = {}
        for event in self.log:
            boot = self.lives[event["life"]].boot if event["life"] in self.lives else ""
            if event["what"] in ("clean", "dirty", "shut"):
                shut[f"life {event['life']}"] = event["what"] == "dirty"
                shut[boot] = shut.get(boot, False) or event["what"] == "shut"
            elif event["what"] == "begin" and (shut.get(boot) or shut.get(f"life {event['life']}")):
                self.no("began on a box that is not clean", f"{event['run']} {event['attempt']}")
        stuck = [
            (min(event["t"] for event in self.events[key]), self._boot(key))
            for key, record in self.records.items()
            if record["state"] == "stuck" and self.events[key]
        ]
        for began, _, key, _, danger in spans:
            if danger != "looks" and any(
                began > since and boot == self._boot(key) for since, boot in stuck
            ):
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
            begins = [
                event
                for key in self.events
                if key.split()[0] == name
                for event in self.says(key, "begin")
            ]
            if any(event["life"] > spoiled for event in begins):
                self.no("repeated", f"{name}: its record cannot be read")

    def _readable(self) -> None:
        from helpers.run.record import read_batch, status_json, status_text
        from helpers.tell.report import write_index

        view = read_batch(self.batch)
        text = status_text(view)
        json.dumps(status_json(view))
        if {run.run_id for run in view.runs} | set(self.case.spoiled) != set(self.now) or len(
            view.unreadable
        ) != len(self.case.spoiled):
            self.no("status does not read the result", view.counts)
        if (
            not all(run.run_id in text for run in view.runs)
            or "<html" not in write_index(self.batch).read_text().lower()
        ):
            self.no("status or page", "does not name every run")

    def _no_process(self) -> None:
        deaf = (
            (self.case.control / "deaf").read_text().split()
            if (self.case.control / "deaf").exists()
            else []
        )
        pids = {
            event.get("child", event["pid"])
            for event in self.log
            if event["what"] in ("child", "begin", "kernel")
        }
        for entry in os.listdir("/proc") if self.case.real else ():
            if entry.isdigit() and entry not in deaf:
                try:
                    at = os.readlink(f"/proc/{entry}/cwd")
                except OSError:
                    continue
                if at.startswith(str(self.batch)):
                    self.no("a process is left", f"{entry} in {at}")
        for pid in sorted(pids):
            try:
                there = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if (
                str(pid) not in deaf
                and pid != os.getpid()
                and (b"sleep" in there or b"fault_stand_in" in there)
            ):
                self.no("a process is left", f"{pid}: {there[:60]!r}")
