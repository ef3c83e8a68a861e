"""Batches of the version before open as before, and one line of DuckDB reads the records of all."""

import json
import re
from pathlib import Path

import duckdb
import pytest
from night_runs import night

from helpers.batch.record import read_batch
from helpers.batch.report import OF_SEVERAL, write_index
from helpers.batch.status import status_text

ROOT = Path(__file__).resolve().parents[1]
# As 0.1.0 wrote it while the fleet had leases: every field that a record had.
RECORD = {
    "schema_version": 2,
    "run_id": "000-01_hardware_probe-f75cbc12",
    "batch_id": "20261120T230000Z-night",
    "box": "cpu-only",
    "notebook": "01_hardware_probe.ipynb",
    "parameters": {"ladder": False},
    "preset": "",
    "danger": "looks",
    "gpu": "",
    "estimate_s": 4.0,
    "state": "node_lost",
    "cause": "the node of worker w0 (tls://10.0.0.2:4711): no word for 30 s",
    "stopped_by": "",
    "attempt": 1,
    "strikes": 1,
    "signal": "",
    "failing_cell": None,
    "cells": {},
    "last_words": "",
    "node": "oak",
    "boot_id": "b00t",
    "pid": None,
    "ooms_before": None,
    "plan_sha256": "ab" * 32,
    "started_at": "2026-11-20T23:00:01Z",
    "ended_at": "2026-11-20T23:00:41Z",
    "seconds": None,
    "tool_version": "0.1.0",
    "verdict": None,
    "figures": [{"path": "figures/01.png", "alt": "the ladder"}],
    "files": ["notebook.ipynb"],
    "left_behind": [],
    "gate": "",
    "quarantined": "",
    "notes": ["what it wrote lies on oak in /scratch/casebook/20261120T230000Z-night.x"],
}


def put(folder, record):
    (folder / record["run_id"]).mkdir(parents=True)
    (folder / record["run_id"] / "run.json").write_text(json.dumps(record))
    return folder


def test_a_batch_of_the_version_before_opens(tmp_path):
    batch = put(tmp_path / RECORD["batch_id"], RECORD)
    (batch / "plan.yaml").write_text("name: night\ninsecure: false\nruns: [{notebook: x.ipynb}]\n")
    view = read_batch(batch)
    opened = view.runs[0].model_dump(mode="json")
    assert view.unreadable == () and opened == {**RECORD, "from_start": 0}  # a field since then
    assert "no word for 30 s" in status_text(view)
    assert RECORD["cause"] in write_index(batch).read_text()


def test_batches_that_were_merged_by_collect_open(tmp_path):
    merged = {**RECORD, "run_id": f"oak.{RECORD['batch_id']}.{RECORD['run_id']}"}
    batch = put(tmp_path / "all", merged)
    (batch / "collected").write_text(f"{RECORD['batch_id']}\n")
    assert merged["run_id"] in write_index(batch).read_text()


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_one_page_holds_several_batches_and_leads_to_each(tmp_path, count):
    oak = night(tmp_path / "nights" / "oak" / "20261120T230000Z-night", count, notebooks=True)
    elm = night(tmp_path / "nights" / "elm" / "20261120T230000Z-night", count, seed=9)
    page = write_index(oak, elm)
    assert page == tmp_path / "nights" / OF_SEVERAL
    text = page.read_text()
    assert f"{2 * count} runs" in text
    anchors = re.findall(r'id="(run-\d+)"', text)
    assert len(anchors) == len(set(anchors)) == 2 * count
    links = set(re.findall(r'href="((?:oak|elm)/[^"]+)"', text))
    assert bool(links) == (count == 20)
    for link in links:
        assert (page.parent / link).is_file()
        up = re.search(r'href="([^"]+)">All runs', (page.parent / link).read_text())[1]
        assert ((page.parent / link).parent / up).resolve() == page
    assert write_index(tmp_path / "nights" / "oak", tmp_path / "nights" / "elm") == page


def test_the_line_for_duckdb_reads_the_records_of_all_batches(tmp_path, monkeypatch):
    line = re.search(r'duckdb -c "([^"]+)"', (ROOT / "notebooks" / "README.md").read_text())[1]
    for seed in (1, 2):
        night(tmp_path / "outputs" / f"2026112{seed}-night", 30, seed=seed)
    put(tmp_path / "outputs" / RECORD["batch_id"], RECORD)
    monkeypatch.chdir(tmp_path)
    rows = duckdb.sql(line).fetchall()
    assert sum(row[3] for row in rows) == 61
    assert {row[2] for row in rows} >= {"answered", "died", "node_lost", "planned"}
