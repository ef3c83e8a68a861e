"""Merges the batch folders of several boxes into one that ``status`` and ``report`` read; nothing that was measured is lost."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from helpers.look.files import write_atomic

from .journal import LOCK
from .record import EARLIER, RecordUnreadable, read_batch, read_run, write_run
from .shapes import Run

MERGED = "collected"  # marks a folder that was written here
RANK = {"planned": 1, "skipped": 2, "started": 3, "node_lost": 4}


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

    A run is known by its batch and its id, behind the name of its box. Of two records of one run the one that tells more stays
    and the other is kept below it. What belongs to no run (plan, bundles) goes to a folder for each batch.
    """
    out = out.resolve()
    batches = [batch for folder in folders for batch in _batches(folder.resolve(), out)]
    if out.is_dir() and any(out.iterdir()) and not (out / MERGED).exists():
        raise CollectError(
            f"{out}: seen files that no merge wrote; expected a new folder or an earlier merge; give another"
        )
    same = 0
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / MERGED, "".join(f"{batch.name}\n" for batch in batches))
        for stale in out.glob(
            ".collect-*"
        ):  # of a merge that was killed: it may hold the only copy of something
            _copy(stale, out / "batches" / stale.name[1:])
            shutil.rmtree(stale)
        for batch in batches:
            label = "" if (batch / MERGED).exists() else _label(batch)
            for path in sorted(batch.glob("*/run.json")):
                run = _read(path)
                run_id, batch_id = (
                    (run.run_id, run.batch_id) if run else (path.parent.name, batch.name)
                )
                name = run_id if (batch / MERGED).exists() else f"{label}{batch_id}.{run_id}"
                same += not _merge(
                    path.parent,
                    out / name,
                    run.model_copy(update={"run_id": name}) if run else None,
                )
            for path in batch.iterdir():
                if not (path / "run.json").exists() and path.name not in (MERGED, LOCK):
                    to = (
                        out
                        if (batch / MERGED).exists()
                        else out / "batches" / f"{label}{batch.name}"
                    )
                    _copy(path, to / path.name)
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", None) or str(error)[:200]
        raise CollectError(
            f"{out}: {why}; expected folders that can be read and room to merge them; see to it"
        ) from error
    view = read_batch(out)
    return Collected(out, view.runs, same, view.unreadable)


def _batches(folder: Path, out: Path) -> Iterator[Path]:
    """The folder itself if it holds runs, else the folders in it that do."""
    found = [
        one
        for one in (folder, *(folder.iterdir() if folder.is_dir() else ()))
        if any(one.glob("*/run.json"))
    ]
    found = [one for one in found[:1] if one == folder] or sorted(
        one for one in found if one != out
    )
    if not found or out in found or any(one in out.parents for one in found):
        seen = "the merge itself" if found else "no run.json below it"
        raise CollectError(
            f"{folder}: seen {seen}; expected a batch's folder, or a folder of some; give another"
        )
    yield from found


def _label(batch: Path) -> str:
    """The name of the box that a batch was started on, with a dot; empty where the batch's own name has it."""
    box = ""
    with suppress(OSError):
        box = (
            (batch / LOCK)
            .read_text(errors="replace")
            .strip()
            .rpartition(" on ")[2]
            .replace("/", "_")
        )
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
    old = _read(here / "run.json")
    mark = _mark(
        run.model_dump_json(indent=1).encode() if run else (source / "run.json").read_bytes()
    )
    if (
        run
        and old
        and run.attempt == old.attempt
        and run.pid
        and old.pid
        and (run.boot_id, run.pid) != (old.boot_id, old.pid)
    ):
        return _merge(
            source,
            here.with_name(f"{here.name}.{mark}"),
            run.model_copy(update={"run_id": f"{here.name}.{mark}"}),
        )
    if mark == _mark((here / "run.json").read_bytes()) or any(here.glob(f"**/{EARLIER}/{mark}")):
        return False
    if _tells(run) < _tells(old):
        return _lay(source, here / EARLIER / mark, run)
    return _lay(source, here, run)


def _tells(run: Run | None) -> tuple[int, int]:
    """How much a record tells of a run: of its last attempt, and of its end."""
    return (run.attempt, RANK.get(run.state, 5)) if run else (0, 0)


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
        here.rename(fresh / EARLIER / _mark((here / "run.json").read_bytes()))
    fresh.rename(here)
    fresh.parent.rmdir()
    return True


def _copy(source: Path, to: Path) -> None:
    """Copy files and folders; links and what is no file are left out, since they mean something on their own box alone."""
    if source.is_dir() and not source.is_symlink():
        to.mkdir(parents=True, exist_ok=True)
        for one in source.iterdir():
            _copy(one, to / one.name)
    elif source.is_file() and not source.is_symlink():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to)
