"""The command vpoc, the tables and figures of notebook 04, and the verdict over a box's free memory."""

import json
from functools import partial

import pytest
from command_line import verb
from vpoc_trades import lines

from helpers.look.bundle import open_box
from helpers.vpoc import answer, histogram, reading, trades
from helpers.vpoc import figures as vpoc_figures
from helpers.vpoc import view as vpoc
from helpers.vpoc.planner import Free, Shape

CASE = Shape(trades=1014 * 20_000, sessions=1014, longest=20_000, bins=1000)


run = partial(verb, "vpoc")
ROWS = (
    "2024-03-01T15:00:00Z,5100.25,3",
    "2024-03-01T15:00:01Z,5100.5,9",
    "2024-03-01T15:00:02Z,5100.5,nan",
    "2024-03-01T23:30:00Z,5101.0,1",
)


def test_profiles_of_a_file_are_written_and_bad_rows_are_counted_and_kept(tmp_path):
    path = lines(tmp_path / "trades.csv", ROWS)
    out = tmp_path / "got"
    code, answer, _ = run(path, "--tick", "ES", "--out", out, "--json")
    (told,) = json.loads(answer)
    assert code == 0 and [row["poc"] for row in told["sessions"]] == [5100.5, 5101.0]
    assert any("1 rows set aside" in note for note in told["notes"])
    assert (tmp_path / "got.levels.parquet").exists()
    assert (tmp_path / "trades.csv.aside.csv").exists()
    code, _, err = run(path, "--tick", "ES", "--out", out)
    assert code == 2 and "exists" in err and err.count("\n") == 1
    code, answer, _ = run(path, "--tick", "ES", "--out", out, "--force", "--window", "08:30-15:15")
    assert code == 0 and "1 sessions" in " ".join(answer.split()) and "5100.5" in answer


def test_a_column_that_is_not_guessed_can_be_named(tmp_path):
    path = lines(tmp_path / "t.csv", ROWS, "time,bid,lots")
    named = ["--column", "price=bid", "--column", "volume=lots"]
    code, answer, _ = run(path, "--tick", "ES", "--out", tmp_path / "got", *named)
    assert code == 0 and "price is 'bid'" in answer


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["no-such.csv"], "no-such.csv"),
        (["{}", "--tick", "zero"], "tick 'zero'"),
        (["{}", "--strategy", "magic"], "strategy 'magic'"),
        (["{}", "--window", "08:30"], "expected FROM-TO"),
        (["{}", "--column", "bid=price"], "expected ROLE=NAME"),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(tmp_path, argv, told):
    path = lines(tmp_path / "trades.csv", ROWS[:1])
    code, out, err = run(*[word.format(path) for word in argv], "--out", tmp_path / "got")
    assert code == 2 and told in err and err.count("\n") == 1 and not out


def test_the_cases_result_is_4_megabytes_and_its_one_hot_300_gigabytes():
    found = answer.verdict(CASE, Free(20 << 30, "free on the card", gpu=True), [])
    by_id = {line.id: line.reading.value for line in found.evidence}
    assert by_id["result"] == 1014 * 1000 * 4 and by_id["one-hot"] > 300e9
    assert found.cause == "true-capacity" and found.missing
    assert "preallocated" in found.next_step.what
    assert found.title.startswith("Take ") and " trades at a time, in " in found.title


def test_a_full_card_is_told_to_stream_and_a_free_one_has_a_plan():
    full = answer.verdict(CASE, Free(1 << 20, "free on the card", gpu=True), [])
    assert "stream" in full.next_step.command and "does not" not in full.summary
    fits = dict(answer.plans(CASE, Free(20 << 30, "free on the card", gpu=True)))
    assert fits["one_hot"].chunks > 1  # in chunks even one-hot fits


@pytest.mark.parametrize(
    "name", ["rx7900xt-container", "cuda-healthy", "cpu-only", "strix-halo-4-ttm"]
)
def test_every_box_says_what_it_has_free(name):
    free = answer.free_of(open_box(name))
    assert free.bytes > 0 and free.says


