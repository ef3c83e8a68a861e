"""A batch goes through every run of its plan whatever they do, and its records alone tell what happened."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from run_stand_in import FOUR, StandIn, begun, change, go, plan, planned, state, states

from helpers.batch import record, watched
from helpers.batch.carrier import Local
from helpers.batch.look_shapes import BoxState, GpuState, Trouble
from helpers.batch.one_run import run_one
from helpers.batch.plan import PlanError, load_plan
from helpers.batch.progress import Plain
from helpers.batch.record import (
    IllegalMove,
    move,
    read_batch,
    read_run,
    write_run,
)
from helpers.batch.shapes import STATES, Run
from helpers.batch.status import status_json, status_text
from helpers.batch.stop import Stop
from helpers.batch.supervisor import run_plan
from helpers.batch.time_left import time_left_s
from helpers.batch.watched import Watched

LIVE = "- {notebook: takes_parameters.ipynb, danger: looks}"


def capture(path):
    path.mkdir()
    return path


def test_box_batch_and_out_reach_the_notebooks_that_take_them(tmp_path):
    rows = f"""- {{notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, parameters: {{steps: 7, out: "{{batch}}/mine"}}}}
{LIVE}
- {{notebook: needs_no_verdict.ipynb, danger: looks, limits: {{cell_s: 7, run_s: 9}}}}"""
    standin = StandIn()
    result = go(plan(tmp_path, rows), standin, capture=capture)
    batch = result.folder
    (recorded, live, bare) = result.runs
    given = [standin.jobs[number]["parameters"] for number in ("000", "001", "002")]
    mine = {"steps": 7, "out": f"{batch}/mine"}
    assert given[0] == {"box": "cpu-only", "batch": str(batch), **mine}
    out = str(batch / live.run_id)
    assert given[1] == {"box": str(batch / "box"), "batch": str(batch), "out": out}
    assert given[2] == {} and [run.box for run in result.runs] == ["cpu-only", "live", ""]
    assert recorded.parameters == {"steps": 7, "out": "{batch}/mine"} and live.parameters == {}
    job = standin.jobs["002"]
    assert (job["cell_s"], job["run_s"]) == (7, 9) and Path(job["source"]).name == bare.notebook
    assert (batch / "plan.yaml").read_text() == (tmp_path / "plan.yaml").read_text()
    assert batch.name.endswith("Z-night")  # of two boxes
    for run in result.runs:
        assert run.batch_id == batch.name and len(run.plan_sha256) == 64
        assert read_run(batch / run.run_id / "run.json") == run


def test_a_batch_about_one_recorded_box_is_named_after_it_and_keeps_a_plan_that_names_it(tmp_path):
    rows = f"{LIVE[:-1]}, box: live}}\n{LIVE[:-1]}, grid: {{box: [live]}}}}"
    result = go(plan(tmp_path, rows), StandIn(), box="rx7900xt-container")
    kept = result.folder / "plan.yaml"
    assert result.folder.name.endswith("Z-night-rx7900xt-container")
    assert {run.box for run in result.runs} == {
        "rx7900xt-container"
    } and "live" not in kept.read_text()
    kept = kept.rename(tmp_path / "kept.yaml")  # beside its notebooks
    assert [step.box for step in load_plan(kept).steps] == ["rx7900xt-container"] * 2


@pytest.mark.parametrize(("end", "code"), [("answered", 0), ("failed", 1), ("died", 1)])
def test_a_batch_says_by_its_exit_code_whether_every_run_answered(tmp_path, end, code):
    result = go(plan(tmp_path), StandIn(n001=state(end)))
    assert result.exit_code == code and result.interrupted == ""
    assert states(result) == ["answered", end, "answered", "answered"]


def test_progress_is_told_of_every_run_by_one_thread_alone(tmp_path):
    class Heard(Plain):
        def __init__(self):
            super().__init__()
            self.threads = set()
            self.ended_as = []
            self.ticks = []

        def tick(self, number, cell, cells, seconds):
            self.threads.add(threading.get_ident())
            self.ticks.append((number, cell, cells))

        def run_started(self, number, run):
            self.threads.add(threading.get_ident())

        def run_ended(self, number, run):
            self.ended_as.append((number, run.state))

    heard = Heard()
    go(plan(tmp_path, head="jobs: 2"), StandIn(each=brief), slots=2, progress=heard)
    assert heard.threads == {threading.get_ident()}
    assert sorted(heard.ended_as) == [(number, "answered") for number in range(4)]
    assert {(number, 1, 2) for number in range(4)} <= set(heard.ticks)


# Reading and moving records


def test_a_torn_or_newer_record_is_named_and_the_others_are_read(tmp_path):
    for number in range(6):
        planned(tmp_path, number)
    text = (tmp_path / "000-x" / "run.json").read_text()
    spoiled = {
        1: text[:40].encode(),
        2: text.replace('"schema_version": 2', '"schema_version": 9').encode(),
        3: b'{"run_id": "003-x", "ended": true}',
        4: b"\xff\x00",
    }
    for number, content in spoiled.items():
        (tmp_path / f"{number:03d}-x" / "run.json").write_bytes(content)
    old = {"run_id": "005-x", "batch_id": "b", "box": "", "notebook": "x"}
    (tmp_path / "005-x" / "run.json").write_text(json.dumps(old))
    view = read_batch(tmp_path)
    assert [run.run_id for run in view.runs] == ["000-x", "005-x"]
    for number, line in zip(spoiled, view.unreadable, strict=True):
        assert f"{number:03d}-x" in line and "\n" not in line
    assert "schema_version 9: this workbook reads 2" in view.unreadable[1]
    assert "not readable" in status_text(view)


@pytest.mark.parametrize("to", STATES)
def test_a_run_moves_from_planned_only_to_started_or_skipped_and_never_out_of_an_end(to):
    run = Run(run_id="r", batch_id="b", box="", notebook="x")
    legal = {"planned": {"started", "skipped"}}
    legal["started"] = {*STATES} - {"planned", "started", "skipped"}
    for before in STATES:
        at = run.model_copy(update={"state": before})
        if to in legal.get(before, ()):
            assert move(at, to).state == to
        else:
            with pytest.raises(IllegalMove):
                move(at, to)


def test_a_record_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    run = planned(tmp_path)
    before = (tmp_path / "000-x" / "run.json").read_text()

    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write_run(tmp_path / "000-x", move(run, "started"))
    assert (tmp_path / "000-x" / "run.json").read_text() == before
    assert os.listdir(tmp_path / "000-x") == ["run.json"]


def test_a_started_record_whose_process_or_boot_is_gone_says_so():
    own = {"state": "started", "boot_id": record.boot_id()}
    run = Run(run_id="r", batch_id="b", box="", notebook="x", **own)
    code = [sys.executable, "-c", "print(flush=True); input()", "/b/r"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(code, **pipes) as process:
        process.stdout.readline()  # the kernel shows no command line of who is still being started
        assert record.gone(run.model_copy(update={"pid": process.pid})) == ""
    why = "started, and its process is gone"
    elsewhere = {"boot_id": "other", "node": "elsewhere"}
    for changes, said in (
        ({"pid": process.pid}, why),
        ({"pid": os.getpid()}, why),
        ({"boot_id": "other"}, "started under another boot"),
        (elsewhere, ""),
    ):
        assert record.gone(run.model_copy(update=changes)) == said


def test_status_is_read_from_the_records_alone(tmp_path):
    path, batch, run_id = begun(tmp_path)
    runs = go(path, StandIn(n002=state("died", cause="SIGSEGV")), resume=batch).runs
    change(batch, runs[0].run_id, node="elsewhere")
    view = read_batch(batch)
    text = status_text(view)
    data = json.loads(json.dumps(status_json(view)))
    assert text.splitlines()[0] == f"{batch.name}: 3 answered, 1 died"
    assert "on elsewhere" in text and "attempt 2; 1 strike" in text and "SIGSEGV; 1 strike" in text
    rows = [(run["state"], run["attempt"], run["strikes"]) for run in data["runs"]]
    assert rows[:3] == [("answered", 1, 0), ("answered", 2, 1), ("died", 1, 1)]
    assert data["left_s"] == 0 and data["counts"] == {"answered": 3, "died": 1}
    assert [row["gone"] for row in data["runs"]] == [False] * 4
    left = runs[0].model_copy(update={"state": "planned", "estimate_s": 90.0})
    unknown = left.model_copy(update={"estimate_s": None})
    assert time_left_s([left, left]) == 180 and time_left_s([unknown, left]) is None
    assert time_left_s([unknown, left, runs[3]], 2) == runs[3].seconds
    twice = left.model_copy(update={"strikes": 2})
    text = status_text(record.BatchView(batch, (twice,), ()))
    assert "about 2 min left" in text and "2 strikes" in text


def test_nothing_of_a_record_moves_the_terminal_that_shows_its_state(tmp_path):
    about = {"state": "died", "cause": "ended\x1b[2J\nby\u202eX", "box": "a\x07b"}
    run = Run(run_id="r", batch_id="b", notebook="x", **about)
    text = status_text(record.BatchView(tmp_path, (run,), ("r2: \x00",)))
    assert not set(text) & set("\x1b\x07\x00\u202e") and len(text.splitlines()) == 3
    assert "ended\\x1b[2J" in text and "a\\x07b" in text


# Limits, interrupts and what cannot be written


def test_the_limit_of_the_plan_skips_the_rest_and_cuts_the_limit_of_a_run(tmp_path):
    standin = StandIn(n001=lambda folder, run: time.sleep(0.3))
    result = go(plan(tmp_path, head="limits: {total_s: 0.25}"), standin)
    assert states(result) == ["answered", "answered", "skipped", "skipped"]
    assert result.runs[2].cause == "the plan's limit of 0.25 s was reached"
    assert standin.jobs["001"]["run_s"] < 0.25 and result.runs[2].stopped_by == "limit"


STOPS = "print('[1, 2]', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
BABBLES = "[(print('[1, 2]', flush=True), time.sleep(0.05)) for _ in range(999)]"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (BABBLES, "its runner did not stop 0.2 s after the limit of 0.2 s"),
        (STOPS, "its runner fell silent: no word for 1 s"),
    ],
)
def test_a_runner_that_does_not_end_is_ended_after_a_look_at_what_it_does(
    tmp_path, monkeypatch, code, cause
):
    monkeypatch.setattr(watched, "GRACE_S", 0.2)
    monkeypatch.setattr(watched, "SILENT_S", 1.0)
    argv = [sys.executable, "-c", f"import os, signal, time; {code}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    process = subprocess.Popen(argv, **pipes)
    job = {"mark": "m", "run_s": 0.2 if code == BABBLES else 60}
    listened = Watched(process, tmp_path, job, Stop(), time.monotonic())
    ticks = []
    listened.wait(lambda *where: ticks.append(where[:2]))
    assert listened.verdict == ("timed_out", cause, "") and (1, 2) in ticks
    assert process.wait(5) == -signal.SIGKILL
    assert f"pid {process.pid} " in (tmp_path / "stacks/threads.txt").read_text()
    listened.close()


def test_a_runner_that_was_killed_while_its_supervisor_was_held_up_was_killed_and_not_late(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(watched, "GRACE_S", 0.1)
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job = {"mark": "m", "run_s": 0.1}
    listened = Watched(process, tmp_path, job, Stop(), time.monotonic())

    def held_up(*where):
        process.kill()
        time.sleep(0.5)

    listened.wait(held_up)
    assert listened.verdict == ("", "", "") and process.returncode == -signal.SIGKILL
    assert not (tmp_path / "stacks").exists()
    listened.close()


def test_a_record_that_its_runner_could_not_write_is_heard_of(tmp_path):
    run = move(planned(tmp_path), "started", pid=1)
    words = move(run, "answered", seconds=3).model_dump_json()
    argv = [sys.executable, "-c", f"print('[3, 4]'); print({words!r})"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    listened = Watched(process, tmp_path, {"mark": "m", "run_s": 60}, Stop(), time.monotonic())
    listened.wait(None)
    assert listened.record is not None and listened.record.state == "answered"
    assert (listened.cell, listened.cells, listened.verdict) == (3, 4, ("", "", ""))
    listened.close()


def test_a_runner_that_cannot_start_is_a_failed_run(tmp_path, monkeypatch):
    run = planned(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    ended = run_one(tmp_path / run.run_id, run, {"mark": "m", "run_s": 1}, stop=Stop())
    why = "its runner cannot start: No such file or directory"
    assert (ended.state, ended.cause) == ("failed", why)
    assert read_run(tmp_path / run.run_id / "run.json") == ended


def test_a_carrier_that_breaks_costs_its_run_alone(tmp_path):
    def breaks(folder, run):
        raise ValueError("no such thing")

    result = go(plan(tmp_path), StandIn(n001=breaks))
    assert states(result) == ["answered", "failed", "answered", "answered"]
    assert result.runs[1].cause == "its supervisor broke: ValueError: no such thing"


def test_a_box_that_cannot_be_captured_costs_only_the_runs_that_want_it(tmp_path):
    def burns(path):
        raise ValueError("sysfs is on fire\nand more")

    rows = LIVE + "\n- {notebook: needs_no_verdict.ipynb, danger: looks}"
    result = go(plan(tmp_path, rows), capture=burns)
    assert states(result) == ["skipped", "answered"]
    assert result.runs[0].cause == "this box could not be captured: ValueError: sysfs is on fire"


def test_a_signal_is_heard_while_the_box_is_captured(tmp_path):
    def interrupted(path):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal comes first")

    result = go(plan(tmp_path, LIVE), capture=interrupted)
    assert [run.cause for run in result.runs] == ["interrupted (SIGINT)"]
    assert result.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_cannot_begin_is_refused_in_one_line_before_anything_is_written(tmp_path):
    with pytest.raises(PlanError, match="'live'"):
        go(plan(tmp_path, LIVE))
    assert not (tmp_path / "outputs").exists()
    (tmp_path / "outputs").write_text("")
    with pytest.raises(PlanError, match="cannot be written: Not a directory"):
        go(plan(tmp_path))


def test_results_never_go_into_a_folder_that_exists(tmp_path):
    path = plan(tmp_path, head="limits: {total_s: 0.000001}")
    results = [go(path) for _ in range(3)]
    assert len({result.folder for result in results}) == 3
    assert {run.state for result in results for run in result.runs} == {"skipped"}


# The order of runs, and the box between them


MIXED = """- {notebook: needs_no_verdict.ipynb, danger: looks, repeats: 6}
- {notebook: needs_no_verdict.ipynb, danger: loads, repeats: 2}
- {notebook: needs_no_verdict.ipynb, danger: provokes}"""


def brief(folder, run):
    time.sleep(0.05)


def test_looks_go_on_side_by_side_and_what_loads_or_provokes_alone(tmp_path):
    standin = StandIn(each=brief)
    result = go(plan(tmp_path, MIXED, "jobs: 3"), standin, slots=8)
    assert states(result) == ["answered"] * 9 and standin.most == 3
    assert standin.beside <= {f"00{number}" for number in range(6)}
    assert standin.ran[6:] == ["006", "007", "008"]
    alone = StandIn(each=brief)
    go(plan(tmp_path, MIXED), alone, slots=8)
    assert alone.most == 1


def test_a_carrier_with_a_box_for_each_slot_runs_anything_side_by_side(tmp_path):
    standin = StandIn(each=brief)
    stop = Stop()
    carrier = Local(4, stop, standin)
    carrier.one_box = False
    run_plan(plan(tmp_path, MIXED), tmp_path / "outputs", carrier=carrier, stop=stop)
    assert standin.most == 4 and {"006", "007"} & standin.beside


def test_a_run_that_reads_the_batch_waits_for_all_before_it(tmp_path):
    row = "- {notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, "
    parts = ("repeats: 3}", 'parameters: {batch: "{batch}"}}', "repeats: 2}")
    standin = StandIn(each=brief)
    go(plan(tmp_path, "\n".join(row + part for part in parts), "jobs: 4"), standin, slots=4)
    assert set(standin.ran[:3]) == {"000", "001", "002"}
    assert set(standin.ran[3:]) == {"003", "004", "005"} and standin.most == 3


def test_what_reads_the_batch_reads_it_anew_after_runs_that_a_resumed_batch_made(tmp_path):
    row = "- {notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, "
    path = plan(tmp_path, f'{row}repeats: 2}}\n{row}parameters: {{batch: "{{batch}}"}}}}')
    first = go(path, StandIn(n000=state("failed", stopped_by="interrupt")))
    assert [run.state for run in first.runs] == ["failed", "answered", "answered"]
    standin = StandIn()
    runs = go(path, standin, resume=first.folder).runs
    assert standin.ran == ["000", "002"] and [run.attempt for run in runs] == [2, 1, 2]
    assert (first.folder / runs[2].run_id / "earlier/1/figure.png").exists()
    go(path, standin, resume=first.folder)
    assert len(standin.ran) == 2, "nothing ran since"


CARD = "0000:03:00.0"
LOADS = "- {notebook: needs_no_verdict.ipynb, danger: loads"
GPUS = f"""{LOADS}, gpu: "{CARD}", repeats: 2}}
{LOADS}, gpu: "0000:04:00.0"}}
{LOADS}}}
- {{notebook: needs_no_verdict.ipynb, danger: looks}}
- {{notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, parameters: {{batch: "{{batch}}"}}}}"""
WRITTEN = "order: as written\ngates: {settle_s: 0}"
GIB = 1 << 30
RESET = Trouble(f"gpu {CARD}", "the kernel logged gpu reset", passes=False)


class Looks:
    """Stands for a look at the box: what each look finds, the last for ever; counts the looks."""

    def __init__(self, *troubles_or_bytes):
        self.found = list(troubles_or_bytes)
        self.count = 0

    def __call__(self, gpus=(), root="", *, folder=".", since=None):
        self.count += 1
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        errors = (found,) if isinstance(found, Trouble) else ()
        used = 0 if errors else found
        card = GpuState(CARD, (("sysfs VRAM", used, 16 * GIB),))
        other = GpuState("0000:04:00.0", (("sysfs VRAM", 0, 16 * GIB),))
        return BoxState(record.boot_id(), (card, other), errors=errors)


def test_a_gpu_in_use_holds_back_only_what_works_it_and_each_run_looks_anew(tmp_path):
    # The first look; a clean one; after the first run 12 GiB are left, until the fourth run looks.
    looks = Looks(0, 0, 12 * GIB, 12 * GIB, 12 * GIB, 0)
    result = go(plan(tmp_path, GPUS, WRITTEN), measure=looks)
    assert states(result) == ["answered", "skipped", *["answered"] * 4]
    first, second = result.runs[:2]
    left = "sysfs VRAM: 12.00 GiB used, expected at most 819.20 MiB"
    assert first.gate == f"gpu {CARD}: {left}" and first.quarantined == ""
    assert second.cause == f"gpu {CARD} is not clean: {left}" and second.stopped_by == "box"
    assert states(go(plan(tmp_path, GPUS, WRITTEN), resume=result.folder)) == ["answered"] * 6


def test_what_no_look_can_disprove_counts_until_the_next_boot_also_when_resumed(tmp_path):
    path = plan(tmp_path, GPUS, WRITTEN)
    result = go(path, measure=Looks(0, 0, RESET, 0))
    expected = ["answered", "skipped", "answered", "skipped", "answered", "answered"]
    assert states(result) == expected
    assert result.runs[0].quarantined == f"gpu {CARD} (for good)"
    assert "the kernel logged gpu reset" in result.runs[1].cause
    assert states(go(path, resume=result.folder)) == expected
    change(result.folder, result.runs[0].run_id, boot_id="before")
    assert states(go(path, resume=result.folder)) == ["answered"] * 6


TAKES = "- {notebook: takes_parameters.ipynb, danger: loads, box"
NIGHT = f"""{TAKES}: live}}
{TAKES}: cpu-only}}
{TAKES}: live}}
{TAKES}: cuda-healthy}}
{TAKES}: live}}
{TAKES}: rx7900xt-container}}
- {{notebook: takes_parameters.ipynb, danger: looks, box: live, parameters: {{batch: "{{batch}}"}}}}"""


class Host:
    """Stands for a look at a box without a GPU, of which so many GiB of RAM are available."""

    def __init__(self, *available_gib, read_only=False):
        self.available_gib = list(available_gib)
        self.read_only = read_only

    def __call__(self, gpus=(), root="", *, folder=".", since=None):
        gib = self.available_gib.pop(0) if len(self.available_gib) > 1 else self.available_gib[0]
        about = {"total_bytes": 64 * GIB, "available_bytes": int(gib * GIB)}
        return BoxState(record.boot_id(), **about, read_only=self.read_only)


def test_memory_that_another_program_takes_closes_live_runs_while_it_is_short_and_no_other(
    tmp_path,
):
    path = plan(
        tmp_path, NIGHT, "order: as written\ngates: {settle_s: 0.3, host_free_bytes: 2147483648}"
    )
    # A browser takes 56 of 64 GiB: nobody is closed. Another program takes more, too long for the third run.
    looks = Host(64, 8, 8, 8, 8, *[1] * 5, 40)
    result = go(path, capture=capture, measure=looks)
    assert states(result) == ["answered", "answered", "skipped", *["answered"] * 4]
    why = "host memory is short: 1.00 GiB available, expected at least 2.00 GiB"
    assert (result.runs[2].cause, result.runs[2].stopped_by) == (why, "box")
    assert {run.gate for run in result.runs} == {""}, "no run is blamed for it"
    assert states(go(path, capture=capture, resume=result.folder)) == ["answered"] * 7


def test_a_run_waits_only_for_what_it_could_meet_and_is_blamed_for_nothing_else(tmp_path):
    rows = f"""{TAKES}: cpu-only}}
{LOADS}, gpu: "0000:04:00.0"}}"""
    path = plan(tmp_path, rows, "order: as written\ngates: {settle_s: 600}")
    looks = Looks(0, 12 * GIB)  # somebody takes the first card for the whole night
    result = go(path, measure=looks)
    assert states(result) == ["answered", "answered"] and looks.count == 5
    assert [run.gate for run in result.runs] == ["", ""]


def test_a_disk_that_cannot_be_written_closes_all_that_load_and_the_report_comes(tmp_path):
    path = plan(tmp_path, NIGHT, WRITTEN)
    result = go(path, capture=capture, measure=Host(64, read_only=True))
    assert states(result) == [*["skipped"] * 6, "answered"]


def test_the_closing_report_runs_after_the_time_is_up_and_where_the_box_cannot_be_captured(
    tmp_path,
):
    def burns(path):
        raise ValueError("sysfs is on fire")

    standin = StandIn(n000=lambda folder, run: time.sleep(0.3))
    closing = NIGHT.splitlines()[-1]
    head = "limits: {total_s: 0.25, run_s: 77}\norder: as written"
    result = go(plan(tmp_path, f"{FOUR}\n{closing}", head), standin, capture=burns)
    assert states(result) == ["answered", *["skipped"] * 3, "answered"]
    job = standin.jobs["004"]
    assert (job["run_s"], job["parameters"]["box"]) == (77, "live")


def test_a_look_that_breaks_costs_no_run_and_the_records_say_that_it_was_blind(tmp_path):
    def broken(gpus=(), root="", *, folder=".", since=None):
        raise ValueError("no such sensor\nat all")

    result = go(plan(tmp_path), measure=broken)
    assert states(result) == ["answered"] * 4
    gates = {run.gate for run in read_batch(result.folder).runs}
    assert gates == {"not looked at: ValueError: no such sensor"}


def test_a_wait_for_a_clean_box_ends_with_the_batch(tmp_path):
    class Full(Looks):
        def __call__(self, *args, **options):
            if self.count == 3:
                stop.signal = "SIGTERM"
            return super().__call__(*args, **options)

    stop = Stop()
    path = plan(tmp_path, GPUS, "order: as written\ngates: {settle_s: 600}")
    result = go(path, stop=stop, measure=Full(0, 0, 12 * GIB))
    assert states(result) == ["answered", *["skipped"] * 5]
    assert result.interrupted == "SIGTERM" and result.exit_code == 130


def test_a_process_that_nothing_ends_keeps_its_gpu_also_when_the_batch_is_resumed(tmp_path):
    path = plan(tmp_path, GPUS, WRITTEN)
    result = go(path, StandIn(n000=state("stuck", cause="SIGKILL does not end python (7)")))
    expected = ["stuck", "skipped", "answered", "skipped", "answered", "answered"]
    assert states(result) == expected
    assert "SIGKILL does not end python (7)" in result.runs[1].cause
    again = StandIn()
    assert states(go(path, again, resume=result.folder)) == expected
    assert again.ran == ["005"], "only the closing report is made again"


def test_a_stop_listens_only_while_it_is_asked_to():
    stop = Stop()
    with stop.listening():
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert (stop.signal, stop.times) == ("SIGHUP", 3)
        stop.raises = True
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("it raises")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
