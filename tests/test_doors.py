"""One box, one verdict, through every door: the command, the plan of make diagnose, the notebooks, the page, the issue."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from tell_boxes import run_record

from helpers.cli import main
from helpers.look.boxes import open_box, recorded_names
from helpers.run.batch import run_plan
from helpers.run.record import read_batch
from helpers.shapes import Alternative, Evidence, NextStep, Reading, Verdict, from_json
from helpers.tell import batches, report, share
from helpers.tell.issue_text import Case, issue_text
from helpers.tell.verdict import as_markdown, as_text, headline

ROOT = Path(__file__).resolve().parents[1]
DOORS = ("01_hardware_probe", "03_ttm_gtt_analysis", "09_case_report")
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.56 "
    "GiB of which 512.00 MiB is free. Of the allocated memory 22.00 GiB is allocated by PyTorch, and 300.00 MiB "
    "is reserved by PyTorch but unallocated.\n"
)


def answer(verdict):
    """What every door has to agree on."""
    return (
        verdict.cause,
        verdict.confidence,
        verdict.state,
        verdict.title,
        verdict.missing,
        verdict.next_step,
    )


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
            drawn = "\n".join(
                line for line in cell.source.splitlines() if not line.startswith("figures.show(")
            )
            exec(compile(drawn, name, "exec"), space)
        if "parameters" in cell.metadata.get("tags", []):
            space["box"] = box
    assert len(shown) == 1
    return shown[0]


@pytest.mark.parametrize("box", recorded_names())
def test_the_command_and_the_notebooks_give_one_box_one_verdict(box, capsys, monkeypatch):
    said = by_command(box, capsys)
    for name in DOORS:
        assert answer(by_notebook(name, box, monkeypatch)) == answer(said), name


@pytest.mark.parametrize(
    "box",
    [
        "strix-halo-3-gttsize",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in recorded_names()
            if name != "strix-halo-3-gttsize"
        ),
    ],
)
def test_what_make_diagnose_runs_its_page_and_the_issue_say_the_same(box, tmp_path, capsys):
    said = by_command(box, capsys)
    result = run_plan(ROOT / "notebooks" / "plans" / "quick.yaml", tmp_path / "out", box=box)
    assert [run.state for run in result.runs] == ["answered"] * 3
    assert {run.notebook.removesuffix(".ipynb") for run in result.runs} == set(DOORS)
    for run in result.runs:
        assert answer(run.verdict) == answer(said), run.notebook
    folder = next(path.parent.parent for path in (tmp_path / "out").glob("**/run.json"))
    assert headline(said) in report.page(folder)
    about = share.subject(folder)
    assert answer(about.verdict) == answer(said)
    text = issue_text("pytorch", Case(about.verdict, open_box(box), "", about.steps, ""))
    assert headline(said) in text and said.next_step.what[:60] in text


def batch_of(folder, box, *verdicts):
    """A batch on one box whose runs ended with these verdicts, in this order."""
    for at, verdict in enumerate(verdicts, 1):
        run = run_record(f"{at:02}", f"{at:02}_x.ipynb", "answered", verdict=verdict).model_copy(
            update={"box": box}
        )
        (folder / run.run_id).mkdir(parents=True)
        (folder / run.run_id / "run.json").write_text(run.model_dump_json())
    return folder


def made(cause, confidence="likely", state=""):
    return Verdict(
        cause=cause,
        confidence=confidence,
        state=state,
        title=f"{cause} {confidence}",
        next_step=NextStep(what="x"),
    )


@pytest.mark.parametrize(
    ("verdicts", "first"),
    [
        ([made("other", "likely", "aside"), made("external-holder", "likely")], 1),
        ([made("allocator-fragmentation", "confirmed", "aside"), made("cannot-tell", "weak")], 1),
        ([made("cannot-tell", "weak", "healthy"), made("true-capacity", "likely", "aside")], 0),
        (
            [
                made("cannot-tell", "weak"),
                made("external-holder", "weak"),
                made("ttm-gtt-cap", "confirmed"),
            ],
            2,
        ),
        ([made("external-holder", "likely"), made("ttm-gtt-cap", "likely")], 0),
        ([made("cannot-tell", "weak", "healthy"), made("cannot-tell", "weak")], 1),
        ([made("other", "likely", "aside")], 0),
    ],
)
def test_page_report_and_issue_lead_with_one_verdict_and_never_with_an_answer_to_another_question(
    tmp_path, verdicts, first
):
    folder = batch_of(tmp_path / "batch", "cuda-healthy", *verdicts)
    lead = batches.leading(run.verdict for run in read_batch(folder).runs)
    assert answer(lead) == answer(verdicts[first]) == answer(share.subject(folder).verdict)
    page = report.page(folder)
    assert page.index(lead.title) == min(page.index(v.title) for v in verdicts if v.title in page)
    said = batches.of_batch(str(folder), open_box("cuda-healthy"))
    assert said is None if lead.state == "aside" else answer(said) == answer(lead)


# -- what is handed over --------------------------------------------------------------------------
def diagnose(*words, data=None, python=(sys.executable,)):
    return subprocess.run(
        [*python, str(ROOT / "helpers" / "__main__.py"), "diagnose", *words],
        input=data,
        check=False,
        capture_output=True,
        timeout=100,
        cwd="/",
    )


def test_the_verdict_comes_first_and_the_tables_only_where_asked(tmp_path):
    plain, wide = diagnose("rx7900xt-container"), diagnose("rx7900xt-container", "--wide")
    assert wide.stdout.startswith(plain.stdout) and len(wide.stdout) > len(plain.stdout) + 1000
    assert b"(" in plain.stdout.splitlines()[1] and b"no visible process" in wide.stdout
    assert b"no visible process" not in plain.stdout.split(b"\n\n")[0]


def test_the_sums_of_a_message_are_one_block_under_one_heading(tmp_path):
    file = tmp_path / "error.txt"
    file.write_text(OUT_OF_MEMORY)
    said = diagnose("--message", str(file)).stdout.decode()
    assert (
        said.count("The sums of the message") == 1
        and "sum-1" not in said
        and "numbers of the error text" not in said
    )
    block = said.split("The sums of the message\n")[1].split("\n\n")[0]
    assert "23.56 GiB" in block and "2.00 GiB" in block


def test_a_verdict_made_from_a_text_is_not_followed_by_words_that_nothing_in_it_was_known(tmp_path):
    file = tmp_path / "error.txt"
    file.write_text(
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n"
    )
    said = diagnose("--message", str(file)).stdout.decode()
    assert "from error text" in said and "nothing in it names a failure known here" not in said


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80\x04\x95" + bytes(range(256)) * 40, "a pickle"),
        (bytes(5000), "binary data"),
        (b"GGUF" + bytes(300), "a GGUF model"),
        (bytes((at * at * 31 + at) % 256 for at in range(9000)), "binary data"),
    ],
)
def test_a_file_that_is_no_text_is_named_and_nothing_is_concluded(tmp_path, data, what, capsys):
    file = tmp_path / "file.bin"
    file.write_bytes(data)
    assert main(["diagnose", "--message", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"is {what}" in said and "(cannot-tell;" in said
    assert ("diagnose FILE" in said) is (what == "a pickle")
    assert main(["diagnose", "--message", str(file), "--json"]) == 0
    assert from_json(Verdict, capsys.readouterr().out).cause == "cannot-tell"


def test_a_device_without_end_a_fifo_nobody_writes_to_and_standard_input_end(
    tmp_path, monkeypatch, capsys
):
    assert (
        main(["diagnose", "--message", "/dev/zero"]) == 0
        and "binary data" in capsys.readouterr().out
    )
    monkeypatch.setattr("helpers.look.text_file.SILENT_S", 0.2)
    os.mkfifo(tmp_path / "fifo")
    began = time.monotonic()
    assert (
        main(["diagnose", "--message", str(tmp_path / "fifo")]) == 0
        and time.monotonic() - began < 20
    )
    assert "nothing came for" in capsys.readouterr().out
    for name in ("-", "/dev/stdin"):
        said = diagnose("--message", name, "--json", data=OUT_OF_MEMORY.encode())
        assert from_json(Verdict, said.stdout).evidence, name


def test_a_text_without_end_is_read_in_bounded_memory_and_what_was_left_out_is_said(
    tmp_path, monkeypatch
):
    from helpers.look import text_file

    monkeypatch.setattr(text_file, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(text_file, "END_BYTES", 1 << 16)
    file = tmp_path / "long.log"
    file.write_bytes(b"x" * (3 << 20) + b"\nthe end\n")
    with text_file.TextFile(str(file)) as opened:
        lines = list(opened.lines())
    assert max(map(len, lines)) <= text_file.LONGEST_LINE and lines[-1] == "the end\n"
    assert (
        sum(map(len, lines)) < 2 << 20
        and "only the first" in opened.note
        and "the last" in opened.note
    )


@pytest.mark.parametrize("coding", ["utf-8", "utf-16", "utf-16-le", "latin-1"])
def test_a_text_in_another_encoding_is_read(tmp_path, coding):
    file = tmp_path / "error.txt"
    file.write_bytes(("Fehler: gerät\r\n" + OUT_OF_MEMORY).encode(coding))
    verdict = from_json(Verdict, diagnose("--message", str(file), "--json").stdout)
    assert any("2.00 GiB" in row.says for row in verdict.evidence)


def test_a_memory_snapshot_is_a_box_and_what_is_none_is_refused_in_one_line(tmp_path):
    import pickle

    blocks = [
        {"size": 6 << 20, "requested_size": 6 << 20, "state": "active_allocated", "frames": []},
        {"size": 14 << 20, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    segment = {
        "device": 0,
        "address": 1 << 40,
        "total_size": 20 << 20,
        "allocated_size": 6 << 20,
        "active_size": 6 << 20,
        "requested_size": 6 << 20,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    file = tmp_path / "run.pickle"
    file.write_bytes(
        pickle.dumps({"segments": [segment], "device_traces": [[]], "allocator_settings": {}})
    )
    said = diagnose(str(file), "--json")
    assert said.returncode == 0, said.stderr
    verdict = from_json(Verdict, said.stdout)
    assert any(
        row.reading.source == "memory snapshot" and row.reading.bytes == 20 << 20
        for row in verdict.evidence
    )
    file.write_bytes(pickle.dumps({"weights": 1}))
    said = diagnose(str(file))
    assert said.returncode == 2 and said.stderr.count(b"\n") == 1 and not said.stdout


def test_an_error_text_given_as_a_box_is_told_where_it_belongs(tmp_path):
    file = tmp_path / "error.txt"
    file.write_text(OUT_OF_MEMORY)
    said = diagnose(str(file))
    assert (
        said.returncode == 2
        and b"diagnose --message" in said.stderr
        and said.stderr.count(b"\n") == 1
    )


OLD_PYTHONS = [
    path
    for path in (
        Path("/usr/bin/python3"),
        *sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python3.8")),
    )
    if path.is_file()
]


@pytest.mark.parametrize("python", OLD_PYTHONS, ids=str)
def test_a_message_and_a_bundle_need_no_set_up(tmp_path, python):
    file = tmp_path / "error.txt"
    file.write_text(OUT_OF_MEMORY)
    plain = (str(python), "-I", "-S")
    for words in (
        ("--message", str(file)),
        *((name,) for name in recorded_names()),
        (str(ROOT / "env/boxes/cuda-24gb-tuning"), "--message", str(file), "--wide"),
    ):
        said = diagnose(*words, python=plain)
        assert said.returncode == 0 and not said.stderr, (words, said.stderr[-300:])
        own = diagnose(*words)
        assert said.stdout.split(b"\n\n")[0] == own.stdout.split(b"\n\n")[0]
        if "--wide" not in words:
            assert (
                diagnose(*words, "--json", python=plain).stdout == diagnose(*words, "--json").stdout
            )


# -- how it is told -------------------------------------------------------------------------------
def test_where_nothing_is_wrong_it_says_so_and_no_doubt(capsys):
    assert main(["diagnose", "cuda-healthy"]) == 0
    said = capsys.readouterr().out
    assert (
        said.startswith("Nothing wrong was seen\n(healthy; ")
        and "weak" not in said.split("Evidence")[0]
    )
    assert "If it comes to that" not in said


def test_where_nothing_is_decided_the_open_causes_stand_in_their_order():
    reading = Reading(1, "count", "ok", "", "x", "")
    verdict = Verdict(
        cause="cannot-tell",
        confidence="weak",
        title="The evidence does not decide",
        evidence=[Evidence(id="a", reading=reading, says="one thing")],
        alternatives=[
            Alternative(cause="driver-leak", confidence="weak"),
            Alternative(cause="external-holder", confidence="weak"),
        ],
        next_step=NextStep(what="look"),
    )
    for text in (as_text(verdict), as_markdown(verdict), report.verdict_html(verdict)):
        assert (
            text.index("driver-leak") < text.index("external-holder")
            and "a hint" not in text.split("Still open")[0]
        )


def test_a_reading_that_was_filled_in_is_marked_in_its_row(capsys):
    assert main(["diagnose", "strix-halo-3-gttsize"]) == 0
    said = capsys.readouterr().out
    assert said.count("(filled in)") >= 2 and "confirmed" not in said
