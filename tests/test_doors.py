"""One box, one verdict, through every door: the command, the plan of make diagnose, the notebooks, the page, the issue."""

import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import nbformat
import pytest
from changed_boxes import oom
from data_rows import read_rows
from tell_boxes import run_record
from toy_allocator import Toy

from helpers.batch import report
from helpers.batch.leading_verdict import leading, of_batch
from helpers.batch.record import read_batch
from helpers.batch.supervisor import run_plan
from helpers.cli import main
from helpers.ground.contract import from_json
from helpers.ground.shapes import Alternative, Evidence, NextStep, Reading, Verdict
from helpers.judge import diagnosis
from helpers.judge.evidence import evidence_from_bundle
from helpers.look.boxes import open_box, recorded_names
from helpers.share import issue_text, subject_of
from helpers.share.verdict_facts import headline
from helpers.tell.prose import typed
from helpers.tell.render import verdict_html
from helpers.tell.verdict import CHECK, against, as_text, steps

ROOT = Path(__file__).resolve().parents[1]
DOORS = ("01_hardware_probe", "03_ttm_gtt_analysis", "09_case_report")
OUT_OF_MEMORY = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.00 GiB", "300.00 MiB") + "\n"


def answer(verdict):
    """What every door has to agree on."""
    v = verdict
    return v.cause, v.confidence, v.state, v.title, v.missing, v.next_step


def by_command(box, capsys):
    assert main(["diagnose", box, "--json"]) == 0
    return from_json(Verdict, capsys.readouterr().out)


def by_notebook(name, box, monkeypatch):
    """The verdict that the notebook's own cells come to, run as they stand with ``box`` for their parameter."""
    shown = []
    monkeypatch.setattr("helpers.tell.verdict.show", shown.append)
    space = {}
    for cell in nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, name, "exec"), space)
        if "parameters" in cell.metadata.get("tags", []):
            space["box"] = box
    assert len(shown) == 1
    return shown[0]


@pytest.mark.parametrize("box", recorded_names())
def test_the_command_and_the_notebooks_give_one_box_one_verdict(box, capsys, monkeypatch):
    said = by_command(box, capsys)
    for name in ("00_start_here", *DOORS):
        assert answer(by_notebook(name, box, monkeypatch)) == answer(said), name


ONE = "strix-halo-1-found"  # no notebook of the plan is committed on it
REST = [pytest.param(n, marks=pytest.mark.slow) for n in recorded_names() if n != ONE]


@pytest.mark.parametrize("box", [ONE, *REST])
def test_what_make_diagnose_runs_its_page_and_the_issue_say_the_same(box, tmp_path, capsys):
    said = by_command(box, capsys)
    result = run_plan(ROOT / "notebooks" / "plans" / "quick.yaml", tmp_path / "out", box=box)
    assert [run.state for run in result.runs] == ["answered"] * 3
    assert {run.notebook.removesuffix(".ipynb") for run in result.runs} == set(DOORS)
    for run in result.runs:
        assert answer(run.verdict) == answer(said), run.notebook
        assert run.box == box
    folder = next(path.parent.parent for path in (tmp_path / "out").glob("**/run.json"))
    assert said.headline in unescape(report.page(folder))
    about = subject_of(folder)
    assert answer(about.verdict) == answer(said)
    text = issue_text("pytorch", replace(about, evidence=evidence_from_bundle(open_box(box))))
    assert f"**Seen:** {headline(said)} (" in text


def batch_of(folder, box, *verdicts):
    """A batch on one box whose runs ended with these verdicts, in this order."""
    for at, verdict in enumerate(verdicts, 1):
        run = run_record(f"{at:02}", f"{at:02}_x.ipynb", "answered", verdict=verdict)
        run = run.model_copy(update={"box": box})
        (folder / run.run_id).mkdir(parents=True)
        (folder / run.run_id / "run.json").write_text(run.model_dump_json())
    return folder


def made(words):
    """A verdict of "cause confidence" or "cause confidence state"."""
    cause, confidence, state = (*words.split(), "")[:3]
    step = NextStep(what="x")
    return Verdict(cause, confidence, title=f"{cause} {confidence}", state=state, next_step=step)


@pytest.mark.parametrize(
    "verdicts, first",
    read_rows("page report and issue lead with one verdict and never with an"),
)
def test_page_report_and_issue_lead_with_one_verdict_and_never_with_an_answer_to_another_question(
    tmp_path, verdicts, first
):
    verdicts = [made(words) for words in verdicts]
    folder = batch_of(tmp_path / "batch", "cuda-healthy", *verdicts)
    lead = leading(run.verdict for run in read_batch(folder).runs)
    assert answer(lead) == answer(verdicts[first]) == answer(subject_of(folder).verdict)
    page = report.page(folder)
    assert page.index(lead.title) == min(page.index(v.title) for v in verdicts if v.title in page)
    said = of_batch(str(folder), open_box("cuda-healthy"))
    assert said is None if lead.state == "aside" else answer(said) == answer(lead)


