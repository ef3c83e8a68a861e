"""The command line: one line and exit 2 on wrong use, JSON twins, and capture without any package."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from changed_boxes import oom
from command_line import verb
from data_rows import read_rows
from pythons import starts
from run_stand_in import ROOT, StandIn

from helpers import cli
from helpers.batch import supervisor
from helpers.batch.carrier import Local
from helpers.cli import main, parsers
from helpers.commands import workbook
from helpers.ground.contract import from_json
from helpers.ground.shapes import Verdict
from helpers.ground.units import columns_of
from helpers.look.boxes import RECORDED, open_box, recorded_names
from helpers.look.bundle import BundleWriter, open_bundle

MAIN = str(ROOT / "helpers" / "__main__.py")
APU = "strix-halo-1-found"
PROBE = "01_hardware_probe.ipynb"


@pytest.fixture
def casebook(monkeypatch):
    """Runs a command from the checkout: its exit code, and what it printed."""
    monkeypatch.chdir(ROOT)
    return verb


@pytest.mark.parametrize(("words", "line"), read_rows("wrong commands"))
def test_wrong_use_gets_one_line_and_exit_2(casebook, words, line):
    done = casebook(*words.split())
    assert done.code == 2 and line in done.err and done.out == ""
    assert done.err.startswith("casebook: ") and done.err.count("\n") == 1


def test_a_python_that_is_too_old_for_a_verb_is_named_in_one_line(casebook, monkeypatch):
    monkeypatch.setattr(cli.sys, "version_info", (3, 9, 18))
    refused = casebook("fits", "model.gguf")
    answered = casebook("boxes")
    monkeypatch.undo()
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert "fits: seen Python" in refused.err and "expected 3.10 or later" in refused.err
    assert answered.code == 0 and answered.err == ""


@pytest.mark.parametrize(
    "words",
    [
        "replay run.pickle --results {}/r.jsonl",
        "replay run.pickle --parquet {}/r.parquet",
        "vpoc ticks.csv --out {}/x",
        "trial churn --preset cuda-expandable --out {}/t",
        "rehearse --gpu 4090 --out {}/t.pickle -- python train.py",
    ],
)
def test_a_place_that_may_not_be_written_is_refused_before_any_work(
    casebook, tmp_path, monkeypatch, words
):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    done = casebook(*words.format(tmp_path).split())
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
    assert f"{tmp_path} may not be written; choose a place that you may write to" in done.err


def test_a_folder_to_write_into_that_is_not_there_is_to_be_made(casebook, tmp_path):
    rows = [f"2026-03-02 10:00:{at:02},{100 + at / 4},1" for at in range(40)]
    (tmp_path / "ticks.csv").write_text("\n".join(["time,price,volume", *rows]))
    words = f"vpoc {tmp_path}/ticks.csv --tick 0.25 --zone UTC --out {tmp_path}/none/x"
    done = casebook(*words.split())
    assert done.code == 2 and done.err.count("\n") == 1
    assert f"there is no folder {tmp_path}/none" in done.err


ANSWERS = [
    *((verb, name) for verb in ("diagnose", "ttm") for name in recorded_names()),
    ("ttm", "strix-halo-4-ttm", "--verify", "strix-halo-3-gttsize"),
    *((verb,) for verb in ("boxes", "schema")),
    ("run", "notebooks/plans/overnight.yaml", "--dry-run"),
    *(("compare", *(RECORDED / name for name in two)) for two in pairwise(recorded_names())),
    *((verb, "--help") for verb in parsers()[1]),
]


@pytest.mark.parametrize("words", ANSWERS, ids=lambda words: " ".join(map(str, words))[-60:])
def test_no_line_is_wider_than_80_columns_where_nothing_says_how_wide_it_may_be(
    casebook, monkeypatch, capsys, words
):
    monkeypatch.delenv("COLUMNS", raising=False)
    if "--help" in words:
        with pytest.raises(SystemExit):
            main([*words])
    out = capsys.readouterr().out or casebook(*words).out
    assert out and [line for line in out.splitlines() if columns_of(line) > 80] == []
    assert not out.rstrip().endswith(("…", ",")), "nothing is cut off"


def test_the_list_of_shapes_says_what_each_is_in_whole_sentences_without_marks(casebook):
    lines = casebook("schema").out.splitlines()
    assert "`" not in "".join(lines) and "grows" not in "".join(lines)
    assert {line.split()[0] for line in lines if line[0] != " "} == set(workbook.SHAPES)


RUNS = f"name: x\nruns:\n  - notebook: {PROBE}\n"


def test_figures_of_an_install_without_its_tests_say_what_they_need(tmp_path, monkeypatch):
    monkeypatch.setattr(workbook, "CHECKOUT", tmp_path)
    code, _, err = verb("bench")
    assert code == 2 and "it needs a checkout" in err and err.count("\n") == 1


@pytest.mark.parametrize("change, words", read_rows("a wrong plan is refused before anything runs"))
def test_a_wrong_plan_is_refused_before_anything_runs(casebook, tmp_path, change, words):
    (tmp_path / "plan.yaml").write_text(change)
    done = casebook("run", tmp_path / "plan.yaml", "--out", tmp_path / "out")
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))


def test_diagnose_prints_a_verdict_as_text_and_as_json(casebook):
    text = casebook("diagnose", "rx7900xt-container", "--wide")
    data = casebook("diagnose", "rx7900xt-container", "--json")
    assert text.code == data.code == 0
    assert from_json(Verdict, data.out).cause == "external-holder"
    for words in ("(likely, ", "19.98 GiB", "no visible process"):
        assert words in text.out
    assert "for the recorded one, rx7900xt-container" in " ".join(text.out.split())


def test_diagnose_reads_an_unknown_newer_bundle_in_one_line(casebook, tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": 99, "items": []}))
    done = casebook("diagnose", tmp_path)
    assert done.code == 2 and "schema_version 99; this workbook reads up to 1" in done.err


def test_a_recorded_box_goes_through_capture_form_and_back(casebook, tmp_path):
    bundle = open_box("strix-halo-3-gttsize")
    writer = BundleWriter(bundle.box, bundle.kind, bundle.tool_version, bundle.captured_at)
    for item in bundle.items:
        about = {"status": item.status, "why": item.why, "constructed": item.constructed}
        writer.add(item.kind, item.source, bundle.contents.get(item.path), **about)
    packed = writer.write(tmp_path / "box.tar.gz")
    assert open_bundle(packed).contents == bundle.contents
    assert json.loads(casebook("diagnose", packed, "--json").out)["cause"] == "ttm-gtt-cap"


def test_a_plan_is_printed_and_not_run(casebook, tmp_path):
    quick = ("run", "notebooks/plans/quick.yaml", "--out", tmp_path / "out")
    rows = json.loads(casebook(*quick, "--dry-run", "--json").out)
    names = ["01_hardware_probe", "03_ttm_gtt_analysis", "09_case_report"]
    assert [row["notebook"].removesuffix(".ipynb") for row in rows] == names
    assert "1200 s for all" in casebook(*quick, "--dry-run").out
    assert not (tmp_path / "out").exists()


def test_a_run_ends_with_its_page_and_is_resumed_by_its_plan(casebook, tmp_path, monkeypatch):
    made = []

    def local(slots, stop):
        made.append(StandIn())
        return Local(slots, stop, made[-1])

    monkeypatch.setattr(supervisor, "Local", local)
    quick = ("run", "notebooks/plans/quick.yaml", "--box", "cpu-only", "--out", tmp_path)
    done = casebook(*quick)
    assert done.code == 0 and sorted(made[0].ran) == ["000", "001", "002"]
    page = done.out.strip().splitlines()[-1].removeprefix("Open: ")
    folder = page.removesuffix("/index.html")
    assert page.endswith("/index.html") and "cpu-only" in open(page).read()
    status = json.loads(casebook("status", folder, "--json").out)
    told = casebook("status", folder).out.splitlines()
    assert status["counts"] == {"answered": 3} and "3 answered" in told[0]
    assert all(line.split()[1] == "cpu-only" for line in told[1:3])
    assert json.loads(casebook("report", folder, "--json").out) == {"page": page}
    again = json.loads(
        casebook(*quick, "--resume", "--again", status["runs"][1]["run_id"], "--json").out
    )
    assert made[1].ran == ["001", "002"], (
        "the closing report is made again, of the runs as they are now"
    )
    assert [run["attempt"] for run in again["runs"]] == [1, 2, 2]
    assert again["unrecorded"] == [] and again["page"] == page


def test_a_pasted_message_is_diagnosed_without_a_box():
    other = " Process 77 has 5.60 GiB memory in use."
    text = oom("7.00 GiB", "7.78 GiB", "2.10 GiB", "5.10 GiB", "120.00 MiB", other)
    argv = [sys.executable, MAIN, "diagnose", "--message", "-", "--json"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=True)
    answer = from_json(Verdict, done.stdout)
    assert answer.cause == "true-capacity" and answer.confidence != "confirmed"


def test_ttm_prints_its_plan_and_verify_tells_what_took(casebook):
    wanted = ("--target", "120GiB")
    answer = json.loads(casebook("ttm", "strix-halo-3-gttsize", *wanted, "--json").out)
    assert (answer["binding"], answer["plan"]["pages_limit"]) == ("ttm", 31457280)
    assert any("uses up the reserve" in line for line in answer["warnings"])
    assert casebook("ttm", "strix-halo-4-ttm", "--verify", "strix-halo-3-gttsize").code == 0
    assert casebook("ttm", "strix-halo-3-gttsize", "--verify", APU, *wanted).code == 1


@pytest.mark.parametrize(
    ("listed", "name", "words"),
    [
        ("boxes", "cpu-only", "no GPU at all"),
        ("schema", "run", "run.json: the truth about one run"),
    ],
)
def test_a_list_of_names_says_what_each_is(listed, name, words):
    (line,) = [line for line in verb(listed).out.splitlines() if line.split()[0] == name]
    assert words in line


# In a process of its own: what ends early, or has no packages


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    command = f"{sys.executable} {MAIN} diagnose rx7900xt-container | head -c 1"
    done = subprocess.run(  # noqa: S602
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr == "" and len(done.stdout) == 1


def test_without_the_workbooks_packages_a_verb_names_the_way_out(casebook, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    done = casebook("schema", "run")
    assert done.code == 2 and "make setup" in done.err and done.err.count("\n") == 1


@pytest.mark.skipif(not (ROOT / ".venv").is_dir(), reason="no set-up in this checkout")
def test_whatever_packages_the_callers_python_has_the_set_ups_own_do_the_work(tmp_path):
    (tmp_path / "pydantic.py").write_text("raise SystemExit('the one of the caller')")
    bare = getattr(sys, "_base_executable", sys.executable)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [bare, MAIN, "schema", "run"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and json.loads(done.stdout)["title"] == "Run", done.stderr


MESSAGE = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.00 GiB", "300.00 MiB") + "\n"


@pytest.mark.parametrize("python", [sys.executable, "python3.8"])
@pytest.mark.parametrize("box", [[], ["cpu-only"]])
def test_diagnose_needs_a_python_and_nothing_else(python, box, tmp_path):
    place = python if python == sys.executable else starts(python)
    if not place:
        pytest.skip(f"no {python} here")
    (tmp_path / "message.txt").write_text(MESSAGE)
    argv = [place, "-I", "-S", "-B", MAIN, "diagnose", *box, "--message", "message.txt"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True}
    forms = ([], ["--json"])
    text, data = (subprocess.run([*argv, *form], check=False, **options) for form in forms)
    assert [(one.returncode, one.stderr) for one in (text, data)] == [(0, "")] * 2
    assert "Next step" in text.stdout and from_json(Verdict, data.stdout).evidence


EVIL = "e\x1b[2J\x1b]0;t\x07\rl\u202e\x9b1m\x7f\u2066"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_nothing_that_a_bundle_says_steers_a_terminal(tmp_path, kind):
    box = open_box("cuda-24gb-tuning")
    writer = BundleWriter(box.box, box.kind, box.tool_version, box.captured_at)
    for item in box.items:
        text = (box.contents.get(item.path) or b"").decode()
        text = re.sub(r"(?m)(: |=|>|\t)([A-Za-z][\w .-]*)", rf"\1\2{EVIL}", text)
        writer.add(item.kind, item.source, text.encode(), status=item.status, why=item.why + EVIL)
    evil = writer.write(tmp_path / "evil.tar.gz")
    asked = [("diagnose", evil, "--wide"), ("diagnose", evil, "--json"), ("ttm", evil)]
    asked += [("compare", evil, RECORDED / "cuda-healthy"), ("compare", evil, evil, "--json")]
    asked += [("capture", "--out", f"{tmp_path}/{EVIL}.zip"), ("status", EVIL), ("schema", EVIL)]
    for words in asked:
        out = kind()
        err = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([*map(str, words)])
        said = (out.getvalue() + err.getvalue()).replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert all(char.isprintable() or char in "\n\t" for char in said), words
        assert "--json" not in words or json.loads(out.getvalue())
