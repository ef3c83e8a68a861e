"""The published runs of real GPUs in tests/data/measured_runs.tsv, which `make published` rehearses."""

from __future__ import annotations

import json
import re
from collections import Counter

import published
import pytest
from published import read_rows

TOOLS = "xmem", "dnnmem", "schedtune", "llmem"
FIELDS = {"bytes": r"\d+", "oom": "true|false", "second_oom": "true|false", "seconds": r"\d+\.\d\d"}
OF_THE_JOB = {
    "family": "cnn|transformer|llm",
    "model": r"[\w.-]+(/[\w.-]+)?",
    "optimizer": "SGD|Adam|AdamW|Adagrad|RMSprop|Adafactor",
    "batch": r"[1-9]\d*",
    "zero_grad": "[012]?",
    "gpu": "RTX 3060|RTX 4060|A100-SXM4-40GB",
    "total_bytes": r"\d+",
    "ground_bytes": r"\d+",
    "real_oom": "true|false",
    "commit": "[0-9a-f]{40}",
    "path": r"plot/data/[^\t]+/evaluation_result\.json",
}
OF_A_TOOL = {f"{tool}_{name}": f"({form})?" for tool in TOOLS for name, form in FIELDS.items()}


def test_every_field_of_a_measured_run_has_its_form():
    forms = OF_THE_JOB | OF_A_TOOL
    for row in read_rows():
        assert row.keys() == forms.keys()
        wrong = {
            name: row[name] for name, form in forms.items() if not re.fullmatch(form, row[name])
        }
        assert not wrong, row["path"]


def test_no_job_and_no_file_stands_twice():
    rows = read_rows()
    jobs = Counter(
        tuple(row[name] for name in ("model", "optimizer", "batch", "zero_grad", "gpu"))
        for row in rows
    )
    assert [job for job, times in jobs.items() if times > 1] == []
    assert len({row["path"] for row in rows}) == len(rows)


def test_the_runs_are_of_three_cards_and_three_families():
    rows = read_rows()
    assert len(rows) >= 200
    assert len({row["gpu"] for row in rows}) == len({row["family"] for row in rows}) == 3
    assert len({(row["gpu"], row["total_bytes"]) for row in rows}) == 3
    assert all(int(row["ground_bytes"]) < int(row["total_bytes"]) for row in rows)


def test_a_run_says_what_its_path_says():
    """The folder of a run is named after its model, optimizer and batch, the one below it after its card."""
    for row in read_rows():
        folder, card = row["path"].split("/")[-3:-1]
        job = [row["model"].replace("/", "-"), row["optimizer"], row["batch"]]
        assert folder.split("_")[:3] == job, row["path"]
        assert card.endswith(row["gpu"].replace(" ", "-")), row["path"]


def test_a_tool_that_gave_bytes_took_time_and_gave_a_verdict():
    for row in read_rows():
        for tool in TOOLS:
            assert bool(row[f"{tool}_bytes"]) == bool(row[f"{tool}_seconds"]), row["path"]
            assert row[f"{tool}_oom"] or not row[f"{tool}_bytes"], row["path"]


def test_a_part_has_each_family_and_is_the_same_at_each_call():
    rows = read_rows()
    part = published.draw(rows, 6)
    assert Counter(row["family"] for row in part) == {"cnn": 2, "transformer": 2, "llm": 2}
    assert part == published.draw(rows, 6) == published.draw(rows, len(rows))[:6]
    assert sorted(row["path"] for row in published.draw(rows, len(rows))) == sorted(
        row["path"] for row in rows
    )


def test_the_program_of_a_row_knows_its_model():
    program = published.JOB.read_text(encoding="utf-8")
    assert [
        model for model in {row["model"] for row in read_rows()} if f'"{model}":' not in program
    ] == []


