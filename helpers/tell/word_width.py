"""How much room words take in a figure, and how they are cut and wrapped to it."""

from __future__ import annotations

from functools import lru_cache

from matplotlib.font_manager import FontProperties, findfont, get_font

from helpers.ground.units import plain

LONGEST_WORD = 200
"""Letters of a word that are measured: no more fit on the widest page."""


def drawable(words: str) -> str:
    """Words with a question mark for each letter that the font lacks: matplotlib would warn or
    fail, and names of a box can have any letter.
    """
    words = plain(words)
    for char in set(words):
        if not _is_in_font(char):
            words = words.replace(char, "?")
    return words


@lru_cache(maxsize=4096)
def _is_in_font(char: str) -> bool:
    """Whether the font of all figures has a letter."""
    font = get_font(findfont("DejaVu Sans"))
    return font.get_char_index(ord(char)) != 0  # 0: the sign for a missing letter


@lru_cache(maxsize=4096)
def inches(words: str, points: float, weight: str = "normal") -> float:
    """The width of words in inches; their size is in points."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    # Measured 20 times as large: FreeType rounds each letter to whole pixels, here 72 an inch.
    font.set_size(20 * points, 72)
    font.set_text(drawable(words), 0.0)
    width = font.get_width_height()[0] / 64  # FreeType counts in 1/64 of a pixel
    return float(width) / 72 / 20


def fit(words: str, room: float, points: float, weight: str = "normal") -> str:
    """The words where they fit in ``room`` inches, else as much of their start as fits there with
    an ellipsis; the ellipsis alone where nothing does.
    """
    words = drawable(words)
    if inches(words, points, weight) <= room:
        return words
    words = words[:LONGEST_WORD]
    while words and inches(f"{words}…", points, weight) > room:
        words = words[:-1]
    return f"{words}…"


def wrap(words: str, room: float, points: float, weight: str = "normal") -> list[str]:
    """Words in lines of ``room`` inches, broken at spaces; a word that is longer than a line is
    cut. Where there are no words it is one empty line.
    """
    lines = [""]
    for word in drawable(words).split():
        longer = f"{lines[-1]} {word}".strip()
        if inches(longer, points, weight) <= room:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        lines[-1] = fit(word, room, points, weight)
    return lines
