"""Questions over many nights: every run.json below outputs as tables that DuckDB asks.

Each record is read and checked by this project first, because one torn file makes DuckDB give
up on all of them (seen with 1.5 and 2.0). What cannot be believed is named and left out. DuckDB
is imported when asked. Tables: ``runs``, one row a run; ``readings``, one row for each reading
in bytes that a verdict stands on. The ready questions are in questions.sql.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.ground.shapes import in_words
from helpers.look.files import whole, write_atomic

from .journal import LOCK
from .record import BLAMED, EARLIER, RecordUnreadable, read_batch, read_run, write_run
from .shapes import Run

# Column and type, in the order of the table; a column without a type is VARCHAR.
RUNS = """batch run_id same notebook box preset gpu node parameters state cause signal attempt:INTEGER strikes:INTEGER
started_at:TIMESTAMP ended_at:TIMESTAMP seconds:DOUBLE verdict confidence tool_version"""
READINGS = "batch run_id same notebook box started_at:TIMESTAMP reading source bytes:BIGINT"
MOST_BYTES = 1 << 62


def _questions() -> tuple[dict[str, str], dict[str, str]]:
    """(SQL, what it answers) of each question in questions.sql, by its name."""
    text = Path(__file__).with_name("questions.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- ([a-z]+): (.*)\n", text.replace("LOST", str(BLAMED)), flags=re.MULTILINE)
    names, meaning, sql = (parts[first::3] for first in (1, 2, 3))
    return dict(zip(names, sql, strict=True)), dict(zip(names, meaning, strict=True))


QUESTIONS, MEANING = _questions()


class HistoryError(ValueError):
    """A question that cannot be asked: no folder, or no such question. One line."""


@dataclass(frozen=True)
class Answer:
    """Rows under their columns."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def in_words(self) -> Answer:
        """The answer for a person: causes by their names, nothing in place of NULL."""
        return Answer(self.columns, [tuple(map(_in_words, self.columns, r)) for r in self.rows])


@dataclass(frozen=True)
class History:
    """The records of many nights; ``unreadable`` holds one line for each that was left out."""

    read: int
    unreadable: tuple[str, ...]
    database: Any = field(repr=False)

    def ask(self, question: str) -> Answer:
        """The answer to a name in QUESTIONS or to SQL over ``runs`` and ``readings``.

        Raises HistoryError.
        """
        import duckdb

        if " " not in question.strip() and question not in QUESTIONS:
            names = ", ".join(QUESTIONS)
            raise HistoryError(f"question {question!r}: expected SQL or one of {names}")
        try:
            asked = self.database.execute(QUESTIONS.get(question, question))
            rows = [tuple(map(_plain, row)) for row in asked.fetchall()]
            return Answer(tuple(column[0] for column in asked.description), rows)
        except duckdb.Error as error:
            why = f"{str(error).splitlines()[0]}; expected SQL over runs and readings"
            raise HistoryError(f"DuckDB: {why}") from error


def open_history(outputs: Path) -> History:
    """The history of every batch below a folder. Raises HistoryError where there is no folder."""
    import duckdb

    if not outputs.is_dir():
        raise HistoryError(f"{outputs}: no such folder; expected the one that holds the batches")
    runs: dict[tuple[str, ...], dict[str, Any]] = {}
    readings: list[dict[str, Any]] = []
    unreadable = []
    for path in sorted(outputs.glob("*/*/run.json")):
        try:
            run = read_run(path)
        except RecordUnreadable as error:
            unreadable.append(str(error))
            continue
        row = _row(run)
        key = (run.batch_id, run.node, run.started_at, row["run_id"])
        if key not in runs:  # else it lies here twice: in its batch, and in a merge of several
            runs[key] = row
            readings += [{**row, **reading} for reading in _readings(run)]
    database = duckdb.connect(":memory:")
    with tempfile.TemporaryDirectory(prefix="casebook-") as folder:
        _load(database, "runs", RUNS, list(runs.values()), Path(folder))
        _load(database, "readings", READINGS, readings, Path(folder))
    database.execute("SET enable_external_access = false")  # a question never writes a file
    return History(len(runs), tuple(unreadable), database)


