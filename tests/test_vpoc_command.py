"""The command vpoc, the tables and figures of notebook 04, and the verdict over a box's free memory."""

import json
from dataclasses import replace
from functools import partial

import pytest
from command_line import verb
from vpoc_trades import lines

from helpers.face.profiles import volume_profiles
from helpers.look.boxes import open_box
from helpers.vpoc import answer, figures, view
from helpers.vpoc.counting import GONE, STRATEGIES
from helpers.vpoc.files import profiles_of
from helpers.vpoc.free import Free, free_of
from helpers.vpoc.panel import Planner
from helpers.vpoc.planner import ProfileShape, plans
from helpers.vpoc.study import StrategyRow
from helpers.vpoc.trades import generated
from helpers.vpoc.view import strategies_table

CASE = ProfileShape(trades=1014 * 20_000, sessions=1014, bins=1000)
CARD = Free(20 << 30, "free on the card", gpu=True)

run = partial(verb, "vpoc")
ROWS = (
    "2024-03-01T15:00:00Z,5100.25,3",
    "2024-03-01T15:00:01Z,5100.5,9",
    "2024-03-01T15:00:02Z,5100.5,nan",
    "2024-03-01T23:30:00Z,5101.0,1",
)


def test_profiles_of_a_file_are_written_and_bad_rows_are_counted(tmp_path):
    path = lines(tmp_path / "trades.csv", ROWS)
    out = tmp_path / "got"
    code, printed, _ = run(path, "--tick", "ES", "--out", out, "--json")
    assert code == 0
    (answered,) = json.loads(printed)
    assert [row["poc"] for row in answered["sessions"]] == [5100.5, 5101.0]
    assert "1 rows left out: volume is no number" in answered["notes"]
    assert (tmp_path / "got.levels.parquet").exists()
    code, _, err = run(path, "--tick", "ES", "--out", out)
    assert code == 2
    assert "exists" in err
    assert err.count("\n") == 1
    code, printed, _ = run(path, "--tick", "ES", "--out", out, "--force")
    assert code == 0
    assert "2 sessions" in " ".join(printed.split())
    assert "5100.5" in printed


def test_a_column_that_is_not_guessed_can_be_named(tmp_path):
    path = lines(tmp_path / "t.csv", ROWS, "time,bid,lots")
    named = ["--column", "price=bid", "--column", "volume=lots"]
    code, printed, _ = run(path, "--tick", "ES", "--out", tmp_path / "got", *named)
    assert code == 0
    assert "price is 'bid'" in printed


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["no-such.csv"], "no-such.csv"),
        (["{}", "--tick", "zero"], "tick 'zero'"),
        (["{}", "--strategy", "magic"], "strategy 'magic'"),
        (["{}", "--device", "cuda"], "fused runs on the CPU"),
        (["{}", "--column", "bid=price"], "expected ROLE=NAME"),
        (["{}.npz"], ".npz is no longer read; write CSV or Parquet instead"),
        *((["{}", "--strategy", old], f"is gone; use {new}") for old, new in GONE.items()),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(tmp_path, argv, told):
    path = lines(tmp_path / "trades.csv", ROWS[:1])
    code, out, err = run(*[word.format(path) for word in argv], "--out", tmp_path / "got")
    assert code == 2
    assert told in err
    assert err.count("\n") == 1
    assert not out


def test_the_cases_result_is_4_megabytes_and_its_one_hot_300_gigabytes():
    verdict = answer.verdict_on_chunks(CASE, CARD, [])
    by_id = {line.id: line.reading.value for line in verdict.evidence}
    assert by_id["result"] == 1014 * 1000 * 4
    assert by_id["one-hot"] > 300e9
    assert verdict.cause == "true-capacity"
    assert verdict.missing
    assert "preallocated" in verdict.next_step.what
    assert verdict.title.startswith("Take ")
    assert " trades at a time, in " in verdict.title


def test_a_full_card_is_told_to_count_less_and_a_free_one_has_a_plan():
    full = answer.verdict_on_chunks(CASE, Free(1 << 20, "free on the card", gpu=True), [])
    assert full.title == "Not even one trade at a time fits"
    assert "fewer sessions" in full.next_step.what
    assert dict(plans(CASE, CARD))["one_hot"].chunks > 1  # in chunks even one-hot fits


