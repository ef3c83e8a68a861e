"""The command about volume profiles: vpoc."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from helpers.commands.use import ROOT, Verb, WrongUse, print_json


def register(verb: Verb) -> None:
    """vpoc."""
    what = "volume profiles, POC and value area of files of trades, within the memory that is there"
    vpoc = verb("vpoc", _vpoc, what)
    add = vpoc.add_argument
    add("file", nargs="+", help="CSV, Parquet or npz; columns are guessed and said")
    add("--tick", metavar="SIZE", help="the tick size, or a product: 0.25, ES (default: guessed)")
    how = "how to count (default: fused; stream_parquet streams)"
    add("--strategy", default="fused", metavar="S", help=how)
    where = "cpu or cuda:0, for the strategies that torch runs"
    add("--device", default="cpu", metavar="D", help=where)
    zone = "the zone of times without one, such as America/Chicago"
    add("--zone", default="", help=zone)
    cut = "when a session begins in Chicago (default: 17:00)"
    add("--cut", default="17:00", metavar="HH:MM", help=cut)
    window = "a part of the day in Chicago: 08:30-15:00 or 08:30-15:15 for RTH"
    add("--window", metavar="FROM-TO", help=window)
    column = "which column is the price, volume, time or session, where the guess is wrong"
    add("--column", action="append", default=[], metavar="ROLE=NAME", help=column)
    add("--out", metavar="NAME", help="writes NAME.profiles.parquet and NAME.levels.parquet")
    add("--force", action="store_true", help="write over files that are there")


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


def _vpoc(arguments: argparse.Namespace) -> int:
    from helpers.load.vpoc.planner import PlanError
    from helpers.load.vpoc.profile import USUAL, level_rows, levels
    from helpers.load.vpoc.results import profile_file, write
    from helpers.load.vpoc.trades import TickError, TradesError
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
        except (TradesError, TickError, PlanError, FileExistsError) as error:
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