# -- what is handed over --------------------------------------------------------------------------
def diagnose(*words, data=None, python=(sys.executable,)):
    command = [*python, str(ROOT / "helpers" / "__main__.py"), "diagnose", *words]
    given = {"input": data, "capture_output": True, "timeout": 100, "cwd": "/"}
    return subprocess.run(command, check=False, **given)


@pytest.fixture
def said(capsys):
    """What ``diagnose`` prints of these words."""

    def run(*words):
        assert main(["diagnose", *map(str, words)]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys):
    """The line in which ``diagnose`` refuses these words."""

    def run(*words):
        assert main(["diagnose", *map(str, words)]) == 2
        done = capsys.readouterr()
        assert done.out == "" and done.err.count("\n") == 1
        return done.err

    return run


@pytest.fixture
def error(tmp_path):
    file = tmp_path / "error.txt"
    file.write_text(OUT_OF_MEMORY)
    return file


def test_the_verdict_comes_first_and_the_tables_only_where_asked(said):
    plain = said("rx7900xt-container")
    wide = said("rx7900xt-container", "--wide")
    for shown in (plain, wide):
        assert "\n(likely, " in shown and "external-holder" not in shown
    assert "no visible process" in wide and "no visible process" not in plain
    assert "still possible" in wide and len(wide) > len(plain) + 1000


@pytest.mark.parametrize("name", recorded_names())
def test_cause_reasons_and_next_step_are_on_one_screen_and_no_command_is_cut(said, name):
    lines = said(name).splitlines()
    answer = diagnosis.diagnose(evidence_from_bundle(open_box(name)))
    last = next(number for number, line in enumerate(lines, 1) if line.endswith("--wide"))
    screen = lines[:last]
    commands = []
    for step in steps(answer):
        if step.says != CHECK:
            commands += typed(step.command, "     ")
    most = 40 if answer.next_step.undo else 25  # how to undo it is said with the step
    assert last <= most and "Next step" in screen
    bare = {re.sub(r"^ *(\d\. )?", "", line) for line in screen}
    assert {line.lstrip() for line in commands} <= bare and "Why" in screen
    assert all(len(line) <= 80 for line in screen if line not in commands)
    assert all(len(line) <= 100 for line in commands)


def test_the_sums_of_a_message_are_one_block_under_one_heading(said, error):
    shown = said("--message", error, "--wide")
    assert shown.count("The numbers of the message, added up") == 1
    assert "sum-1" not in shown and "numbers of the error text" not in shown
    block = shown.split("The numbers of the message, added up\n")[1].split("\n\n")[0]
    assert "23.56 GiB" in block and "2.00 GiB" in block


def test_a_verdict_made_from_a_text_is_not_followed_by_words_that_nothing_in_it_was_known(
    said, error
):
    error.write_text(
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n"
    )
    shown = said("--message", error, "--wide")
    assert "from error text" in shown and "nothing in it names a failure known here" not in shown


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80\x04\x95" + bytes(range(256)) * 40, "a pickle"),
        (bytes(5000), "binary data"),
        (b"GGUF" + bytes(300), "a GGUF model"),
        (bytes((at * at * 31 + at) % 256 for at in range(9000)), "binary data"),
    ],
)
def test_a_file_that_is_no_text_is_named_and_nothing_is_concluded(error, data, what, refused):
    error.write_bytes(data)
    shown = refused("--message", error)
    assert f"no error text in it: {what}" in shown
    assert ("diagnose FILE" in shown) is (what == "a pickle")


def test_a_device_without_end_a_fifo_nobody_writes_to_and_standard_input_end(
    tmp_path, monkeypatch, refused
):
    assert "binary data" in refused("--message", "/dev/zero")
    assert "no error text in it: empty" in refused("--message", "/dev/null")
    assert "--message '' is empty" in refused("--message", "")
    monkeypatch.setattr("helpers.look.text_file.SILENT_S", 0.2)
    os.mkfifo(tmp_path / "fifo")
    assert "a pipe that nobody writes to" in refused("--message", tmp_path / "fifo")
    silent = os.open(tmp_path / "fifo", os.O_RDWR)
    assert "nothing came for" in refused("--message", tmp_path / "fifo")
    os.close(silent)
    for name in ("-", "/dev/stdin"):
        done = diagnose("--message", name, "--json", data=OUT_OF_MEMORY.encode())
        assert from_json(Verdict, done.stdout).evidence, name


