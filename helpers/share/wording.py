"""Whether a text is in the workbook's own words.

A word counts as known beside a word that it stands beside in the code and the tables of the
workbook as well, or where it stands alone there. So a name that a sentence quotes is not known,
though it may be an ordinary word.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

from helpers.ground.places import CHECKOUT
from helpers.look.wordings import table

from . import public

PLACES = """
helpers/judge/*.py helpers/judge/*.json helpers/settings/*.json helpers/ground/*.json
helpers/ground/units.py helpers/look/*.py
helpers/tell/tables.py helpers/tell/values.py helpers/tell/box.py helpers/tell/ttm.py helpers/tell/words.json
helpers/allocator/growers.py helpers/allocator/growth.py helpers/allocator/views/growth.py
helpers/allocator/views/replays.py helpers/trials/view.py helpers/trials/training_view.py
helpers/trials/under_torch/*.py helpers/trials/fixes.py helpers/trials/catalogue.py
env/remedies.yaml
"""
"""Where the words of the workbook's sentences and tables stand."""
WORD = re.compile(r"[^\W\d_][^\s=:/.,;()\[\]{}|'\"`+*<>~^$\\!?#&%@-]*")
ALONE = re.compile(r"[\"'}]\W*([a-z][\w-]*)\W*[\"'{]|\b([a-z]\w*):(?:word|number|pci)\b")
"""A word between quotation marks or gaps, or the heading of a column."""
FORMS = (
    public.PCI_ADDRESS.pattern,
    r"\b(?:process|box)-\d+|\byour file \d+, line \d+|\bcell \d+, line \d+",
    r"\b(?:card|renderD)\d{1,3}\b",
    rf"\b{public.GFX.pattern}\b",
    r"\b0x[0-9a-f]{1,16}\b",
    r"(?<![\w.])\d{1,18}(?:\.\d{1,9}){0,2}(?: ?[KMGT]i?B)?(?!\w|\.\d)",
)
"""Addresses of cards, names that stand for others, numbers, sizes and releases."""
GROUPS_OF_DIGITS = re.compile(r"\d \d")
"""As in numbers of telephones and accounts."""


@cache
def _words() -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """The words that stand beside each other, and those that stand alone."""
    texts = [row["says"] for row in table()]
    for place in PLACES.split():
        texts += [file.read_text("utf-8").replace("\\n", " ") for file in CHECKOUT.glob(place)]
    pairs: set[tuple[str, str]] = set()
    alone: set[str] = set()
    for text in texts:
        pairs.update(pairwise(WORD.findall(text.lower())))
        quoted = ["".join(groups) for groups in ALONE.findall(text.lower())]
        alone.update(quoted)
        for word in quoted:
            pairs.update(pairwise(word.split("_")))
    return frozenset(pairs), frozenset(alone)


@cache
def _forms() -> re.Pattern[str]:
    own_names = map(re.escape, sorted(public.own_names(), key=len, reverse=True))
    return re.compile("|".join([*FORMS, rf"\b(?:{'|'.join(own_names)})\b"]), re.IGNORECASE)


def is_ours(text: str) -> bool:
    """Whether each word of a text is known, and each number has a known form."""
    if GROUPS_OF_DIGITS.search(text):
        return False
    without_numbers = _forms().sub(" ", text.lower())
    words = WORD.findall(without_numbers)
    if re.search(r"[\w@]", WORD.sub("", without_numbers)):
        return False
    pairs, alone = _words()
    beside_each_other = pairs.intersection(pairwise(words))
    return alone.union(*beside_each_other).issuperset(words)