def same_run(run: Run, with_box: bool = True) -> str:
    """What makes two records the same run at two times: notebook, parameters, preset, GPU and,
    unless told, the box.
    """
    what = [run.notebook, run.parameters, run.preset, run.gpu, *([run.box] if with_box else [])]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _row(run: Run) -> dict[str, Any]:
    """A row of ``runs``.

    A merge of batches puts the batch before the id of a run; here both are as they were.
    """
    given = ", ".join(f"{name}={value}" for name, value in sorted(run.parameters.items()))
    verdict = run.verdict
    own: dict[str, Any] = {"batch": run.batch_id, "same": same_run(run), "parameters": given}
    own["run_id"] = run.run_id.rpartition(f"{run.batch_id}.")[2]
    own["verdict"] = verdict.label if verdict else None
    own["confidence"] = verdict.confidence if verdict else None
    return {**{name: getattr(run, name, None) for name in _columns(RUNS)}, **own}


def _readings(run: Run) -> list[dict[str, Any]]:
    """What of a row of ``readings`` is not of its run."""
    rows = []
    for item in run.verdict.evidence if run.verdict else ():
        value = item.reading.value
        source = item.reading.source
        if item.reading.unit == "bytes" and isinstance(value, (int, float)):
            if abs(value) < MOST_BYTES:
                rows.append({"reading": item.id, "source": source, "bytes": int(value)})
    return rows


def _columns(table: str) -> dict[str, str]:
    return {name: kind or "VARCHAR" for name, _, kind in (w.partition(":") for w in table.split())}


def _load(
    database: Any, table: str, columns: str, rows: list[dict[str, Any]], folder: Path
) -> None:
    """Everything goes over as text and is cast there: a time that is none becomes NULL instead
    of an error for the whole.
    """
    path = folder / f"{table}.jsonl"
    kinds = _columns(columns)
    lines = [json.dumps({name: _text(row[name]) for name in kinds}) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    cast = ", ".join(f'TRY_CAST("{name}" AS {kind}) AS "{name}"' for name, kind in kinds.items())
    read = ", ".join(f"{name}: 'VARCHAR'" for name in kinds)
    source = f"read_json('{path}', columns={{{read}}}, format='newline_delimited')"
    database.execute(f"CREATE TABLE {table} AS SELECT {cast} FROM {source}")


def _plain(value: Any) -> Any:
    """A value that JSON holds: times and decimals become words."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _in_words(column: str, value: Any) -> Any:
    """A value in a reader's words.

    A cause alone is known by its column: a word such as ``permission`` may stand in others.
    """
    told = isinstance(value, str) and (column == "verdict" or value.endswith(")"))
    return in_words(value) if told else "" if value is None else value


def _text(value: Any) -> str | None:
    return None if value is None else str(value).encode("utf-8", "replace").decode()


# Merges the batch folders of several boxes into one that ``status`` and ``report`` read;
# nothing that was measured is lost.

MERGED = "collected"  # marks a folder that was written here
RANK = {"planned": 1, "skipped": 2, "started": 3, "node_lost": 4}
ENDED = 5


class CollectError(ValueError):
    """Folders that cannot be merged. One line: seen, expected, what to do."""


@dataclass(frozen=True)
class Collected:
    """The merged batch.

    ``same`` counts runs that it held before; ``unreadable`` names each record that cannot be
    believed.
    """

    folder: Path
    runs: tuple[Run, ...]
    same: int
    unreadable: tuple[str, ...]


def collect(folders: Sequence[Path], out: Path) -> Collected:
    """Merge batch folders, or folders that hold some, into ``out``, which may hold an earlier
    merge. Raises CollectError.

    A run is known by its batch and its id, behind the name of its box. Of two records of one
    run the one that says more stays and the other is kept below it. What belongs to no run
    (plan, bundles) goes to a folder for each batch.
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
    merged = (batch / MERGED).exists()
    same = 0
    label = "" if merged else _label(batch)
    for path in sorted(batch.glob("*/run.json")):
        run = _read(path)
        name = path.parent.name
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
    """The name of the box that a batch was started on, with a dot; empty where the batch's own
    name has it.
    """
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
    old = _read(here / "run.json")
    old_mark = _mark(whole(here / "run.json"))
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
    """Copy files and folders; links and what is no file are left out, since they mean something
    on their own box alone.
    """
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