def test_a_rehearsal_is_read_behind_what_the_program_wrote():
    run = {"exit_code": 0, "ooms": 0, "error": "", "peak_reserved_bytes": 6, "more_bytes": 0}
    run |= {
        "reserved_between_bytes": [5, 7],
        "retries": 3,
        "fits": True,
        "seconds": 2.5,
        "device": {"total_bytes": 12, "held_bytes": 2},
    }
    said = "a warning\n{\n of the program\n" + json.dumps(run, indent=1) + "\n"
    assert published.answer_of(said) == published.Answer(6, False, 2.5, 3, (5, 7))
    assert published.answer_of(json.dumps(run | {"more_bytes": 5}, indent=1)).oom is None
    ran_out = run | {"exit_code": 1, "ooms": 1, "fits": False}
    assert published.answer_of(json.dumps(ran_out, indent=1)).oom is True


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it wrote nothing"),
        ("Traceback\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("\n{\n half", "half"),
    ],
)
def test_a_rehearsal_without_an_answer_fails_with_its_last_line(text, why):
    with pytest.raises(published.Failed, match=re.escape(why)):
        published.answer_of(text)


def test_a_program_that_fails_for_another_reason_gives_no_peak():
    run = {"exit_code": 1, "ooms": 0, "error": "ImportError: no transformers"}
    with pytest.raises(published.Failed, match="no transformers"):
        published.answer_of(json.dumps(run, indent=1))


def test_errors_are_of_runs_that_ended_and_verdicts_of_all():
    """Two runs that ended, off by 10 % and 30 %, and one that ran out and was foreseen to."""
    rows = [row for row in read_rows() if row["family"] == "transformer"]
    ended = [row for row in rows if row["real_oom"] == "false"][:2]
    ran_out = [row for row in rows if row["real_oom"] == "true"][:1]
    answers = {
        row["path"]: published.Answer(round(int(row["ground_bytes"]) * times), oom=False, seconds=4)
        for row, times in zip(ended, (1.1, 0.7), strict=True)
    }
    answers[ran_out[0]["path"]] = published.Answer(1, oom=True, seconds=4)
    head, ours, *_ = published.table([*ended, *ran_out], answers)
    assert head.split()[:2] == ["family", "tool"]
    assert ours.split() == "transformers casebook 2 20.00% 29.00% 30.00% 4.0 3 of 3".split()


def test_transformers_in_small_batches_stand_apart():
    rows = [row for row in read_rows() if row["family"] == "transformer"]
    ended = [row for row in rows if row["real_oom"] == "false"]
    small = next(row for row in ended if row["batch"] == "10")
    large = next(row for row in ended if row["batch"] == "16")
    answers = {
        row["path"]: published.Answer(round(int(row["ground_bytes"]) * times), oom=False, seconds=4)
        for row, times in ((small, 1.1), (large, 1.2))
    }
    ours = [line for line in published.table([small, large], answers) if "casebook" in line]
    below, above = ours[1:]
    assert below.startswith("  below 16 lines") and "10.00%" in below
    assert above.startswith("  from 16 lines") and "20.00%" in above


def test_a_tool_is_compared_over_the_same_runs():
    """A tool with no word on a run has none in the table: LLMem knows no convolutional nets."""
    rows = [row for row in read_rows() if row["family"] == "cnn"][:3]
    answers = {row["path"]: published.Answer(1, oom=None, seconds=1) for row in rows}
    lines = published.table(rows, answers)
    assert not any("LLMem" in line for line in lines)
    assert lines[1].endswith("0 of 0, 3 between")


def test_a_run_that_only_fitted_by_giving_cached_memory_back_stands_apart():
    rows = [row for row in read_rows() if row["family"] == "transformer"]
    ended = next(row for row in rows if row["real_oom"] == "false")
    ran_out = next(row for row in rows if row["real_oom"] == "true")
    squeezed = published.Answer(1, oom=False, seconds=1, retries=1)
    assert published.group_of(ended, squeezed) == published.AT_THE_LIMIT
    assert published.group_of(ran_out, squeezed) == "transformers"


def test_a_card_holds_back_what_no_run_that_ran_out_ever_reached():
    card = {"gpu": "a", "total_bytes": "100"}
    grounds = ("80", "true"), ("90", "true"), ("95", "false")
    rows = [{**card, "ground_bytes": ground, "real_oom": oom} for ground, oom in grounds]
    assert published.held_bytes(rows, "a") == 10
    assert published.held_bytes(rows[2:], "a") == 0
