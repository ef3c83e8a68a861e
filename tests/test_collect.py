"""Batches of several boxes become one that status and the page read; no run is lost, doubled or mistaken for another."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.batch.history import CollectError, collect
from helpers.batch.record import move, read_batch, status_text, write_run
from helpers.batch.report import write_index
from helpers.batch.shapes import Run

BATCH = "20260101T220000Z-night"
NAME = "000-probe-0a1b2c3d"
OTHER = "001-probe-0a1b2c3d"


def batch(folder, box, states, name=BATCH, boot="b00t"):
    """A batch's folder as a box leaves it."""
    for number, state in enumerate(states):
        about = {"batch_id": name, "box": box, "notebook": "p.ipynb", "parameters": {"n": number}}
        run = Run(run_id=f"{number:03d}-probe-0a1b2c3d", **about)
        if state == "skipped":
            run = move(run, "skipped", cause="interrupted (SIGINT)")
        elif state != "planned":
            where = {"node": box, "boot_id": f"{boot}-{box}", "pid": 100 + number}
            run = move(run, "started", started_at="2026-01-01T22:00:00Z", **where)
            run = run if state == "started" else move(run, state, seconds=1.0)
        here = folder / name / run.run_id
        here.mkdir(parents=True)
        (here / "notebook.ipynb").write_text(f"{state} on {box}")
        write_run(here, run)
    (folder / name / "plan.yaml").write_text(f"name: night  # {box}")
    (folder / name / ".lock").write_text(f"process 7 on {box}\n")
    return folder / name


def states(view):
    return {run.run_id: run.state for run in view.runs}


def test_the_same_plan_on_two_boxes_does_not_collide(tmp_path):
    found = [batch(tmp_path / box, box, ["answered", "died"]) for box in ("oak", "elm")]
    done = collect(found, tmp_path / "all")
    assert states(done) == {
        f"{box}.{BATCH}.{number}-probe-0a1b2c3d": state
        for box in ("oak", "elm")
        for number, state in (("000", "answered"), ("001", "died"))
    }
    assert (done.folder / f"elm.{BATCH}.{OTHER}" / "notebook.ipynb").read_text() == "died on elm"
    assert (
        done.folder / "batches" / f"oak.{BATCH}" / "plan.yaml"
    ).read_text() == "name: night  # oak"
    assert (done.same, done.unreadable) == (0, ())


def test_what_was_merged_is_read_by_status_and_drawn_on_one_page(tmp_path):
    for box in ("oak", "elm"):
        batch(tmp_path / "in" / box, box, ["answered", "skipped"])
    done = collect([tmp_path / "in" / "oak", tmp_path / "in" / "elm"], tmp_path / "all")
    text = status_text(read_batch(done.folder))
    assert "2 answered" in text and "2 skipped" in text and f"elm.{BATCH}.{NAME}" in text
    assert f"oak.{BATCH}.{OTHER}" in write_index(done.folder).read_text()


def test_a_box_that_the_batch_is_named_after_is_not_named_twice(tmp_path):
    done = collect([batch(tmp_path, "oak", ["answered"], name=f"{BATCH}-oak")], tmp_path / "all")
    assert [run.run_id for run in done.runs] == [f"{BATCH}-oak.{NAME}"]


