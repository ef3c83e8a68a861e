"""The command that computes volume profiles from files of trades."""

import re
from argparse import Namespace
from collections.abc import Collection, Sequence
from pathlib import Path

from helpers.commands.use import WrongUse, say
from helpers.ground.places import OUTPUTS
from helpers.vpoc import view
from helpers.vpoc.columns import COLUMNS
from helpers.vpoc.files import Profiles, check_strategy, profiles_of, write
from helpers.vpoc.levels import USUAL
from helpers.vpoc.reading import read_instruments


def vpoc(arguments: Namespace) -> int:
    """Compute volume profiles, POC and value area from files of trades, within the free memory.

    file ...: CSV or Parquet with columns for price, volume, and time or session
    --tick SIZE = None: the tick size, or a product: 0.25, ES (default: guessed)
    --strategy S = fused: how to count: fused, chunked, flat, one_hot, list_cat, preallocated
        (default: fused)
    --device D = cpu: cpu or cuda:0, for the strategies that torch runs
    --zone ZONE: the time zone, if the times have none, such as America/Chicago
    --column ROLE=NAME ...: the column of the price, volume, time, session or instrument, if the
        guess is wrong;
        of a file without a header its place, as price=2
    --instrument NAME: the instrument, if the file has several (default: each by itself)
    --out NAME: write NAME.profiles.parquet and NAME.levels.parquet
    --force: replace files that are there
    Example: vpoc ticks.parquet --tick ES
    """
    answers = []
    views = []
    check_strategy(arguments.strategy, arguments.device)
    columns = _columns(arguments.column)
    for name in arguments.file:
        instruments = read_instruments(
            Path(name),
            arguments.tick,
            zone=arguments.zone,
            columns=columns,
            instrument=arguments.instrument,
        )
        for instrument, trades in instruments.items():
            profiles = profiles_of(trades, arguments.strategy, arguments.device)
            out = _out_of_file(arguments, Path(name))
            out = _out_of_instrument(out, instruments, instrument)
            written = _written(profiles, out, arguments.force)
            # val, vah: the low and the high end of the value area
            sessions = [
                {"session": row.session, "poc": row.poc, "val": row.val, "vah": row.vah}
                for row in view.usual_levels(profiles)
            ]
            answer = {
                "file": name,
                "instrument": instrument,
                "rule": str(USUAL),
                "sessions": sessions,
                "notes": list(profiles.notes),
                "written": written,
            }
            answers.append(answer)
            title = name
            if len(instruments) > 1:
                title = f"{name}, {instrument}"
            views.append(view.levels_table(profiles, title, written))
    return say(arguments, answers, *views)


def _columns(roles: Sequence[str]) -> dict[str, str]:
    """The name of the column by its role, from words such as price=bid. Raises WrongUse."""
    columns = {}
    for text in roles:
        role, _, column = text.partition("=")
        columns[role] = column
        if role not in COLUMNS:
            raise WrongUse(
                f"--column {role}: expected ROLE=NAME with one of {', '.join(COLUMNS)}"
            )
    return columns


def _out_of_file(arguments: Namespace, file: Path) -> Path:
    """Where the profiles of a file go, without an ending; one of several files adds its name."""
    if not arguments.out:
        return OUTPUTS / file.stem
    out = Path(arguments.out)
    if len(arguments.file) == 1:
        return out
    return out.with_name(f"{out.name}-{file.stem}")


def _out_of_instrument(
    out: Path, instruments: Collection[str], instrument: str
) -> Path:
    """Where the profiles of an instrument go; one of several instruments adds its name."""
    if len(instruments) == 1:
        return out
    # The name of a file, of which 40 characters tell most instruments apart.
    letters = re.sub(r"[^A-Za-z0-9._-]+", "-", instrument)[:40]
    if letters != instrument:
        # Two names can become the same letters, so the place in the file is added.
        place = list(instruments).index(instrument) + 1
        letters += f"-{place}"
    return out.with_name(f"{out.name}-{letters}")


def _written(profiles: Profiles, out: Path, force: bool) -> list[str]:
    """Write the profiles. Returns the files. Raises WrongUse where they exist, without
    ``force``.
    """
    try:
        return [str(file) for file in write(profiles, out, force)]
    except FileExistsError as error:
        raise WrongUse(str(error)) from error
