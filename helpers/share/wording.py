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
LABELS = """
helpers/judge/ledger*.py helpers/judge/ceilings* helpers/look/gpus.py helpers/look/sources.json
helpers/ground/*.json helpers/ground/units.py
helpers/tell/tables.py helpers/tell/values.py helpers/tell/box.py helpers/tell/ttm.py
helpers/trials/view.py helpers/trials/training_view.py helpers/trials/catalogue.py env/remedies.yaml
"""
"""Where words stand alone, as in a cell."""
CELLS = """
passes effective ineffective unsupported untested misspelt dangerous contradictory PCI sysfs N
framebuffer replay audit operation docker podman kept weights cache argument driver message harms helps nvidia-unified
raise grubby ls has holds takes render root video
"""
"""Words that stand alone in a cell as well."""
WORD = re.compile(r"[^\W\d_][^\s=:/.,;()\[\]{}|'\"`+*<>~^$\\!?#&%@-]*(?:[-:]\w+)*")
"""A word, or several that are joined: a name that is made of known words is not known."""
ALONE = re.compile(r"[\"'}]\W*([A-Za-z][\w-]*)\W*[\"'{]|\b([a-z]\w*):(?:word|number|pci)\b")
"""A word between quotation marks or gaps, or the heading of a column."""
HEADING = re.compile(r"([A-Za-z][\w ]*):[a-z]+(?=[:,\"])|\"([\w -]+)\": \"\w+\.\w+\",")
_NUMBER = r"(?:[1-9]\d{0,5}|0\d{0,3})"
FORMS = (
    public.PCI_ADDRESS.pattern,
    r"(?:process|box|group)-\d+|your file \d+, line \d+|cell \d+, line \d+",
    r"/dev/(?:kfd|dxg|nvidia\d{0,2}|nvidiactl|nvidia-uvm(?:-tools)?|dri/(?:card|renderD)\d{1,3})",
    r"/etc/modprobe\.d/(?:amdgpu|ttm|amdttm)\.conf(?:\.pre-ttm)?|/sys/class/kfd/kfd/proc",
    r"expected: \d{1,9}",
    r"(?:card|renderD)\d{1,3}|0x[0-9a-f]{1,4}",
    public.GFX.pattern,
    public.KERNEL_FILE.pattern,
    rf"(?:{'|'.join(map(re.escape, sorted(public.SETTING_NAMES, key=len, reverse=True)))})(?:=-?\d{{1,9}})?",
    rf"(?:{'|'.join(public.OPTIONS)}):(?:{public.SWITCH}|\[[\d:,>]{{1,80}}\])",
    rf"-?{_NUMBER}(?:\.\d{{1,4}}){{0,2}}(?: ?[KMGT]i?B)?|\d{{1,3}}(?:,\d{{3}}){{1,4}}|\d{{1,13}} (?:bytes|B|pages)",
)
"""Addresses of cards, names that stand for others, settings, numbers, sizes and releases."""
GROUPS_OF_DIGITS = re.compile(r"\d \d")
"""As in numbers of telephones and accounts."""


@cache
def _texts(places: str) -> list[str]:
    files = [file for place in places.split() for file in CHECKOUT.glob(place)]
    return [file.read_text("utf-8").replace("\\n", " ") for file in files]


@cache
def words_of(pattern: re.Pattern[str], places: str) -> frozenset[str]:
    """The words that a pattern finds in the workbook."""
    found = [groups for text in _texts(places) for groups in pattern.findall(text)]
    return frozenset(map("".join, found)).union(CELLS.split())


@cache
def _words() -> tuple[frozenset[tuple[str, str]], frozenset[str], frozenset[str]]:
    """The words that stand beside each other, those between marks, and each as it is spelt."""
    quoted = frozenset(map(str.lower, words_of(ALONE, PLACES)))
    says = [row["says"] for row in table()]
    sentences = [WORD.findall(text) for text in [*says, *_texts(PLACES)]]
    spelt = frozenset().union(*sentences)
    pairs: set[tuple[str, str]] = set()
    for words in [*sentences, *(word.split("_") for word in quoted)]:
        pairs.update(pairwise(map(str.lower, words)))
    return frozenset(pairs), quoted, spelt


@cache
def _forms() -> re.Pattern[str]:
    own_names = map(re.escape, sorted(public.own_names(), key=len, reverse=True))
    forms = "|".join([*FORMS, *own_names])
    return re.compile(rf"(?<![\w.:/+-])(?:{forms})(?![\w+/-]|[.:]\w)", re.IGNORECASE)


def is_heading(text: str) -> bool:
    """Whether it is the heading of a column of ours."""
    return text in words_of(HEADING, "helpers/*/*.py helpers/*/*/*.py")


def is_ours(text: str) -> bool:
    """Whether each word of a text is known, and each number has a known form."""
    if GROUPS_OF_DIGITS.search(text) or "://" in text:
        return False
    without_numbers = _forms().sub(" ", text.replace("[-0-9]", " "))
    words = WORD.findall(without_numbers)
    if re.search(r"[\w@]", WORD.sub("", without_numbers)):
        return False
    if len(words) < 2:
        return words_of(ALONE, LABELS).issuperset(words)
    pairs, quoted, spelt = _words()
    lower = [word.lower() for word in words]
    beside_each_other = pairs.intersection(pairwise(lower))
    return quoted.union(*beside_each_other).issuperset(lower) and spelt.issuperset(words[1:])
