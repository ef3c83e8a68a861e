"""Questions over many nights: what can be believed is read, what cannot is named, and the ready questions answer."""

import json
import re
from dataclasses import replace

import pytest
from night_runs import night
from tell_boxes import VERDICT

from helpers.batch import report
from helpers.batch.history import QUESTIONS, HistoryError, open_history, same_run
from helpers.batch.shapes import Run


def put(outputs, batch, run, **changes):
    run = run.model_copy(update={"batch_id": batch, **changes})
    folder = outputs / batch / run.run_id
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(run.model_dump_json())


ABOUT = {"run_id": "000-01_probe-aa", "batch_id": "", "box": "apu", "notebook": "01_probe.ipynb"}
NIGHTS = ["2026-11-20T23:00:00Z", "2026-11-21T23:00:00Z", "2026-11-22T23:00:00Z"]
RUN = Run(**ABOUT, state="answered", seconds=4.0, started_at=NIGHTS[0], verdict=VERDICT)
WEAK = replace(VERDICT, cause="true-capacity", confidence="weak")
WHY = "answer, or why there is none"
DIED = {"state": "died", "verdict": None, "cause": "killed by SIGSEGV", "signal": "SIGSEGV"}
OTHER = {"run_id": "001-other", "notebook": "02_stress.ipynb", "started_at": "no time"}


@pytest.fixture
def outputs(tmp_path):
    """Three nights of the same run, which once dies; a torn record and one of a newer version."""
    place = tmp_path / "with [brackets] and 'quotes'*"
    put(place, "20261120-a", RUN)
    put(place, "20261121-a", RUN, **DIED, node="n7", seconds=1.0, started_at=NIGHTS[1])
    put(place, "20261122-a", RUN, verdict=WEAK, seconds=16.0, started_at=NIGHTS[2])
    put(place, "20261122-a", RUN, **OTHER, seconds=float("nan"))
    newer = json.dumps({**RUN.model_dump(mode="json"), "schema_version": 99})
    for name, text in (("002-torn", '{"schema_version": 1, "run'), ("003-newer", newer)):
        (place / "20261122-a" / name).mkdir()
        (place / "20261122-a" / name / "run.json").write_text(text)
    return place


def test_what_cannot_be_believed_is_named_and_the_rest_is_read(outputs):
    found = open_history(outputs)
    assert found.read == 4
    names = [line.split("/run.json")[0].rpartition("/")[2] for line in found.unreadable]
    assert names == ["002-torn", "003-newer"]


def test_a_report_has_the_cause_or_the_answer_of_each_run_and_names_torn_records(outputs):
    (died,) = report.runs_table(str(outputs / "20261121-a")).rows
    assert (died["state"], died[WHY]) == ("died", "killed by SIGSEGV")
    last = str(outputs / "20261122-a")
    assert re.search("Not readable: .*002-torn", str(report.runs_table(last)))
    assert "too little memory (weak)" in {row[WHY] for row in report.runs_table(last).rows}
    assert report.NO_BATCH in str(report.runs_table(""))


def test_states_per_night(outputs):
    rows = open_history(outputs).ask("states").rows
    assert [row[:5] for row in rows] == [
        ("20261120-a", 1, 1, 0, 0),
        ("20261121-a", 1, 0, 0, 1),
        ("20261122-a", 2, 2, 0, 0),
    ]


def test_what_was_ever_lost_and_on_which_node(outputs):
    answer = open_history(outputs).ask("died")
    row = dict(zip(answer.columns, answer.rows[0], strict=True))
    assert len(answer.rows) == 1
    assert (row["node"], row["signal"], row["times"]) == ("n7", "SIGSEGV", 1)
    assert row["why, the last time"] == "killed by SIGSEGV"


def test_the_verdict_of_the_same_run_that_changed_over_nights_though_one_between_had_none(outputs):
    answer = open_history(outputs).ask("verdicts")
    changed = ("20261120-a", "ttm-gtt-cap (likely)", "20261122-a", "true-capacity (weak)")
    assert [row[3:7] for row in answer.rows] == [changed]
    said = str(report.nights(str(outputs / "x"), "verdicts"))
    assert "TTM or GTT limit (likely)" in said and "too little memory (weak)" in said
    assert "true-capacity" not in said


def test_times_and_figures_of_the_same_run_over_nights(outputs):
    found = open_history(outputs)
    assert found.ask("times").rows == [("01_probe.ipynb", "apu", "", 2, 4.0, 16.0, 4.0, 16.0)]
    peaks = found.ask("peaks")
    assert {row[2] for row in peaks.rows} == {"e1", "e2", "e3"}
    assert all(row[5] == row[8] > 0 for row in peaks.rows)
    assert found.ask("slowest").rows[0][0] in ("01_probe.ipynb", "02_stress.ipynb")


def test_any_sql_over_runs_is_answered_and_bad_sql_is_one_line(outputs):
    found = open_history(outputs)
    assert found.ask("SELECT count(*) FROM runs WHERE started_at IS NULL").rows == [(1,)]
    answer = found.ask("SELECT min(started_at) AS first FROM runs")
    assert json.dumps(answer.rows) == '[["2026-11-20 23:00:00"]]'
    for wrong in ("nights", "SELECT nothing FROM nowhere", "SELEC t", "COPY runs TO '/dev/null'"):
        with pytest.raises(HistoryError) as error:
            found.ask(wrong)
        assert "expected" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_ready_question_has_an_answer_where_there_is_no_run_at_all(tmp_path, question):
    answer = open_history(tmp_path).ask(question)
    assert answer.rows == [] and len(answer.columns) >= 6


def test_a_run_that_lies_in_its_batch_and_in_a_merge_of_several_is_read_once(outputs):
    put(outputs, "merged", RUN, run_id=f"box.20261120-a.{RUN.run_id}")
    path = outputs / "merged" / f"box.20261120-a.{RUN.run_id}" / "run.json"
    path.write_text(path.read_text().replace('"batch_id":"merged"', '"batch_id":"20261120-a"'))
    assert open_history(outputs).read == 4


def test_without_a_folder_one_line_says_what_to_do(tmp_path):
    why = "no such folder; expected the one that holds the batches"
    with pytest.raises(HistoryError, match=why):
        open_history(tmp_path / "nothing")


def test_two_records_are_the_same_run_by_what_was_asked_not_by_what_came_of_it():
    came = {"state": "died", "seconds": 9.0, "batch_id": "b", "run_id": "007-x", "verdict": None}
    later, other = (RUN.model_copy(update=one) for one in (came, {"parameters": {"steps": 3}}))
    assert same_run(RUN) == same_run(later) != same_run(other)
    moved = RUN.model_copy(update={"box": "other"})
    assert same_run(RUN) != same_run(moved)
    assert same_run(RUN, with_box=False) == same_run(moved, with_box=False)


def test_the_table_for_a_notebook_cell_names_what_it_left_out(outputs):
    text = str(report.nights(str(outputs / "20261121-a"), "states"))
    assert "20261120-a" in text and "answered" in text and text.count("Left out: ") == 2
    assert "20261121-a" not in text  # the batch that asks has not ended yet
    nothing = str(report.nights(str(outputs / "nothing" / "x"), "states"))
    assert nothing.endswith("expected the one that holds the batches")


def test_every_record_of_ten_nights_is_asked(tmp_path):
    for number in range(10):
        night(tmp_path / f"2026112{number}-n", 10, seed=number)
    found = open_history(tmp_path)
    assert found.read == 100
    for question in QUESTIONS:
        answer = found.ask(question)
        assert len(answer.columns) >= 6 and all(len(row) >= 6 for row in answer.rows)
