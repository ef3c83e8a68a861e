"""Mutates failure messages of the project's own making and reads them: `python tests/fuzz_messages.py 100000 [seed]`.

Prints counts as JSON. A traceback, a number out of range, or a slow reading is a failure: exit 1.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_rows import read_lines

from helpers.judge.message_account import account_of
from helpers.look.messages import read_message

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


def fuzz(count: int, seed: int = 0) -> dict[str, object]:
    random_ = random.Random(seed)
    kinds: Counter[str] = Counter()
    faults: list[str] = []
    slowest = 0.0
    begun = time.perf_counter()
    for _ in range(count):
        text = mutated(random_)
        start = time.perf_counter()
        try:
            reading = read_message(text)
            for message in reading.messages:
                sums = account_of(message)
                kinds[message.event] += 1
                kinds["numbers"] += len(message.numbers)
                for size in message.numbers:
                    assert size.bytes >= 0 and 0 <= size.precision_bytes <= size.bytes + (1 << 40)
                assert sums.fragmentation in ("excluded", "possible", "likely", "unknown")
                assert 0 <= message.start <= len(text) and len(message.words) <= 400
                assert not any("\n" in line for line in (*sums.lines, reading.unused))
            kinds["none"] += not reading.messages
            assert reading.messages or reading.unused
        except Exception as error:  # noqa: BLE001 - the point of the run is to count every kind
            faults.append(f"{type(error).__name__}: {error}: {text!r}")
        slowest = max(slowest, time.perf_counter() - start)
    return {
        "mutated": count,
        "faults": len(faults),
        "first_faults": faults[:3],
        "slowest_s": round(slowest, 4),
        "seconds": round(time.perf_counter() - begun, 1),
        "read": dict(kinds.most_common()),
    }


if __name__ == "__main__":
    given = list(map(int, sys.argv[1:3]))
    result = fuzz(*given, *(100_000, 0)[len(given) :])
    print(json.dumps(result, indent=1, ensure_ascii=False))
    sys.exit(1 if result["faults"] else 0)
