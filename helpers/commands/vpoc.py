"""The command about volume profiles: vpoc."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from helpers.commands.use import ROOT, Verb, WrongUse, print_json


def register(verb: Verb) -> None:
    """vpoc."""
    vpoc = verb(
        "vpoc",
        _vpoc,
        "volume profiles, POC and value area of files of trades, within the memory that is there",
    )
    vpoc.add_argument("file", nargs="+", help="CSV, Parquet or npz; columns are guessed and said")
    vpoc.add_argument(
        "--tick",
        default="",
        metavar="SIZE",
        help="the tick size, or a product: 0.25, ES (default: guessed)",
    )
    vpoc.add_argument(
        "--strategy",
        default="fused",
        metavar="S",
        help="how to count (default: fused; stream_parquet streams)",
    )
    vpoc.add_argument(
        "--device",
        default="cpu",
        metavar="D",
        help="cpu or cuda:0, for the strategies that torch runs",
    )
    vpoc.add_argument(
        "--zone", default="", help="the zone of times without one, such as America/Chicago"
    )
    vpoc.add_argument(
        "--cut",
        default="17:00",
        metavar="HH:MM",
        help="when a session begins in Chicago (default: 17:00)",
    )
    vpoc.add_argument(
        "--out",
        default="",
        metavar="NAME",
        help="writes NAME.profiles.parquet and NAME.levels.parquet",
    )
    vpoc.add_argument("--force", action="store_true", help="write over files that are there")


def _vpoc(arguments: argparse.Namespace) -> int:
    from helpers.load.vpoc.planner import PlanError
    from helpers.load.vpoc.profile import USUAL, levels
    from helpers.load.vpoc.results import profile_file, write
    from helpers.load.vpoc.trades import TickError, TradesError
    from helpers.tell import vpoc

    told = []
    for name in arguments.file:
        path = Path(name)
        out = Path(arguments.out) if arguments.out else ROOT / "outputs" / path.stem
        if len(arguments.file) > 1 and arguments.out:
            out = out.with_name(f"{out.name}-{path.stem}")
        try:
            reading: dict[str, Any] = (
                {}
                if arguments.strategy == "stream_parquet"
                else {
                    "zone": arguments.zone,
                    "cut": arguments.cut,
                    "aside": out.with_name(f"{path.name}.aside.csv"),
                }
            )
            result = profile_file(
                path, arguments.tick or None, arguments.strategy, arguments.device, **reading
            )
            written = write(result, out, force=arguments.force)
        except (TradesError, TickError, PlanError, FileExistsError) as error:
            raise WrongUse(str(error)) from error
        except OSError as error:
            raise WrongUse(
                f"{name}: {error.strerror or error}; expected a file of trades"
            ) from error
        rows = vpoc.level_rows(result.trades, levels(result.counts, result.layout))
        told.append(
            {
                "file": name,
                "rule": str(USUAL),
                "sessions": rows,
                "notes": list(result.notes),
                "written": [str(path) for path in written],
            }
        )
    if arguments.json:
        print_json(told)
    else:
        print("\n\n".join(vpoc.levels_text(one) for one in told))
    return 0
