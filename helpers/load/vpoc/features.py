"""Features for a training run, as the case's pipeline expects them: NAME.pt and NAME_metadata.json, resumable by session.

What is done is kept in NAME.partial.jsonl, a line a session with a digest of its trades and the rule: a session that is there
with the same digest is not computed again. The .pt is written by torch, in a child under the interpreter that owns it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.load.box import torch_interpreter
from helpers.load.child import watch
from helpers.load.vpoc.histogram import profiles
from helpers.load.vpoc.profile import USUAL, Levels, Rule, levels
from helpers.load.vpoc.ticks import to_price
from helpers.load.vpoc.trades import Trades, survey

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "from helpers.torchside.save_features import main; main()"
COLUMNS = ("poc", "val", "vah", "low", "high", "volume", "trades", "value_area_ticks", "share_above_poc")
STEP = 64


@dataclass(frozen=True)
class Saved:
    """``status``: ok, or why the .pt could not be written; ``computed`` and ``kept`` count sessions."""

    status: str
    pt: Path
    metadata: Path
    computed: int
    kept: int


def digest(trades: Trades, session: int, rule: Rule) -> str:
    """Names a session's trades and the rule: what its features depend on."""
    ticks, volume = trades.session(session)
    seen = hashlib.sha256(f"{trades.tick} {rule} {ticks.dtype} {volume.dtype} {len(ticks)} {COLUMNS}".encode())
    seen.update(np.ascontiguousarray(ticks).tobytes())
    seen.update(np.ascontiguousarray(volume).tobytes())
    return seen.hexdigest()


def save(trades: Trades, out: Path, name: str = "vpoc_features", rule: Rule = USUAL, torch_python: str = "") -> Saved:
    """Compute what is missing, then write NAME.pt ({"features": float64 [sessions, columns], "sessions", "columns"}) and its
    metadata. A session without trades has NaN."""
    out.mkdir(parents=True, exist_ok=True)
    partial = out / f"{name}.partial.jsonl"
    done = _done(partial)
    names = [digest(trades, s, rule) for s in range(trades.sessions)]
    missing = [s for s in range(trades.sessions) if done.get(trades.labels[s], ("", []))[0] != names[s]]
    with partial.open("a") as file:
        for at in range(0, len(missing), STEP):
            for s in missing[at:at + STEP]:
                row = _features(trades, s, rule)
                done[trades.labels[s]] = (names[s], row)
                file.write(json.dumps({"session": trades.labels[s], "digest": names[s], "features": row}) + "\n")
            file.flush()
            os.fsync(file.fileno())
    table = [done[label][1] for label in trades.labels]
    spec = {"features": table, "sessions": list(trades.labels), "columns": list(COLUMNS)}
    status = _write_pt(spec, out / f"{name}.pt", torch_python or torch_interpreter())
    about = {"sessions": list(trades.labels), "columns": list(COLUMNS), "tick": trades.tick, "rule": str(rule),
             "digests": names, "notes": list(trades.notes), "file": f"{name}.pt", "status": status}
    _replace(out / f"{name}_metadata.json", json.dumps(about, indent=1))
    return Saved(status, out / f"{name}.pt", out / f"{name}_metadata.json", len(missing), trades.sessions - len(missing))


def _done(partial: Path) -> dict[str, tuple[str, list[float | None]]]:
    """What an earlier run finished; a line that was cut short when it was killed is not there, and is ended."""
    done = {}
    if partial.is_file():
        text = partial.read_text()
        for line in text.splitlines():
            try:
                row = json.loads(line)
                done[row["session"]] = (row["digest"], row["features"])
            except (ValueError, KeyError, TypeError):
                continue
        if text and not text.endswith("\n"):
            with partial.open("a") as file:
                file.write("\n")
    return done


def _features(trades: Trades, session: int, rule: Rule) -> list[float | None]:
    one = trades.take(session, session + 1)
    layout = survey(one)
    row = profiles(one, layout)
    found: Levels = levels(row, layout, rule)
    if not found.there[0]:
        return [None] * 5 + [0.0, float(len(one))] + [None] * 2
    low, high = int(layout.lows[0]), int(layout.lows[0] + layout.widths[0] - 1)
    volume, poc = float(layout.totals[0]), int(found.poc[0])
    points = [float(to_price(tick, trades.tick)) for tick in (poc, int(found.val[0]), int(found.vah[0]), low, high)]
    above = float(row[0, poc - low + 1:].sum()) / volume
    return [*points, volume, float(len(one)), float(found.vah[0] - found.val[0] + 1), above]


def _write_pt(spec: dict[str, object], path: Path, python: str) -> str:
    if not shutil.which(python):
        return f"not written: there is no Python at {python}"
    source = path.with_suffix(".json.part")
    source.write_text(json.dumps(spec))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    ended = watch([python, "-c", PROGRAM, str(source.resolve()), str(path.resolve())], 120.0, env=env)
    source.unlink()
    if ended.how == "exited" and ended.exit_code == 0:
        return "ok"
    return f"not written: {(ended.last_words.splitlines() or [ended.how])[-1][:300]}"


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)