def test_on_a_card_a_way_that_only_the_cpu_runs_has_no_plan_there():
    on_card = dict(plans(CASE, CARD))
    for name, way in STRATEGIES.items():
        assert (on_card[name] == "runs on the CPU alone") is not way.torch
    told = replace(Planner(CASE, CARD), strategy="fused").says()
    assert told == "fused runs on the CPU alone: choose another way, or no GPU."
    assert replace(Planner(CASE, Free(1 << 34, "RAM")), strategy="fused").says()[:7] == "fused: "


def test_a_figure_and_its_table_measure_in_the_same_read_of_the_inputs():
    costs = volume_profiles(free="20GiB", sessions=4, per_session=2000).measure(["fused"], 1)
    (row,) = costs.rows
    assert row.times_limit == row.seconds / costs.limit_s


def test_a_time_of_seconds_is_said_in_seconds():
    slow = replace(study_rows()[0], seconds=82.3)
    assert "1 min 22 s" in str(strategies_table([slow]))
    assert "10.0 ms" in str(strategies_table(study_rows()))


@pytest.mark.parametrize(
    "name", ["rx7900xt-container", "cuda-healthy", "cpu-only", "strix-halo-4-ttm"]
)
def test_every_box_says_what_it_has_free(name):
    free = free_of(open_box(name))
    assert free.bytes > 0
    assert free.says


def test_an_unequal_strategy_speaks_against_the_answer():
    row = StrategyRow("fused", "ok", measured_bytes=1, equal=False)
    against = answer.verdict_on_chunks(CASE, CARD, [row]).against
    assert [line.id for line in against] == ["unequal-fused"]


def study_rows():
    return [
        StrategyRow(
            name,
            "ok",
            chunk_trades=10**number,
            seconds=0.01 * number,
            times_limit=number,
            measured_bytes=number << 20,
            predicted_bytes=number << 20,
            equal=True,
        )
        for number, name in enumerate(STRATEGIES, 1)
    ]


@pytest.mark.parametrize(
    ("draw", "title"),
    [
        (
            lambda: figures.strategies(study_rows(), 1e-3, 1 << 30),
            "fused is fastest: 10.0 x one read of the inputs",
        ),
        (lambda: figures.profile(profiles_of(generated(3, 2000))), "Session 0: POC "),
    ],
    ids=["strategies", "profile"],
)
def test_a_figure_is_drawn_and_says_its_answer(draw, title):
    view = draw()
    data, width, height = view.draw().picture()
    assert data.startswith(b"\x89PNG")
    assert width > 300
    assert height > 150
    assert title in view.title
    assert view.alt.startswith(view.title)


def test_a_strategy_that_is_extrapolated_says_so():
    rows = study_rows()
    plain = str(view.strategies_table(rows))
    assert "extrapolated" not in plain.lower()
    assert "same bits" in plain
    assert "10.0 ms" in plain
    some = StrategyRow("one_hot", "ok", seconds=1.0, measured_bytes=1, sessions=2)
    assert "one_hot, extrapolated from 2 sessions" in str(view.strategies_table([some]))


def test_the_quickest_chunk_leads_the_table_of_chunks():
    table = view.chunks_table(study_rows())
    assert table.title.startswith("Fastest on this machine: 10 trades a chunk with fused, 10.0 ms")
    assert "6.00 MiB" in str(table)


def test_each_instrument_of_a_file_has_profiles_of_its_own(tmp_path):
    rows = [f"S,{'A/' if n % 2 else 'B'},{100 * (1 + n % 2) + 0.25 * n},{n + 1}" for n in range(20)]
    path = lines(tmp_path / "t.csv", rows, "session,symbol,price,volume")
    out = tmp_path / "got"
    code, printed, _ = run(path, "--out", out, "--json")
    assert code == 0
    answers = json.loads(printed)
    assert [answered["instrument"] for answered in answers] == ["A/", "B"]
    files = [name for answered in answers for name in answered["written"]]
    assert len(set(files)) == 4 and all(name.startswith(str(out)) for name in files)
    code, printed, _ = run(path, "--instrument", "B", "--out", tmp_path / "b", "--json")
    (only,) = json.loads(printed)
    assert only["sessions"] == answers[1]["sessions"]
    code, _, err = run(path, "--instrument", "C")
    assert code == 2 and err.count("\n") == 1
