"""The published runs of real GPUs in tests/data/measured_runs.tsv, which `make published` rehearses."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

FILE = Path(__file__).parent / "data" / "measured_runs.tsv"
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


def read_rows() -> list[dict[str, str]]:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [*csv.DictReader([line for line in lines if line[0] != "#"], delimiter="\t")]


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
