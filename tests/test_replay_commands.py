"""record, replay and whatif at the command line: what they print, what they refuse, and with which exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import verb as run

from helpers.ground.contract import from_json
from helpers.ground.replays import Replay, WhatIf

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "env" / "traces"
ONLY = ["--only", "--conf", "expandable_segments:True"]
LOOP = TRACES / "growing-loop.parquet"


def small_trace(folder, *ops):
    path = folder / "small.jsonl"
    path.write_text("\n".join(json.dumps(op) for op in ops))
    return path


ALLOCS = (
    {"op": "alloc", "id": 1, "size": 3 << 20},
    {"op": "alloc", "id": 2, "size": 30 << 20},
    {"op": "free", "id": 1},
)


def test_the_bundled_recording_is_replayed_address_by_address():
    code, out, _ = run("replay", LOOP, "--json")
    found = json.loads(out)
    check = found.pop("agreement")
    assert code == 0 and check["allocations"] == check["same_address"] > 5000
    assert check["reserved_bytes"] == check["recorded_reserved_bytes"]
    assert found["first_oom"]["size_bytes"] == 440 << 20
    assert found["proved"] == "oracle" and found.pop("notes")
    assert from_json(Replay, found)


def test_results_are_the_oracles_lines_and_never_written_over(tmp_path):
    trace = small_trace(tmp_path, *ALLOCS)
    out = tmp_path / "out.jsonl"
    assert run("replay", trace, "--capacity", "1GiB", "--results", out)[0] == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line.get("out") for line in lines] == [None, "ok", "ok", "ok", None]
    assert lines[1]["drv"] == [["malloc", 0, 0, 20 << 20]] and lines[2]["res"] == 50 << 20
    assert "final" in lines[-1]
    code, _, err = run("replay", trace, "--capacity", "1GiB", "--results", out)
    assert code == 2 and "exists already" in err and err.count("\n") == 1


def test_results_keep_the_ids_of_the_trace_and_are_a_trace_again(tmp_path):
    ops = [
        {"op": "alloc", "id": 17, "size": 5000},
        {"op": "fail_next", "n": 1},
        {"op": "alloc", "id": "loss", "size": 30 << 20},
        {"op": "free", "id": 17},
        {"op": "alloc", "id": 17, "size": 6000, "pool": 3},
        {"op": "empty_cache", "pool": 3},
    ]
    trace = small_trace(tmp_path, *ops)
    out = tmp_path / "out.jsonl"
    again = tmp_path / "2.jsonl"
    assert run("replay", trace, "--capacity", "1GiB", "--results", out)[0] == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()][1:-1]
    assert [row.get("id") for row in rows] == [17, None, "loss", 17, 17, None]
    assert [row.get("pool") for row in rows] == [None] * 4 + [3, 3] and rows[1]["count"] == 1
    assert run("replay", out, "--results", again)[0] == 0
    assert again.read_text().splitlines()[1:] == out.read_text().splitlines()[1:]
    parquet = tmp_path / "t.parquet"
    last = tmp_path / "3.jsonl"
    assert run("replay", out, "--parquet", parquet)[0] == 0
    assert run("replay", parquet, "--results", last)[0] == 0
    assert last.read_text().splitlines()[1:] == out.read_text().splitlines()[1:]


def test_results_on_standard_output_end_well(tmp_path):
    code, out, err = run("replay", small_trace(tmp_path, *ALLOCS), "--results", "-")
    assert (code, err) == (0, "") and json.loads(out.splitlines()[-1])["final"]


def test_an_answer_says_what_it_was_compared_with_and_names_one_release(tmp_path):
    trace = small_trace(tmp_path, *ALLOCS)
    words = ("--capacity", "1GiB", "--torch", "2.6.0", "--build", "rocm6.4")
    for argv in (("replay", trace, *words), ("whatif", trace, "--only", *words)):
        code, out, _ = run(*argv)
        words_of = " ".join(out.split())
        assert code == 0 and "of torch 2.6.0, rocm build (compiled from its source " in words_of
        assert "2.14.1" not in out, "the release that would have been taken"
        found = json.loads(run(*argv, "--json")[1])
        assert found["proved"] == "oracle" and "rocm build" in found["proved_on"]
    code, out, _ = run("replay", trace, *words[:2], "--torch", "2.8.0", "--build", "rocm6.4")
    assert (
        code == 0
        and "no rocm build of it was compared" in " ".join(out.split())
        and "rocm builds of 2.6.0, 2.9.1" in out
    )


def test_a_setting_that_the_model_leaves_out_is_named_beside_the_proof(tmp_path):
    trace = small_trace(tmp_path, *ALLOCS)
    base = "expandable_segments:True"
    conf = base + ",expandable_segments_reserve_by_class:[a:0.5,b:8G]"
    words = ("--capacity", "1GiB", "--torch", "2.15.0", "--conf")
    told = "expandable_segments_reserve_by_class: no trace says which stream is in which class"
    for argv in (("replay", trace, *words), ("whatif", trace, "--only", *words)):
        assert f"ot modelled: {told}" in " ".join(run(*argv, conf)[1].split())
        found = json.loads(run(*argv, conf, "--json")[1])
        row = next((one for one in found.get("rows", []) if one["settings"] == conf), found)
        assert row["not_modelled"] == [told]
        assert "ot modelled" not in run(*argv, base)[1]


def test_pages_that_cuda_cannot_map_are_refused_in_one_line(tmp_path):
    conf = "expandable_segments:True,large_segment_size_mb:25"
    for verb, more in (("replay", ["--conf", conf]), ("whatif", ["--only", "--conf", conf])):
        argv = [verb, small_trace(tmp_path, *ALLOCS), "--capacity", "1GiB", *more]
        code, out, err = run(*argv)
        assert code == 2 and "use an even number" in err and err.count("\n") == 1 and not out
        assert run(*argv, "--build", "rocm7.2")[0] == 0


def test_a_trace_is_written_as_parquet_that_replays_the_same_and_never_over_another(tmp_path):
    trace = small_trace(tmp_path, *ALLOCS)
    out = tmp_path / "out.parquet"
    words = ("--capacity", "1GiB", "--json")
    _, first, _ = run("replay", trace, "--parquet", out, *words)
    assert json.loads(run("replay", out, *words)[1]) == json.loads(first)
    code, _, err = run("replay", trace, "--parquet", out)
    assert code == 2 and "exists already" in err and err.count("\n") == 1


def test_whatif_finds_the_setting_that_saves_the_run(tmp_path):
    code, out, _ = run("whatif", LOOP, "--json", *ONLY)
    found = json.loads(out)
    assert code == 0 and found["use"] == "expandable_segments:True" and found["needs_bytes"] == 0
    assert from_json(WhatIf, found).rows[0].passes
    code, out, _ = run("whatif", LOOP, "--only", "--capacity", "12GiB")
    assert code == 0 and "the default is not enough" in out and "growing_loop.py" in out


def test_whatif_sweeps_releases_and_cards_and_finds_the_smallest():
    sweep = ["--torch", "2.6.0,2.14.1", "--capacity", "20GiB,12GiB"]
    code, out, _ = run("whatif", LOOP, *ONLY, *sweep)
    assert code == 0 and len(out.splitlines()) >= 6
    assert out.count("are missing") == 2 and out.count("2.6.0") == 2
    code, out, _ = run("whatif", LOOP, *ONLY, "--smallest", "--json")
    sizes = json.loads(out)
    assert code == 0 and sizes["expandable_segments:True"] < 16 << 30 < 20 << 30 < sizes[""]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["replay", "no-such-file"], "no-such-file does not exist"),
        (["replay", LOOP, "--conf", "max_split_size_mb:5"], "too small"),
        (["replay", LOOP, "--conf", "quux:1"], "unrecognized key"),
        (["replay", LOOP, "--torch", "soon"], "soon"),
        (["replay", LOOP, "--fraction", "1.5"], "expected a number from 0 to 1"),
        (["replay", LOOP, "--capacity", "many"], "many"),
        (["whatif", LOOP, "--capacity", "20GiB", "--only", "--conf", "quux:1"], "unrecognized key"),
        (["whatif", TRACES / "cpu-training-step.parquet"], "--capacity"),
        (["record"], "expected: record"),
        (["record", "--", "no-such-program"], "no-such-program"),
        (["replay", ROOT / "README.md"], "expected a torch memory snapshot"),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(argv, told, tmp_path):
    if argv[0] == "record":
        argv = ["record", "--out", tmp_path / "t", *argv[1:]]
    code, out, err = run(*argv)
    assert code == 2 and told in err and err.count("\n") == 1 and not out, err


def test_a_trace_that_cannot_have_happened_is_named(tmp_path):
    trace = small_trace(tmp_path, {"op": "free", "id": 3})
    code, _, err = run("replay", trace, "--capacity", "1GiB")
    assert code == 2 and "line 1" in err and err.count("\n") == 1


def test_record_keeps_the_programs_own_output_and_exit_code(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    argv = ["record", "--out", tmp_path / "t", "--", sys.executable, program]
    words = [sys.executable, "-m", "helpers", *map(str, argv)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "programs" / "history_torch")}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7 and done.stdout == "out\n"
    assert done.stderr.startswith("err\n") and "nothing was recorded" in done.stderr
