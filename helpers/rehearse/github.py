"""What moved at the peak, for GitHub Actions: a summary of the job, and a note at the line.

The summary is Markdown (docs.github.com, "Adding a job summary"); a note is a workflow command, whose
values are escaped as "Workflow commands for GitHub Actions" says.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from helpers.allocator.peaks import PeakChange, Peaks
from helpers.ground.units import show_bytes

MOST_LINES = 200
MOST_NOTES = 10
"""GitHub shows no more of one kind for a step of a job."""
SUMMARY = "GITHUB_STEP_SUMMARY"
"""The variable that names the file of the summary."""
PLACE = re.compile(r"([^\s:]+\.py):(\d+)")


def report(moved: Peaks, above: bool, ref: str, card_bytes: int) -> None:
    """Append the summary to the file that GitHub names, and print a note for each line that rose.

    Outside of GitHub Actions the summary is printed as well.
    """
    text = summary(moved, ref, card_bytes, above)
    file = os.environ.get(SUMMARY)
    if file:
        with open(file, "a", encoding="utf-8") as out:
            out.write(text)
    else:
        print(text)
    for note in notes(moved, Path.cwd(), above):
        print(note)


def summary(moved: Peaks, ref: str, card_bytes: int, above: bool) -> str:
    """The summary as Markdown; ``card_bytes``: of the card that the program must fit."""
    reserved = show_bytes(moved.reserved[1])
    lines = [
        f"### GPU memory: {_headline(moved)}",
        "",
        _verdict(moved, above),
        f"PyTorch reserves {reserved} of the card's {show_bytes(card_bytes)} at most.",
        "",
        f"| at the peak | `{_cell(ref)}` | this branch | change |",
        "|---|---:|---:|---:|",
        _row("all tensors", *moved.live),
        _row("reserved by PyTorch", *moved.reserved),
    ]
    for change in moved.lines[:MOST_LINES]:
        lines.append(_row(f"`{_cell(change.name)}`", change.before, change.after))
    left_out = len(moved.lines) - MOST_LINES
    if left_out > 0:
        lines += ["", f"{left_out} more lines moved by less."]
    if moved.changed:
        changed = ", ".join(f"`{_cell(line)}`" for line in moved.changed)
        lines += ["", f"Changed lines in this branch: {changed}."]
    return "\n".join(lines) + "\n"


def _headline(moved: Peaks) -> str:
    """How much more or less the program needs."""
    before, after = moved.live
    if before == after:
        return "as much as before"
    return f"{show_bytes(abs(after - before))} {'more' if after > before else 'less'} at the peak"


def _verdict(moved: Peaks, above: bool) -> str:
    if above:
        return f"The peak rose by more than this check allows ({moved.share_words})."
    if moved.live[1] > moved.live[0]:
        return f"The peak rose by no more than this check allows ({moved.share_words})."
    return "The peak did not rise."


def notes(moved: Peaks, folder: Path, above: bool) -> list[str]:
    """A note for each line below ``folder`` that needs more than before, the largest first."""
    written: list[str] = []
    for change in moved.lines:
        place = PLACE.match(change.name)
        path = _only_file(folder, place[1]) if place else ""
        if place and path and change.by > 0:
            kind = "error" if above and not written else "notice"
            words = f"{show_bytes(change.by)} more at the peak: {_sizes(change)}"
            written.append(f"::{kind} file={_escaped(path)},line={place[2]}::{words}")
    return written[:MOST_NOTES]


def _only_file(folder: Path, name: str) -> str:
    """The path below a folder of the one file of that name; empty where there are none or several."""
    paths = [
        path for path in folder.rglob(Path(name).name) if ".venv" not in path.parts
    ]
    return str(paths[0].relative_to(folder)) if len(paths) == 1 else ""


def _row(name: str, before: int | None, after: int | None) -> str:
    by = (after or 0) - (before or 0)
    sign = "-" if by < 0 else "+"
    return (
        f"| {name} | {_size(before)} | {_size(after)} | {sign}{show_bytes(abs(by))} |"
    )


def _sizes(change: PeakChange) -> str:
    return f"{_size(change.before)} before, {_size(change.after)} now"


def _size(size: int | None) -> str:
    return "none" if size is None else show_bytes(size)


def _cell(text: str) -> str:
    """Text that stays in its cell of a table, and in the code that it is there."""
    return re.sub(r"[|`\n\r]", " ", text)


def _escaped(value: str) -> str:
    for sign, code in (
        ("%", "%25"),
        ("\r", "%0D"),
        ("\n", "%0A"),
        (":", "%3A"),
        (",", "%2C"),
    ):
        value = value.replace(sign, code)
    return value
