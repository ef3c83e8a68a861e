"""Trades to try things on: a seeded generator, and real E-mini S&P 500 trades where the package index can be reached.

The real ones are 500,000 trades of 2013-09-01 17:00 to 2013-09-03 13:51 Chicago time, in the wheel of mlfinpy 0.1.2 (MIT). The
wheel is fetched on demand without its dependencies and read in place. It is never committed: CME's own terms for passing on
trades are another matter than the package's licence.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

from helpers.load.vpoc.reading import ZONE, by_date, in_window, local_to_utc
from helpers.load.vpoc.trades import Trades, TradesError, from_sessions, to_ticks

WHEEL = "mlfinpy-0.1.2-py3-none-any.whl"
INSIDE = "mlfinpy/dataset/data/tick_data.csv"
FOLDER = Path(__file__).resolve().parents[3] / "outputs" / "samples"


def generated(
    sessions: int = 1014,
    trades: int = 20_000,
    seed: int = 0,
    tick: float = 0.25,
    ragged: bool = False,
    low: int = 6000,
) -> Trades:
    """A walk on the grid: 19 of 20 trades print at the price of the one before. The same for the same arguments.

    ``ragged``: lengths differ up to 8 to 1, as neighbouring real sessions do; ``trades`` is then the longest.
    """
    rng = np.random.default_rng(seed)
    lengths = (
        rng.integers(max(1, trades // 8), trades + 1, sessions)
        if ragged
        else np.full(sessions, trades)
    )
    made = []
    for length in lengths:
        # Three in a thousand of the moves go two ticks, as through a thin book.
        moves = rng.choice(
            np.array([-2, -1, 0, 1, 2], np.int8),
            length,
            p=[0.00015, 0.02485, 0.95, 0.02485, 0.00015],
        )
        price = np.cumsum(moves, dtype=np.int32) + np.int32(low + rng.integers(0, 400))
        made.append((price, rng.geometric(0.27, length).astype(np.int32)))
    return from_sessions(made, tick)


def fetch_wheel(folder: Path = FOLDER) -> tuple[Path | None, str]:
    """The wheel with the real trades, fetched by pip where it is not yet there; or None, and why, as a sentence."""
    path = folder / WHEEL
    if path.is_file():
        return path, ""
    folder.mkdir(parents=True, exist_ok=True)
    name, version = WHEEL.split("-")[:2]
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary=:all:",
                f"{name}=={version}",
                "-d",
                str(folder),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        words = (done.stderr.strip().splitlines() or [""])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        words = f"{type(error).__name__}: {error}"
    if path.is_file():
        return path, ""
    return (
        None,
        f"the real trades are not at hand: {name} {version} could not be fetched ({words[:200] or 'pip said nothing'})",
    )


def real(path: Path, window: tuple[str, str] | None = None) -> Trades:
    """The real trades in the wheel at ``path``, by trade date; ``window`` keeps those of a window of Chicago times.

    Raises OSError, KeyError or zipfile.BadZipFile where it is not that wheel.
    """
    from pyarrow import csv, timestamp

    with zipfile.ZipFile(path) as wheel, wheel.open(INSIDE) as file:
        names = ["time", "price", "volume"]
        table = csv.read_csv(
            file,
            csv.ReadOptions(column_names=names, skip_rows=1),
            convert_options=csv.ConvertOptions(
                column_types={"time": timestamp("ms"), "price": "float64", "volume": "int32"}
            ),
        )
    wall = table["time"].to_numpy().astype("datetime64[ns]").astype(np.int64)
    times, _ = local_to_utc(wall, ZONE)
    price, volume = to_ticks(table["price"].to_numpy(), 0.25), table["volume"].to_numpy()
    if window:
        keep = in_window(times, window)
        price, volume, times = price[keep], volume[keep], times[keep]
    return by_date(
        price, volume, times, 0.25, notes=("real E-mini S&P 500 trades of two sessions of 2013",)
    )


def resampled(
    source: Trades, sessions: int = 1014, trades: int = 20_000, seed: int = 0, run: int = 500
) -> Trades:
    """Sessions made of runs of consecutive trades of the source, each run joined to the last price, each session shifted.

    They are labelled as resampled and noted as such: what they say of memory and time is real, their prices are not.
    """
    rng = np.random.default_rng(seed)
    ticks = source.price
    made = []
    for _ in range(sessions):
        begins = rng.integers(0, len(source) - run + 1, -(-trades // run))
        at = (begins[:, None] + np.arange(run)).ravel()[:trades]
        moves = np.diff(ticks[at], prepend=ticks[at[0]])
        moves[run::run] = 0
        made.append(
            (
                (np.cumsum(moves) + int(ticks[at[0]]) + rng.integers(-400, 401)).astype(np.int32),
                source.volume[at],
            )
        )
    joined = from_sessions(made, source.tick, [f"resampled-{i:04d}" for i in range(sessions)])
    return Trades(
        joined.price,
        joined.volume,
        joined.starts,
        joined.tick,
        joined.labels,
        (f"{sessions} sessions resampled from {source.sessions} real ones",),
    )


def choose(name: str, sessions: int = 1014, trades: int = 20_000, seed: int = 0) -> Trades:
    """Trades by name: generated, real (the two real sessions), resampled (sessions made from those), or a file's path.

    Where the real ones are not at hand, generated ones stand in and the notes say so. Raises TradesError for no such name.
    """
    from dataclasses import replace

    from helpers.load.vpoc.reading import read_trades

    if name == "generated":
        return generated(sessions, trades, seed)
    if name in ("real", "resampled"):
        wheel, why = fetch_wheel()
        if wheel is None:
            made = generated(sessions, trades, seed)
            return replace(made, notes=(*made.notes, f"generated trades stand in: {why}"))
        return real(wheel) if name == "real" else resampled(real(wheel), sessions, trades, seed)
    if not Path(name).is_file():
        raise TradesError(
            f"trades {name!r}: expected generated, real, resampled or a file of trades"
        )
    return read_trades(Path(name), aside=FOLDER.parent / f"{Path(name).name}.aside.csv")
