"""Several boxes of one batch: which of them has a problem, on the page and in a terminal."""

import io
from dataclasses import replace

import pytest
from page_audit import check, in_order
from tell_boxes import run_record

from helpers.batch import report
from helpers.batch.progress import Plain
from helpers.batch.record import read_batch
from helpers.batch.status import status_text
from helpers.ground.shapes import Evidence, NextStep, Verdict, seen

NO_GPU = Evidence("no-gpu", seen("none", "text", "pci_devices"), "The PCI bus shows no GPU")


def verdict(cause, confidence="weak", **more):
    return Verdict(cause=cause, confidence=confidence, next_step=NextStep(what="x"), **more)


def batch_of(folder, boxes):
    """A batch with one answered run on each box."""
    runs = [("09_case_report", box, {}, said) for box, said in boxes]
    return recorded(folder, runs)


def recorded(folder, runs):
    """A batch of answered runs, each (notebook, box, parameters, verdict)."""
    for number, (name, box, parameters, said) in enumerate(runs):
        run = run_record(f"{number:02d}", f"{name}.ipynb", "answered", verdict=said)
        run = run.model_copy(update={"box": box, "parameters": parameters})
        (folder / run.run_id).mkdir(parents=True)
        (folder / run.run_id / "run.json").write_text(run.model_dump_json())
    return folder


@pytest.mark.parametrize(
    ("error", "headline", "of_live"),
    [
        (
            "",
            "1 of 2 boxes has a problem. oak: perhaps a memory leak\nThe other box: without a GPU.",
            "live not a problem here",
        ),
        (
            "RuntimeError: No CUDA GPUs are available",
            "2 of 2 boxes have a problem. oak: perhaps a memory leak; live: No GPU in here",
            "live No GPU in here",
        ),
    ],
)
def test_a_machine_without_a_gpu_is_a_problem_only_where_a_program_failed_for_want_of_one(
    tmp_path, error, headline, of_live
):
    bare = verdict("other", "confirmed", title="No GPU in here", error=error, evidence=[NO_GPU])
    folder = batch_of(tmp_path, [("live", bare), ("oak", verdict("user-leak"))])
    text = check(report.page(folder)).text
    assert in_order(text, headline, "oak recorded box a memory leak", of_live, "Every run finished")


def test_a_machine_without_a_gpu_that_has_a_separate_problem_is_no_box_without_a_problem(tmp_path):
    killed = Evidence("beside-killed", seen("x", "text", "dmesg"), "The kernel killed a process")
    rows = [NO_GPU, killed]
    bare = verdict("other", "confirmed", title="No GPU in here", evidence=rows)
    text = check(report.page(batch_of(tmp_path, [("live", bare), ("oak", bare)]))).text
    headline = "2 of 2 boxes have a problem. oak: no GPU, and a separate problem; live: no GPU"
    assert in_order(text, headline, "No GPU in here", "Also seen: The kernel killed a process")


def test_a_page_where_all_machines_only_lack_a_gpu_says_that_there_is_no_problem(tmp_path):
    bare = verdict("other", "confirmed", title="No GPU in here", evidence=[NO_GPU])
    text = check(report.page(batch_of(tmp_path, [("live", bare), ("oak", bare)]))).text
    assert in_order(text, "No problem was found on 2 boxes", "2 boxes without a GPU.")


def test_of_many_boxes_with_a_problem_the_headline_counts_the_problems(tmp_path):
    causes = ["ttm-gtt-cap", *["user-leak"] * 4]
    boxes = [(f"box-{number}", verdict(cause)) for number, cause in enumerate(causes)]
    text = check(report.page(batch_of(tmp_path, boxes))).text
    assert "5 of 5 boxes have a problem: a memory leak (4), TTM or GTT limit" in text


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            verdict("user-leak", title="cache.py keeps 3 GiB"),
            "cache.py keeps 3 GiB [a memory leak; weak: only a hint]",
        ),
        (
            verdict("other", "likely", title="The fan stands still"),
            "The fan stands still [likely, not proved]",
        ),
        (
            verdict("cannot-tell", title="No log was read"),
            "No log was read [undecided]",
        ),
    ],
)
def test_a_terminal_shows_the_headline_and_behind_it_the_name_and_how_sure_that_is(
    tmp_path, said, line
):
    view = read_batch(batch_of(tmp_path, [("oak", said)]))
    assert line in status_text(view)
    out = io.StringIO()
    told = Plain(out)
    told.started(tmp_path, view.runs)
    told.run_ended(0, view.runs[0])
    assert f"answered: {line}" in out.getvalue()