def test_collecting_again_recognises_what_is_there(tmp_path):
    found = batch(tmp_path / "oak", "oak", ["answered", "died", "planned"])
    collect([found], tmp_path / "all")
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "all").rglob("*"))
    done = collect([found, found], tmp_path / "all")
    assert done.same == 6 and before == sorted(
        path.relative_to(tmp_path) for path in (tmp_path / "all").rglob("*")
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_record_that_tells_most_stays_and_the_others_are_kept_below_it(tmp_path, order):
    """The same batch copied at midnight, in the night and in the morning."""
    told = ("started", "node_lost", "answered")
    copies = [batch(tmp_path / state, "oak", [state]) for state in told]
    done = collect([copies[one] for one in order], tmp_path / "all")
    assert list(states(done).values()) == ["answered"]
    here = done.folder / f"oak.{BATCH}.{NAME}"
    kept = {path.read_text() for path in here.rglob("notebook.ipynb")}
    assert (here / "notebook.ipynb").read_text() == "answered on oak"
    assert kept == {f"{state} on oak" for state in told}
    assert collect(copies, done.folder).same == 3


def test_two_runs_that_share_every_name_are_both_kept(tmp_path):
    """Two batches of one second on boxes of one name, as containers have them."""
    found = [batch(tmp_path / boot, "box", ["answered"], boot=boot) for boot in ("one", "two")]
    done = collect(found, tmp_path / "all")
    assert len(done.runs) == 2 and {run.boot_id for run in done.runs} == {"one-box", "two-box"}
    assert collect(found, tmp_path / "all").same == 2


@pytest.mark.parametrize("text", ["", "{", json.dumps({"schema_version": 99}), "[]"])
def test_a_torn_or_newer_record_is_named_and_the_rest_is_merged(tmp_path, text):
    found = batch(tmp_path / "oak", "oak", ["answered", "died"])
    whole = (found / OTHER / "run.json").read_text()
    (found / OTHER / "run.json").write_text(text)
    done = collect([found], tmp_path / "all")
    assert list(states(done).values()) == ["answered"] and len(done.unreadable) == 1
    assert f"oak.{BATCH}.001-probe-0a1b2c3d/run.json" in done.unreadable[0]
    (found / OTHER / "run.json").write_text(whole)
    done = collect([found], tmp_path / "all")
    assert list(states(done).values()) == ["answered", "died"] and done.unreadable == ()


def test_what_a_lost_node_kept_is_found_with_its_run(tmp_path):
    home = batch(tmp_path / "home", "oak", ["node_lost"])
    left = batch(tmp_path / "node", "oak", ["started"])
    left = left.rename(left.with_name(f"{BATCH}.a1b2c3"))
    (home / ".lock").write_text("process 7 on desk\n")
    (left / ".lock").write_text("for a batch on desk\n")
    done = collect([left, home], tmp_path / "all")
    assert states(done) == {f"desk.{BATCH}.{NAME}": "node_lost"}
    assert {path.read_text() for path in done.folder.rglob("notebook.ipynb")} == {
        "node_lost on oak",
        "started on oak",
    }


def test_a_merge_of_merges_keeps_the_names(tmp_path):
    halves = [
        collect([batch(tmp_path / box, box, ["answered"])], tmp_path / f"half-{box}").folder
        for box in ("oak", "elm")
    ]
    done = collect(halves, tmp_path / "all")
    assert sorted(states(done)) == [f"elm.{BATCH}.{NAME}", f"oak.{BATCH}.{NAME}"]
    assert (done.folder / "batches" / f"elm.{BATCH}" / "plan.yaml").exists()


def test_a_batch_in_which_another_was_put_down_is_taken_as_the_one_batch_it_is(tmp_path):
    found = batch(tmp_path / "oak", "oak", ["answered"])
    batch(found, "elm", ["failed"], name="copied-here")
    done = collect([found], tmp_path / "all")
    assert list(states(done).values()) == ["answered"]


def test_links_out_of_a_run_are_not_followed(tmp_path):
    found = batch(tmp_path / "oak", "oak", ["answered"])
    (tmp_path / "secret").write_text("of the box alone")
    (found / NAME / "link").symlink_to(tmp_path / "secret")
    done = collect([found], tmp_path / "all")
    assert not [path for path in done.folder.rglob("*") if path.name == "link"]


@pytest.mark.parametrize("case", ["nothing", "no_batch", "itself", "foreign"])
def test_what_cannot_be_merged_is_refused_in_one_line_and_left_alone(tmp_path, case):
    out = tmp_path / "all"
    found = tmp_path / "nothing"
    if case == "no_batch":
        found.mkdir()
    if case in ("itself", "foreign"):
        found = batch(tmp_path / "oak", "oak", ["answered"])
    if case == "itself":
        out = found
    if case == "foreign":
        out.mkdir()
        (out / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CollectError, match="seen .*; expected .*; give another") as refused:
        collect([found], out)
    assert "\n" not in str(refused.value) and before == sorted(tmp_path.rglob("*"))


def test_a_merge_that_was_killed_loses_nothing(tmp_path):
    found = batch(tmp_path / "oak", "oak", ["answered"])
    out = collect([found], tmp_path / "all").folder
    (out / ".collect-x" / "run").mkdir(parents=True)
    (out / ".collect-x" / "run" / "only.txt").write_text("the only copy")
    assert len(collect([found], out).runs) == 1
    assert (out / "batches" / "collect-x" / "run" / "only.txt").read_text() == "the only copy"


STATES = ["planned", "skipped", "started", "answered", "died", "node_lost"]
ENDS = st.lists(st.sampled_from(STATES), min_size=1, max_size=3)
BOXES = st.lists(st.tuples(st.sampled_from(["oak", "elm"]), ENDS), min_size=1, max_size=4)


@settings(max_examples=25)
@given(BOXES)
def test_whatever_is_merged_no_ended_run_is_lost(tmp_path_factory, boxes):
    folder = tmp_path_factory.mktemp("boxes")
    found = [batch(folder / str(number), box, states) for number, (box, states) in enumerate(boxes)]
    done = collect(found, folder / "all")
    expected = {
        (box, n): state
        for box, states in boxes
        for n, state in enumerate(states)
        if state in ("answered", "died")
    }
    ended = {
        (run.run_id.split(".")[0], run.parameters["n"])
        for run in done.runs
        if run.state in ("answered", "died")
    }
    assert ended == set(expected) and done.unreadable == ()
    texts = {path.read_text() for path in done.folder.rglob("notebook.ipynb")}
    assert texts == {f"{state} on {box}" for box, states in boxes for state in states}
    assert collect(found, done.folder).same == sum(len(states) for _, states in boxes)