def test_the_cases_figures_are_answered_and_each_says_how_it_is_known():
    store = answer.stored(reading.generated(1014, 300))

    def asked(free):
        return {row[0]: row[1:] for row in answer.expectations(store, free)}

    found = asked(Free(20 << 30, "free on the card", 0, True, 24 << 30))
    assert found["1,014 sessions of 1,000 prices"][2] == "as in the case"
    assert found["which chunk"][0].startswith("preallocated: 304,200 trades at a time")
    assert found["below 18 GB"][1:] == ["closed form, its trades included", "met"]
    assert found["75 to 85 % of the card"][2] == "less is needed"
    assert found["at most 120 s"][1:] == ["measured on this machine's CPU", "met"]
    assert "extrapolated in a straight line from 304,200 trades" in found["120 s would do for"]
    assert "MiB" in str(vpoc.expectations_table(answer.expectations(store, Free(1 << 30, "x"))))
    none = asked(Free(20 << 30, "RAM"))["75 to 85 % of the card"]
    assert none == [None, None, "not measured because this box tells the size of no card"]
    full = asked(Free(1 << 20, "free on the card", 0, True, 24 << 30))
    assert full["which chunk"][2] == "not met" and "at most 120 s" not in full


def test_an_unequal_strategy_speaks_against_the_answer():
    row = {"strategy": "fused", "measured_bytes": 1, "equal": False}
    against = answer.verdict(CASE, Free(20 << 30, "x"), [row]).against
    assert [line.id for line in against] == ["unequal-fused"]


def test_every_figure_is_drawn_and_has_words():
    some = reading.generated(3, 2000)
    layout = trades.survey(some)
    counts = histogram.profiles(some, layout)
    found = histogram.levels(counts, layout)
    rows = []
    for k, name in enumerate(("fused", "one_hot", "flat"), 1):
        sizes = {"measured_bytes": k << 20, "predicted_bytes": k << 20, "chunk_trades": 10**k}
        row = {"strategy": name, "seconds": 0.01 * k, "times_limit": k, **sizes}
        rows.append({**row, "equal": True, "status": "ok"})
    of = (some, layout, counts, found)
    drawn = {
        "profile": (of, "Session 0: POC "),
        "strategies": ((rows, 1e-3, 1 << 30), "fused is fastest: 10.0 x one read of the inputs"),
        "predicted": ((rows,), "within 1.00 times of the predicted"),
        "curve": ((rows,), "Fastest on this machine: 10 trades a chunk with fused, 10.0 ms"),
    }
    for name, (inputs, said) in drawn.items():
        view = getattr(vpoc_figures, name)(*inputs)
        data, width, height = view.draw().picture()
        assert data.startswith(b"\x89PNG") and width > 300 and height > 150 and len(view.rows) == 3
        assert said in view.title and view.alt.startswith(view.title)
    assert f"{int(counts[0].sum())} contracts" in vpoc_figures.profile(*of).alt
    costs = str(vpoc.strategies_table(rows))
    part = str(vpoc.strategies_table([{**rows[1], "sessions": 2}]))
    assert "one_hot, extrapolated from 2 sessions" in part and "in a straight line" in part
    assert "extrapolated" not in costs.lower()
    assert "same bits" in costs and "10.0 ms" in costs and "4.06 MB" in str(vpoc.case_table())


def test_every_axis_of_a_figure_has_a_name_and_several_numbers():
    rows = [
        {"strategy": "a", "chunk_trades": n, "seconds": n / 1e6, "measured_bytes": n << 10}
        for n in (4096, 8192, 16384)
    ]
    rows = [{**row, "predicted_bytes": row["measured_bytes"]} for row in rows]
    for view in (vpoc_figures.curve(rows), vpoc_figures.predicted(rows)):
        figure = view.draw()
        figure.canvas.draw()
        for axes in figure.axes:
            assert axes.get_ylabel() and axes.get_title(loc="left")
            ticks = [tick for tick in axes.get_yticklabels() if tick.get_text()]
            assert len(ticks) >= 2
