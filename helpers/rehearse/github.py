"""What a branch changes at the peak, for GitHub Actions: a summary of the job, and notes at lines.

The summary is Markdown (docs.github.com, "Adding a job summary"); a note is a workflow command,
whose values are escaped as "Workflow commands for GitHub Actions" says.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from helpers.allocator.peaks import Peaks
from helpers.ground.units import show_bytes

MOST_LINES = 200
"""Rows of the summary's table, which keep it well below the 1 MiB that GitHub allows."""
MOST_NOTES = 10
"""GitHub shows no more notes of one kind for a step of a job."""
SUMMARY = "GITHUB_STEP_SUMMARY"
"""The variable that names the file of the summary."""
PLACE = re.compile(r"([^\s:]+\.py):(\d+)")
"""The file and line with which the name of a changed line begins: "train.py:36 evaluate"."""
ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})
"""How a note writes the characters that separate its parts."""


def report(moved: Peaks, above: bool, ref: str, card_bytes: int) -> None:
    """Append the summary to the file that GitHub names, and print a note for each line that rose.

    Without such a file, outside of GitHub Actions, the summary is printed. ``ref``: the commit with
    which the branch is compared; the others as for ``summary``.
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
    """The summary as Markdown.

    ``above``: the peak rose by more than the check allows; ``card_bytes``: of the card that the
    program must fit.
    """
    reserved = show_bytes(moved.reserved[1])
    lines = [
        f"### GPU memory: {_headline(moved)}",
        "",
        _verdict(moved, above),
        f"PyTorch reserves {reserved} of the card's {show_bytes(card_bytes)} at most.",
        "",
        f"| at the peak | {_code(ref)} | this branch | change |",
        "|---|---:|---:|---:|",
        _row("all tensors", *moved.live),
        _row("reserved by PyTorch", *moved.reserved),
    ]
    for change in moved.lines[:MOST_LINES]:
        lines.append(_row(_code(change.name), change.before, change.after))
    left_out = len(moved.lines) - MOST_LINES
    if left_out > 0:
        lines += ["", f"{left_out} more lines moved by less."]
    if moved.changed:
        changed = ", ".join(map(_code, moved.changed))
        lines += ["", f"Changed lines in this branch: {changed}."]
    return "\n".join(lines) + "\n"


def _headline(moved: Peaks) -> str:
    """How much more or less the program needs."""
    before, after = moved.live
    if before == after:
        return "as much as before"
    size = show_bytes(abs(after - before))
    if after > before:
        return f"{size} more at the peak"
    return f"{size} less at the peak"


def _verdict(moved: Peaks, above: bool) -> str:
    """Whether the peak rose, and by more than the check allows."""
    before, after = moved.live
    if above:
        return f"The peak rose by more than this check allows ({moved.share_words})."
    if after <= before:
        return "The peak did not rise."
    return f"The peak rose by no more than this check allows ({moved.share_words})."


def notes(moved: Peaks, folder: Path, above: bool) -> list[str]:
    """A note for each line below ``folder`` that needs more than before, the largest first.

    The first is an error where the peak rose ``above`` what the check allows.
    """
    lines: list[str] = []
    kind = "notice"
    if above:
        kind = "error"
    for change in moved.lines:
        place = PLACE.match(change.name)
        if place is None or change.by <= 0:
            continue
        # The name of a line has no folder, and a note at a wrong file would mislead.
        file = _only_file(folder, place[1])
        if file is None:
            continue
        path = str(file).translate(ESCAPES)
        sizes = f"{_size(change.before)} before, {_size(change.after)} now"
        says = f"{show_bytes(change.by)} more at the peak: {sizes}"
        lines.append(f"::{kind} file={path},line={place[2]}::{says}")
        kind = "notice"  # one error is enough to mark the check
    return lines[:MOST_NOTES]


def _only_file(folder: Path, name: str) -> Path | None:
    """The path below a folder of the one file of that name; None where there are none or several."""
    files = folder.rglob(Path(name).name)
    paths = [path for path in files if ".venv" not in path.parts]
    if len(paths) != 1:
        return None
    return paths[0].relative_to(folder)


def _row(name: str, before: int | None, after: int | None) -> str:
    """A row of the table: the bytes before and after, and their difference. None: it held nothing."""
    change = 0
    if after is not None:
        change += after
    if before is not None:
        change -= before
    sign = "+"
    if change < 0:
        sign = "-"
    sizes = f"{_size(before)} | {_size(after)} | {sign}{show_bytes(abs(change))}"
    return f"| {name} | {sizes} |"


def _size(size: int | None) -> str:
    """Bytes in words; "none" where a line held nothing."""
    if size is None:
        return "none"
    return show_bytes(size)


def _code(text: str) -> str:
    """Text as code in a cell of a table, without the characters that would end the code or the
    cell.
    """
    return "`" + re.sub(r"[|`\n\r]", " ", text) + "`"
