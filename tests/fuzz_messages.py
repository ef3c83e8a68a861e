"""Mutates failure messages of the project's own making."""

from __future__ import annotations

import random

from data_rows import read_lines

MESSAGES = [
    row["text"]
    for row in read_lines("messages")
    if row["gives"] and not row["text"].startswith("shared:")
]
MARKS = (
    "\n|\r\n|\x1b[31m|\x1b[0m|\n[rank3]: |\n> |\n2026-02-03 04:05:06,789 |\x00|\ufffd|\u200b|,|."
)
WORDS = "1,234|17179869184.00 GiB|GiB|out of memory|Tried to allocate |٣|İ|K|(|[|'|\\n"
PIECES = [*MARKS.split("|"), *WORDS.split("|"), " | ", "9" * 40]


def mutated(random_: random.Random) -> str:
    """One message, or two, with up to 12 cuts, swaps, repeats, line breaks, case changes and foreign pieces."""
    text = random_.choice(MESSAGES)
    if random_.random() < 0.2:
        text += random_.choice(("\n", " ", "")) + random_.choice(MESSAGES)
    for _ in range(random_.randrange(13)):
        at = random_.randrange(len(text) + 1)
        to = min(len(text), at + random_.randrange(24))
        what = random_.choice((0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 6, 6, 6, random_.randrange(8)))
        if what == 0:
            text = text[:at] + text[to:]
        elif what == 1:
            text = text[:at] + random_.choice(PIECES) + text[at:]
        elif what == 2:
            text = text[:at] + text[at:to] * 2 + text[to:]
        elif what == 3:
            text = text[:at] + chr(random_.randrange(1, 0x2500)) + text[at + 1 :]
        elif what == 4:
            text = text[:at] + text[at:to].swapcase() + text[to:]
        elif what == 5:
            text = text[:at]
        elif what == 6:
            old = random_.choice((". ", " ", "GiB", "0"))
            text = text.replace(old, random_.choice((",", "\n", "GB", "", "  ")), 3)
        else:
            text = text[at:]
    return text