def test_a_text_without_end_is_read_in_bounded_memory_and_what_was_left_out_is_said(
    tmp_path, monkeypatch
):
    from helpers.look import text_file

    monkeypatch.setattr(text_file, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(text_file, "END_BYTES", 1 << 16)
    file = tmp_path / "long.log"
    file.write_bytes(b"x" * (3 << 20) + b"\nthe end\n")
    read = text_file.read_text(str(file))
    assert read.text.endswith("\nthe end\n") and len(read.text) < 2 << 20
    assert "only the first" in read.note and "the last" in read.note


@pytest.mark.parametrize("coding", ["utf-8", "utf-16", "utf-16-le", "latin-1"])
def test_a_text_in_another_encoding_is_read(error, coding, said):
    error.write_bytes(("Fehler: gerät\r\n" + OUT_OF_MEMORY).encode(coding))
    verdict = from_json(Verdict, said("--message", error, "--json"))
    assert any("2.00 GiB" in row.says for row in verdict.evidence)


def test_a_memory_snapshot_is_a_box_and_what_is_none_is_refused_in_one_line(tmp_path, said):
    toy = Toy()
    toy.alloc(6 << 20)
    file = tmp_path / "run.pickle"
    file.write_bytes(pickle.dumps(toy.snapshot(), 4))
    rows = [row.reading for row in from_json(Verdict, said(file, "--json")).evidence]
    assert ("recording of run.pickle", 20 << 20) in [(row.source, row.bytes) for row in rows]
    file.write_bytes(pickle.dumps({"weights": 1}))
    done = diagnose(str(file))
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and not done.stdout


def test_an_error_text_given_as_a_box_is_told_where_it_belongs(error):
    done = diagnose(str(error))
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert b"diagnose --message" in done.stderr


def test_a_trace_given_as_a_box_is_told_where_it_belongs(tmp_path):
    (tmp_path / "run.jsonl").write_text('{"job": {}}\n')
    done = diagnose(str(tmp_path / "run.jsonl"))
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert b"a trace of allocations is read by: whatif" in done.stderr


PYENV = sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))
OLD_PYTHONS = [path for path in (Path("/usr/bin/python3"), *PYENV) if path.is_file()]
BOXES = [(name,) for name in recorded_names()]


@pytest.mark.parametrize(
    ("python", "boxes"),
    [(path, BOXES[at::4]) for at, path in enumerate(OLD_PYTHONS)]
    + [pytest.param(path, BOXES, marks=pytest.mark.slow) for path in OLD_PYTHONS],
)
def test_a_message_and_a_bundle_need_no_set_up(error, python, boxes, said):
    message = ("--message", str(error))
    bundle = str(ROOT / "env/boxes/cuda-24gb-tuning")
    for words in (message, *boxes, (bundle, *message, "--wide")):
        wide = "--wide" in words
        asked = words if wide else (*words, "--json")
        done = diagnose(*asked, python=(str(python), "-I", "-S"))
        assert done.returncode == 0 and not done.stderr, (words, done.stderr[-300:])
        own = said(*asked)
        theirs = done.stdout.decode()
        assert own.split("\n\n")[0] == theirs.split("\n\n")[0] and (wide or own == theirs)


# -- how it is told -------------------------------------------------------------------------------
def test_where_nothing_is_wrong_it_says_so_and_no_doubt(said):
    shown = said("cuda-healthy")
    assert shown.startswith("No problem found: 23.25 GiB of GPU memory is free\n(nothing failed, ")
    assert "  23.25 GiB: Free on 0000:01:00.0 of 23.99 GiB" in shown and " live " not in shown
    assert "weak" not in shown.split("Evidence")[0] and "If it comes to that" not in shown


def test_where_nothing_is_decided_the_open_causes_stand_in_their_order():
    others = [Alternative(cause, "weak") for cause in ("driver-leak", "external-holder")]
    row = Evidence(id="a", reading=Reading(1, "count", "ok", "", "x", ""), says="one thing")
    verdict = replace(made("cannot-tell weak"), evidence=[row], alternatives=others)
    for text in (as_text(verdict), str(against(verdict)), verdict_html(verdict)):
        assert text.index("that no process owns") < text.index("Another process holds")
        assert "a hint" not in text.split("Other causes")[0]


def test_a_reading_that_was_filled_in_is_marked_in_its_row(said):
    shown = said("strix-halo-3-gttsize", "--wide")
    assert shown.count("from the write-up") >= 2 and "confirmed" not in shown
