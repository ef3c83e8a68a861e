"""The disk fills up in the night: the records, the runs that only look and the page come all the same."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from contextlib import suppress

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from run_stand_in import NOTEBOOKS, ROOT, StandIn, go, plan, states

from helpers.batch import reserve
from helpers.batch.record import read_batch
from helpers.batch.report import page
from helpers.batch.reserve import RELEASED, RESERVE_BYTES
from helpers.batch.status import status_text

MIB = 1 << 20
FILLS = """import os
with open("checkpoint.bin", "wb", buffering=0) as file:
    while file.write(bytes(4096)):
        pass"""
NIGHT = """name: night
order: as written
gates: {settle_s: 0, disk_free_bytes: 41943040, host_free_bytes: 0}
runs:
- {notebook: fills.ipynb, danger: loads}
- {notebook: needs_no_verdict.ipynb, danger: loads}
- {notebook: needs_no_verdict.ipynb, danger: looks}
- {notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, parameters: {batch: "{batch}"}}
"""
ON_A_SMALL_DISK = """mount -t tmpfs -o size=80m none "$1" || exit 77
cd "$2" && "$3" -m helpers run "$4" --out "$1" --box cpu-only
echo "exit $?"
cp -r "$1"/*-night-cpu-only "$5"
"""


def small_disk_is_refused():
    """Why no small disk can be mounted here for this process alone, or nothing."""
    try:
        words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except OSError as error:
        return f"unshare: {error.strerror}"
    return done.stderr.strip() if done.returncode else ""


def test_after_a_run_has_filled_the_disk_looking_runs_and_the_closing_report_come(tmp_path):
    refused = small_disk_is_refused()
    if refused:
        pytest.skip(f"no disk of its own can be mounted here: {refused}")
    for folder in ("plans", "disk", "kept"):
        (tmp_path / folder).mkdir()
    for name in ("needs_no_verdict", "takes_parameters"):
        shutil.copy(NOTEBOOKS / f"{name}.ipynb", tmp_path / "plans")
    fills = new_notebook(cells=[new_code_cell(FILLS)], metadata={"casebook": {"verdict": False}})
    nbformat.write(fills, tmp_path / "plans/fills.ipynb")
    path = tmp_path / "plans/plan.yaml"
    path.write_text(NIGHT)
    words = ["unshare", "-m", "bash", "-c", ON_A_SMALL_DISK, "test", str(tmp_path / "disk")]
    words += [str(ROOT), sys.executable, str(path), str(tmp_path / "kept")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (batch,) = (tmp_path / "kept").iterdir()
    runs = read_batch(batch).runs
    assert [run.state for run in runs] == ["failed", "skipped", "answered", "answered"], done.stderr
    assert "No space left on device" in runs[0].cause and "free on the disk" in runs[1].cause
    assert "exit 1" in done.stdout and "unrecorded" not in done.stdout
    assert sum(RELEASED in note for run in runs for note in run.notes) == 1
    assert f"{RELEASED}." in (batch / "index.html").read_text()


Disk = namedtuple("Disk", "free")


def disk_with(monkeypatch, *free):
    """Every look at the free room of the disk finds the next of these, and then the last."""
    left = list(free)

    def usage(folder):
        return Disk(left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(reserve.shutil, "disk_usage", usage)


def nameless_files():
    """The sizes of those of 16 MiB that this process has open."""
    sizes = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            seen = os.stat(f"/proc/self/fd/{name}")
            sizes += [seen.st_size] if seen.st_nlink == 0 else []
    return [size for size in sizes if size == RESERVE_BYTES]


def notes_of(result):
    return [note for run in result.runs for note in run.notes]


def test_room_is_released_before_a_looking_run_and_the_page_and_status_say_so(
    tmp_path, monkeypatch
):
    disk_with(monkeypatch, 64 * MIB, MIB)
    result = go(plan(tmp_path))
    assert states(result) == ["answered"] * 4
    (note,) = notes_of(result)
    assert note.endswith(f"1.00 MiB free on the disk: {RELEASED}") and note in result.runs[0].notes
    text = page(result.folder)
    assert f"The disk was full: {note}." in text and "Every run finished" in text
    assert note in status_text(read_batch(result.folder))


def test_a_batch_with_room_keeps_its_reserve_and_leaves_none_behind(tmp_path, monkeypatch):
    disk_with(monkeypatch, 64 * MIB)
    reserved = []
    standin = StandIn(each=lambda folder, run: reserved.append(nameless_files()))
    result = go(plan(tmp_path), standin)
    assert notes_of(result) == [] and reserved == [[RESERVE_BYTES]] * 4 and nameless_files() == []
    names = {path.name for path in result.folder.iterdir()}
    assert names == {"plan.yaml", ".lock", *(run.run_id for run in result.runs)}
    assert "The disk was full" not in page(result.folder)


def test_on_a_disk_with_little_room_nothing_is_reserved(tmp_path, monkeypatch):
    disk_with(monkeypatch, RESERVE_BYTES, MIB)
    result = go(plan(tmp_path))
    assert states(result) == ["answered"] * 4 and notes_of(result) == []
