"""Questions over many nights: every run.json below outputs as tables that DuckDB asks.

Each record is read and checked by this project first, because one torn file makes DuckDB give up on all of them (seen with
1.5 and 2.0). What cannot be believed is named and left out.
DuckDB is imported when asked. Tables: ``runs``, one row a run; ``readings``, one row for each reading in bytes
that a verdict stands on. The ready questions are in questions.sql.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.shapes import in_words

from .record import BLAMED, RecordUnreadable, read_run
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
        """The answer to a name in QUESTIONS or to SQL over ``runs`` and ``readings``. Raises HistoryError."""
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
    """What makes two records the same run at two times: notebook, parameters, preset, GPU and, unless told, the box."""
    what = [run.notebook, run.parameters, run.preset, run.gpu, *([run.box] if with_box else [])]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _row(run: Run) -> dict[str, Any]:
    """A row of ``runs``. A merge of batches puts the batch before the id of a run; here both are as they were."""
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
        value, source = item.reading.value, item.reading.source
        if item.reading.unit == "bytes" and isinstance(value, (int, float)):
            if abs(value) < MOST_BYTES:
                rows.append({"reading": item.id, "source": source, "bytes": int(value)})
    return rows


def _columns(table: str) -> dict[str, str]:
    return {name: kind or "VARCHAR" for name, _, kind in (w.partition(":") for w in table.split())}


def _load(
    database: Any, table: str, columns: str, rows: list[dict[str, Any]], folder: Path
) -> None:
    """Everything goes over as text and is cast there: a time that is none becomes NULL instead of an error for the whole."""
    path, kinds = folder / f"{table}.jsonl", _columns(columns)
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
    """A value in a reader's words. A cause alone is known by its column: a word such as ``permission`` may stand in others."""
    told = isinstance(value, str) and (column == "verdict" or value.endswith(")"))
    return in_words(value) if told else "" if value is None else value


def _text(value: Any) -> str | None:
    return None if value is None else str(value).encode("utf-8", "replace").decode()