def swept(folder):
    """A batch of two boxes, one of them run with two values, and of a closing report."""
    small, large = ({"reserve": size} for size in ("8GiB", "16GiB"))
    named = verdict("ttm-gtt-cap", "likely", title="Half of the RAM")
    rows = (
        ("03_ttm", "oak", small, named),
        ("03_ttm", "oak", large, named),
        ("00_start", "elm", {}, verdict("user-leak", "likely")),
        ("09_case_report", "live", {"batch": "{batch}"}, verdict("cannot-tell", state="aside")),
    )
    return recorded(folder, rows)


def test_a_run_that_came_to_the_answer_of_its_box_does_not_say_it_again(tmp_path):
    rows = [("03_ttm", "oak", {}, verdict("user-leak", title="Tensors are kept"))]
    rows.append(("00_start", "oak", {}, verdict("user-leak", title="Something is kept")))
    rows.append(("09_case_report", "elm", {}, verdict("user-leak", title="Half of the RAM")))
    page = check(report.page(recorded(tmp_path, rows))).text
    assert "00_start on oak: Something is kept" in page
    assert "03_ttm on oak:" not in page and "09_case_report on elm:" not in page


def test_a_swept_value_is_named_wherever_its_run_is(tmp_path):
    page = check(report.page(swept(tmp_path))).text
    assert "Half of the RAM (reserve 8GiB)" in page, "the run whose verdict leads"
    assert "agrees 2 runs: reserve 8GiB, reserve 16GiB" in page
    assert "on oak, reserve=8GiB" in page and "on oak, reserve=16GiB" in page
    view = read_batch(tmp_path)
    told = io.StringIO()
    lines = Plain(told)
    lines.started(tmp_path, view.runs)
    lines.run_started(1, view.runs[1])
    lines.run_ended(1, view.runs[1])
    assert told.getvalue().count("03_ttm.ipynb on oak, reserve=16GiB") == 2
    status = status_text(view)
    assert "reserve=8GiB; Half of the RAM" in status and "reserve=16GiB; Half" in status


@pytest.mark.parametrize("others", [(), (("00_start", "elm", {}, verdict("user-leak")),)])
def test_each_value_that_came_to_another_answer_has_its_own_next_step(tmp_path, others):
    said = {
        size: replace(
            verdict("true-capacity", "likely", title=title), next_step=NextStep(what=step)
        )
        for size, title, step in (
            ("8GiB", "8 GiB are too small", "Take a smaller batch"),
            ("16GiB", "16 GiB are in pieces", "Join the pieces"),
            ("24GiB", "16 GiB are in pieces", "Join the pieces"),
        )
    }
    rows = [("02_stress", "oak", {"capacity": size}, answer) for size, answer in said.items()]
    text = check(report.page(recorded(tmp_path, [*rows, *others]))).text
    named = "With other values: 1 more answer"
    assert in_order(text, "8 GiB are too small", "Take a smaller batch", named)
    assert in_order(
        text[text.index(named) :],
        *("capacity 16GiB; capacity 24GiB", "16 GiB are in pieces likely, not proved"),
        *("Next step", "Join the pieces"),
    )
    assert "This answer is for capacity 8GiB." in text or "(capacity 8GiB)" in text


def test_a_value_with_the_same_answer_and_another_command_shows_its_own_command(tmp_path):
    rows = []
    for size, pages in (("8GiB", 30690696), ("16GiB", 28593544)):
        step = NextStep(what="Raise the limit", command=f"grubby --args=ttm.pages_limit={pages}")
        said = verdict("ttm-gtt-cap", "likely", title="Half of the RAM")
        rows.append(("03_ttm", "oak", {"reserve": size}, replace(said, next_step=step)))
    page = report.page(recorded(tmp_path, rows))
    text = " ".join(check(page).text.split())
    first, _, others = text.partition("With other values: 1 more answer")
    assert "reserve 8GiB" in first and "30690696" in first and "28593544" not in first
    assert "reserve 16GiB" in others and "28593544" in others.partition("What was looked at")[0]


def test_a_closing_report_makes_no_box_of_the_machine_that_it_ran_on(tmp_path):
    page = check(report.page(swept(tmp_path))).text
    assert "2 of 2 boxes have a problem. oak: " in page and "2 boxes, 4 runs" in page
    boxes = page[page.index("2 of 2 boxes") : page.index("Every run finished")]
    assert "live" not in boxes and "something else" not in boxes
    table = page[page.index("By notebook") :].partition("Runs")[0]
    assert "09_case_report" not in table and "live" not in table
    assert "on live" in page[page.index("Runs") :], "its run is still listed"


def test_a_closing_report_beside_one_box_leaves_one_box(tmp_path):
    leak = verdict("user-leak", "likely")
    rows = [("01_probe", "oak", {}, leak), ("09_case_report", "live", {"batch": "{batch}"}, leak)]
    recorded(tmp_path, rows)
    page = check(report.page(tmp_path)).text
    assert "1 box has a problem. oak: a memory leak" in page and "1 box, 2 runs" in page
