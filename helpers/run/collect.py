"""Merges the batch folders of several boxes into one that ``status`` and ``report`` read; nothing that was measured is lost."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from helpers.look.files import whole, write_atomic

from .journal import LOCK
from .record import EARLIER, RecordUnreadable, read_batch, read_run, write_run
from .shapes import Run

MERGED = "collected"  # marks a folder that was written here
RANK = {"planned": 1, "skipped": 2, "started": 3, "node_lost": 4}
ENDED = 5


class CollectError(ValueError):
    """Folders that cannot be merged. One line: seen, expected, what to do."""


@dataclass(frozen=True)
class Collected:
    """The merged batch. ``same`` counts runs that it held before; ``unreadable`` names each record that cannot be believed."""

    folder: Path
    runs: tuple[Run, ...]
    same: int
    unreadable: tuple[str, ...]


def collect(folders: Sequence[Path], out: Path) -> Collected:
    """Merge batch folders, or folders that hold some, into ``out``, which may hold an earlier merge. Raises CollectError.

    A run is known by its batch and its id, behind the name of its box. Of two records of one run the one that says more stays
    and the other is kept below it. What belongs to no run (plan, bundles) goes to a folder for each batch.
    """
    out = out.resolve()
    batches = [batch for folder in folders for batch in _batches(folder.resolve(), out)]
    if out.is_dir() and any(out.iterdir()) and not (out / MERGED).exists():
        expected = "expected a new folder or an earlier merge; give another"
        raise CollectError(f"{out}: seen files that no merge wrote; {expected}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / MERGED, "".join(f"{batch.name}\n" for batch in batches))
        for stale in out.glob(".collect-*"):  # of a merge that was killed: it may be the only copy
            _copy(stale, out / "batches" / stale.name[1:])
            shutil.rmtree(stale)
        same = sum(_take_up(batch, out) for batch in batches)
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", None) or str(error)[:200]
        expected = "expected folders that can be read and room to merge them; see to it"
        raise CollectError(f"{out}: {why}; {expected}") from error
    view = read_batch(out)
    return Collected(out, view.runs, same, view.unreadable)


def _take_up(batch: Path, out: Path) -> int:
    """Merge one batch, or one earlier merge; returns how many of its runs were there before."""
    merged, same = (batch / MERGED).exists(), 0
    label = "" if merged else _label(batch)
    for path in sorted(batch.glob("*/run.json")):
        run, name = _read(path), path.parent.name
        if not merged:
            name = f"{label}{run.batch_id if run else batch.name}.{run.run_id if run else name}"
        elif run:
            name = run.run_id
        run = run.model_copy(update={"run_id": name}) if run else None
        same += not _merge(path.parent, out / name, run)
    for path in batch.iterdir():
        if not (path / "run.json").exists() and path.name not in (MERGED, LOCK):
            to = out if merged else out / "batches" / f"{label}{batch.name}"
            _copy(path, to / path.name)
    return same


def _batches(folder: Path, out: Path) -> Iterator[Path]:
    """The folder itself if it holds runs, else the folders in it that do."""
    places = [folder, *(folder.iterdir() if folder.is_dir() else ())]
    batches = [place for place in places if any(place.glob("*/run.json"))]
    if batches[:1] == [folder]:
        batches = [folder]
    else:
        batches = sorted(batch for batch in batches if batch != out)
    if not batches or out in batches or any(batch in out.parents for batch in batches):
        seen = "the merge itself" if batches else "no run.json below it"
        expected = "expected a batch's folder, or a folder of some; give another"
        raise CollectError(f"{folder}: seen {seen}; {expected}")
    yield from batches


def _label(batch: Path) -> str:
    """The name of the box that a batch was started on, with a dot; empty where the batch's own name has it."""
    box = ""
    with suppress(OSError):
        owner = whole(batch / LOCK, 4096).decode("utf-8", "replace").strip()
        box = owner.rpartition(" on ")[2].replace("/", "_")
    box = box or next((run.node for run in read_batch(batch).runs if run.node), "")
    return f"{box}." if box and box not in batch.name else ""


def _read(path: Path) -> Run | None:
    try:
        return read_run(path)
    except RecordUnreadable:
        return None


def _merge(source: Path, here: Path, run: Run | None) -> bool:
    """Lay one run into the merge; whether anything was new."""
    if not here.exists():
        return _lay(source, here, run)
    old, old_mark = _read(here / "run.json"), _mark(whole(here / "run.json"))
    record = run.model_dump_json(indent=1).encode() if run else None
    mark = _mark(record or whole(source / "run.json"))
    if run and old and run.attempt == old.attempt and run.pid and old.pid:
        if (run.boot_id, run.pid) != (old.boot_id, old.pid):  # two runs that share every name
            name = f"{here.name}.{mark}"
            return _merge(source, here.with_name(name), run.model_copy(update={"run_id": name}))
    if mark == old_mark or any(here.glob(f"**/{EARLIER}/{mark}")):
        return False
    return _lay(source, here / EARLIER / mark if _says(run) < _says(old) else here, run)


def _says(run: Run | None) -> tuple[int, int]:
    """How much a record says of a run: of its last attempt, and of its end."""
    return (run.attempt, RANK.get(run.state, ENDED)) if run else (0, 0)


def _mark(record: bytes) -> str:
    return hashlib.sha256(record.strip()).hexdigest()[:12]


def _lay(source: Path, here: Path, run: Run | None) -> bool:
    """Copy a run's folder, whole or not at all; what stood there is kept below it."""
    here.parent.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".collect-", dir=here.parent)) / "run"
    _copy(source, fresh)
    if run is not None:
        write_run(fresh, run)
    if here.exists():
        (fresh / EARLIER).mkdir(exist_ok=True)
        here.rename(fresh / EARLIER / _mark(whole(here / "run.json")))
    fresh.rename(here)
    fresh.parent.rmdir()
    return True


def _copy(source: Path, to: Path) -> None:
    """Copy files and folders; links and what is no file are left out, since they mean something on their own box alone."""
    if source.is_symlink():
        return
    if source.is_dir():
        to.mkdir(parents=True, exist_ok=True)
        for one in source.iterdir():
            _copy(one, to / one.name)
    elif source.is_file():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to)
        to.chmod(0o600)
