"""The command about volume profiles: vpoc."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from helpers.commands.use import ROOT, WrongUse, print_json


def vpoc(arguments: argparse.Namespace) -> int:
    """Volume profiles, POC and value area of files of trades, within the memory that is there.

    file ...: CSV, Parquet or npz; columns are guessed and said
    --tick SIZE = None: the tick size, or a product: 0.25, ES (default: guessed)
    --strategy S = fused: how to count (default: fused; stream_parquet streams)
    --device D = cpu: cpu or cuda:0, for the strategies that torch runs
    --zone ZONE: the zone of times without one, such as America/Chicago
    --cut HH:MM = 17:00: when a session begins in Chicago (default: 17:00)
    --window FROM-TO: a part of the day in Chicago: 08:30-15:00 or 08:30-15:15 for RTH
    --column ROLE=NAME ...: which column is the price, volume, time or session, where the guess is wrong
    --out NAME: writes NAME.profiles.parquet and NAME.levels.parquet
    --force: write over files that are there
    Example: vpoc ticks.parquet --tick ES
    """
    from helpers.load.vpoc.profile import USUAL, level_rows, levels
    from helpers.load.vpoc.results import profile_file, write
    from helpers.tell.vpoc import levels_text

    answers, how = [], (arguments.tick, arguments.strategy, arguments.device)
    reading = _reading(arguments)
    for name in arguments.file:
        path = Path(name)
        out = Path(arguments.out) if arguments.out else ROOT / "outputs" / path.stem
        if len(arguments.file) > 1 and arguments.out:
            out = out.with_name(f"{out.name}-{path.stem}")
        aside = out.with_name(f"{path.name}.aside.csv")
        try:
            result = profile_file(path, *how, aside=aside, **reading)
            written = write(result, out, arguments.force)
        except FileExistsError as error:
            raise WrongUse(str(error)) from error
        except OSError as error:
            why = f"{error.strerror or error}; expected a file of trades"
            raise WrongUse(f"{name}: {why}") from error
        rows = level_rows(result.trades, levels(result.counts, result.layout))
        about: dict[str, Any] = {"file": name, "rule": str(USUAL), "sessions": rows}
        paths = [str(path) for path in written]
        answers.append({**about, "notes": list(result.notes), "written": paths})
    if arguments.json:
        print_json(answers)
    else:
        print("\n\n".join(map(levels_text, answers)))
    return 0


def _reading(arguments: argparse.Namespace) -> dict[str, Any]:
    """What reading.read_trades is asked beside the file and the tick."""
    from helpers.load.vpoc.reading import COLUMNS

    columns = dict(text.partition("=")[::2] for text in arguments.column)
    for role in columns:
        if role not in COLUMNS:
            raise WrongUse(f"--column {role}: expected ROLE=NAME with one of {', '.join(COLUMNS)}")
    window = tuple(arguments.window.split("-")) if arguments.window else None
    if window and len(window) != 2:
        raise WrongUse(f"--window {arguments.window}: expected FROM-TO, such as 08:30-15:00")
    return {"zone": arguments.zone, "cut": arguments.cut, "window": window, "columns": columns}


VERBS = (vpoc,)
