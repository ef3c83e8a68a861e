"""Questions over many nights: every run.json below outputs as tables that DuckDB asks.

Each record is read and checked by this project first, because one torn file makes DuckDB give up on all of them (seen with
1.5 and 2.0). What cannot be believed is named and left out; what an older version wrote is read as it is understood now.
DuckDB is optional and imported when asked. Tables: ``runs``, one row a run; ``readings``, one row for each reading in bytes
that a verdict stands on.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .record import RecordUnreadable, read_run
from .shapes import Run

RUNS = {
    "batch": "VARCHAR",
    "run_id": "VARCHAR",
    "same": "VARCHAR",
    "notebook": "VARCHAR",
    "box": "VARCHAR",
    "preset": "VARCHAR",
    "gpu": "VARCHAR",
    "node": "VARCHAR",
    "parameters": "VARCHAR",
    "state": "VARCHAR",
    "cause": "VARCHAR",
    "signal": "VARCHAR",
    "attempt": "INTEGER",
    "strikes": "INTEGER",
    "started_at": "TIMESTAMP",
    "ended_at": "TIMESTAMP",
    "seconds": "DOUBLE",
    "verdict": "VARCHAR",
    "confidence": "VARCHAR",
    "tool_version": "VARCHAR",
}
READINGS = {
    "batch": "VARCHAR",
    "run_id": "VARCHAR",
    "same": "VARCHAR",
    "notebook": "VARCHAR",
    "box": "VARCHAR",
    "started_at": "TIMESTAMP",
    "reading": "VARCHAR",
    "source": "VARCHAR",
    "bytes": "BIGINT",
}
LOST = "('died', 'stuck', 'rebooted', 'node_lost', 'timed_out')"

QUESTIONS: dict[str, str] = {
    "states": f"""
SELECT batch, count(*) AS runs, count(*) FILTER (state = 'answered') AS answered, count(*) FILTER (state = 'failed') AS failed,
       count(*) FILTER (state IN {LOST}) AS lost, count(*) FILTER (state = 'skipped') AS skipped,
       count(*) FILTER (state IN ('planned', 'started')) AS "no end", round(sum(seconds) / 3600, 2) AS hours
FROM runs GROUP BY batch ORDER BY min(started_at) NULLS LAST, batch""",
    "slowest": """
SELECT notebook, count(*) AS runs, round(median(seconds), 1) AS median_s, round(quantile_cont(seconds, 0.9), 1) AS p90_s,
       max(seconds) AS longest_s, arg_max(batch, seconds) AS longest_in
FROM runs WHERE seconds IS NOT NULL AND state <> 'skipped' GROUP BY notebook ORDER BY median_s DESC, notebook""",
    "died": f"""
SELECT notebook, box, node, state, signal, count(*) AS times, min(batch) AS first, max(batch) AS last,
       arg_max(cause, batch) AS "why, the last time"
FROM runs WHERE state IN {LOST} GROUP BY ALL ORDER BY times DESC, notebook, box, node, state, signal""",
    "verdicts": """
SELECT notebook, box, parameters, before_batch, before, batch, after FROM (
  SELECT *, verdict || ' (' || confidence || ')' AS after,
         lag(after) OVER same_run AS before, lag(batch) OVER same_run AS before_batch
  FROM runs WHERE verdict IS NOT NULL WINDOW same_run AS (PARTITION BY same ORDER BY started_at, batch, run_id))
WHERE before <> after ORDER BY batch, notebook, box""",
    "times": """
SELECT notebook, box, parameters, count(*) AS runs, first(seconds ORDER BY started_at, batch) AS first_s,
       last(seconds ORDER BY started_at, batch) AS last_s, min(seconds) AS least_s, max(seconds) AS most_s
FROM runs WHERE state = 'answered' GROUP BY same, notebook, box, parameters HAVING count(*) > 1
ORDER BY last_s / nullif(first_s, 0) DESC NULLS LAST, notebook, box""",
    "peaks": """
SELECT notebook, box, reading, source, count(*) AS runs, first(bytes ORDER BY started_at, batch) AS first_bytes,
       last(bytes ORDER BY started_at, batch) AS last_bytes, min(bytes) AS least_bytes, max(bytes) AS peak_bytes
FROM readings GROUP BY same, notebook, box, reading, source HAVING count(*) > 1
ORDER BY abs(last_bytes - first_bytes) DESC, notebook, box, reading, source""",
}
"""states per night; slowest notebooks; runs that were lost, and where; verdicts of the same run that changed; how long the same
run took over the nights; how the figures in its verdict moved."""


class HistoryError(ValueError):
    """A question that cannot be asked: no DuckDB, no folder, or no such question. One line."""


@dataclass(frozen=True)
class Answer:
    """Rows under their columns."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True)
