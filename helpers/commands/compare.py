"""The command that compares two bundles, or the peaks of two traces."""

import math
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from helpers.allocator.circumstances import with_record
from helpers.allocator.peaks import Peaks, Sources, compare_peaks
from helpers.allocator.trace_file import read_trace
from helpers.allocator.views.peaks import peaks_table
from helpers.commands.use import WrongUse, print_json, say, show
from helpers.tell import compare as bundles


def compare(arguments: Namespace) -> int:
    """Compare two bundles, or two traces: what changed and what did not.

    before: a bundle, a recorded box, or a trace
    after: another of the same kind
    --allow SHARE: of two traces: exit code 1 if the peak of live memory rises by more than this,
        such as 0.01
    Example: compare before.pickle after.pickle --allow 0.01
    """
    before = Path(arguments.before)
    after = Path(arguments.after)
    allowed = share_of(arguments.allow)
    if bundles.is_trace(before) and bundles.is_trace(after):
        moved = what_moved(before, after)
        names = (str(before), str(after))
        is_above = print_moved(moved, names, allowed, arguments.json)
        return int(is_above)
    if allowed is not None:
        raise WrongUse(
            f"--allow {arguments.allow}: {before} is no trace; expected two traces"
        )
    changes = bundles.compare(before, after)
    return say(arguments, bundles.as_json(changes), bundles.as_text(changes))


def share_of(text: str) -> float | None:
    """The share that --allow names, such as 1% or 0.01; None for no text, which allows any rise.
    Raises WrongUse.
    """
    if not text:
        return None
    try:
        share = float(text.rstrip("%"))
    except ValueError:
        share = math.nan
    if text.endswith("%"):
        share /= 100
    # A million times the peak is a slip of the pen; infinite and nan are refused with it.
    if not 0 <= share < 1e6:
        raise WrongUse(f"--allow {text}: expected a share from 0 up, such as 1%")
    return share


def what_moved(
    before: Path, after: Path, sources: tuple[Sources, Sources] = ({}, {})
) -> Peaks:
    """What changed at the peak of live memory from one trace to the other.

    ``sources``: the lines of the program's files at the time of each, where they are known.
    Raises LinesError.
    """
    old = with_record(read_trace(before), before)
    new = with_record(read_trace(after), after)
    return compare_peaks(old, new, sources)


def print_moved(
    moved: Peaks, names: tuple[str, str], allowed: float | None, as_json: bool
) -> bool:
    """Print what changed at the peak between two traces of those ``names``.

    Returns whether the peak rose by more than the share ``allowed``; None allows any rise.
    """
    is_above = allowed is not None and moved.share > allowed
    if as_json:
        answer = {
            "schema_version": 1,
            "kind": "trace",
            **asdict(moved),
            "share": moved.share,
            "allow": allowed,
            "above": is_above,
        }
        print_json(answer)
        return is_above
    show(peaks_table(moved, names))
    if allowed is not None:
        where = "within"
        if is_above:
            where = "above"
        print(f"{where} what is allowed: {allowed:.1%}")
    return is_above