class History:
    """The records of many nights; ``unreadable`` holds one line for each that was left out."""

    read: int
    unreadable: tuple[str, ...]
    database: Any = field(repr=False)

    def ask(self, question: str) -> Answer:
        """The answer to a name in QUESTIONS or to SQL over ``runs`` and ``readings``. Raises HistoryError."""
        if " " not in question.strip() and question not in QUESTIONS:
            raise HistoryError(
                f"question {question!r}: expected SQL or one of {', '.join(QUESTIONS)}"
            )
        try:
            got = self.database.execute(QUESTIONS.get(question, question))
            rows = [tuple(map(_plain, row)) for row in got.fetchall()]
            return Answer(tuple(column[0] for column in got.description), rows)
        except Exception as error:
            # DuckDB's errors are of its own module, which may be absent; anything else is not ours to hide.
            if type(error).__module__.split(".")[0] not in ("duckdb", "_duckdb"):
                raise
            raise HistoryError(
                f"DuckDB: {str(error).splitlines()[0]}; expected SQL over runs and readings"
            ) from error


def open_history(outputs: Path) -> History:
    """The history of every batch below a folder. Raises HistoryError where there is no DuckDB or no folder."""
    try:
        import duckdb
    except ImportError as error:
        raise HistoryError(
            "duckdb is not installed; expected for questions over many nights; install it by pip"
        ) from error
    if not outputs.is_dir():
        raise HistoryError(f"{outputs}: no such folder; expected the one that holds the batches")
    runs: list[dict[str, Any]] = []
    readings: list[dict[str, Any]] = []
    seen: dict[tuple[str, ...], set[str]] = {}
    unreadable = []
    for path in sorted(outputs.glob("*/*/run.json")):
        try:
            run = read_run(path)
        except RecordUnreadable as error:
            unreadable.append(str(error))
            continue
        row = _row(run)
        if row["run_id"] in seen.setdefault((run.batch_id, run.node, run.started_at), set()):
            continue  # it lies here twice: in its batch, and in a merge of several
        seen[run.batch_id, run.node, run.started_at].add(row["run_id"])
        runs.append(row)
        for item in run.verdict.evidence if run.verdict else ():
            value = item.reading.value
            if (
                item.reading.unit == "bytes"
                and isinstance(value, (int, float))
                and abs(value) < 1 << 62
            ):
                readings.append(
                    {**row, "reading": item.id, "source": item.reading.source, "bytes": int(value)}
                )
    database = duckdb.connect(":memory:")
    with tempfile.TemporaryDirectory(prefix="casebook-") as folder:
        _load(database, "runs", RUNS, runs, Path(folder))
        _load(database, "readings", READINGS, readings, Path(folder))
    database.execute(
        "SET enable_external_access = false"
    )  # a question reads records, never writes a file
    return History(len(runs), tuple(unreadable), database)


def same_run(run: Run, with_box: bool = True) -> str:
    """What makes two records the same run at two times: notebook, parameters, preset, GPU and, unless told, the box."""
    what = [run.notebook, run.parameters, run.preset, run.gpu, *([run.box] if with_box else [])]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _row(run: Run) -> dict[str, Any]:
    """A row of ``runs``. A merge of batches puts the batch before the id of a run; here both are as they were."""
    given = ", ".join(f"{name}={value}" for name, value in sorted(run.parameters.items()))
    verdict = run.verdict
    made = {
        "batch": run.batch_id,
        "run_id": run.run_id.rpartition(f"{run.batch_id}.")[2],
        "same": same_run(run),
        "parameters": given,
        "started_at": run.started_at or None,
        "ended_at": run.ended_at or None,
        "verdict": verdict.cause if verdict else None,
        "confidence": verdict.confidence if verdict else None,
    }
    return {**{name: getattr(run, name) for name in RUNS if name not in made}, **made}


def _load(
    database: Any, table: str, columns: dict[str, str], rows: list[dict[str, Any]], folder: Path
) -> None:
    """Everything goes over as text and is cast there: a time that is none becomes NULL instead of an error for the whole."""
    path = folder / f"{table}.jsonl"
    path.write_text(
        "".join(json.dumps({name: _text(row[name]) for name in columns}) + "\n" for row in rows),
        encoding="utf-8",
    )
    cast = ", ".join(f'TRY_CAST("{name}" AS {kind}) AS "{name}"' for name, kind in columns.items())
    read = ", ".join(f"{name}: 'VARCHAR'" for name in columns)
    database.execute(
        f"CREATE TABLE {table} AS SELECT {cast} FROM "
        f"read_json('{path}', columns={{{read}}}, format='newline_delimited')"
    )


def _plain(value: Any) -> Any:
    """A value that JSON holds: times and decimals become words."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value).encode("utf-8", "replace").decode()
