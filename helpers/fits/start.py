"""The lines with which a server is started as an answer has it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from helpers.fits.contexts import Contexts
from helpers.fits.servers import table
from helpers.fits.sheet import Sheet
from helpers.fits.solving import layers_on_gpu

GAP = re.compile(r"(?<!\{)\{(\w+)\}")
"""A gap of a form in servers.json; a doubled brace is a brace of the line."""
ONE_BY_DEFAULT = ("slots", "tp")
"""Gaps whose option is left out where it would say 1."""
LINE_CHARS = 74


def start_lines(
    path: str, sheet: Sheet, contexts: Contexts, changed: Mapping[str, object]
) -> list[str]:
    """The lines to paste, of the server's form in servers.json, in which some gaps are ``changed``.

    Empty where the server has no form, or no context of use fits.
    """
    forms = table()["start"].get(sheet.server)
    tokens = contexts.to_start_with
    if not forms or not tokens or contexts.likely < contexts.least:
        return []
    slots = int(sheet.value_or("n_parallel", 1))
    gaps: dict[str, object] = {
        "model": shlex.quote(_model(path, sheet)),
        "context": tokens,
        "context_of_a_slot": tokens // slots,
        "slots": slots,
        "layers": _layers(sheet, tokens),
        "share": _share(sheet),
        "tp": int(sheet.value_or("tp", 1)),
        "kv": _cache_type(sheet),
        # the next three are filled by a change alone (changes.py, gaps)
        "device": "cuda",
        "offload": None,
        "quantised": None,
    }
    if contexts.has_no_end and contexts.asked is None:
        gaps["context"] = None
    gaps.update(changed)
    return [_line(words, gaps) for words in forms]


def _line(words: Sequence[str], gaps: Mapping[str, object]) -> str:
    """A line of a form: its words with their gaps filled, continued where it is long."""
    filled = [word.format(**gaps) for word in words if _is_needed(word, gaps)]
    line = " ".join(filled)
    if len(line) <= LINE_CHARS or line.startswith("#"):
        return line
    if line.endswith(")"):
        return "\n    ".join(filled)  # Python goes on within its parenthesis
    return _continued(filled)


def _is_needed(word: str, gaps: Mapping[str, object]) -> bool:
    """Whether a word has no gap, or a gap that says more than the server's default."""
    gap = GAP.search(word)
    if gap is None:
        return True
    name = gap[1]
    if name in ONE_BY_DEFAULT:
        return gaps[name] != 1
    return gaps[name] not in (None, "")


def _continued(words: Sequence[str]) -> str:
    """A shell's command in lines of at most LINE_CHARS, each but the last with a backslash."""
    lines = [words[0]]
    for word in words[1:]:
        longer = f"{lines[-1]} {word}"
        if len(longer) <= LINE_CHARS:
            lines[-1] = longer
        else:
            lines.append(f"    {word}")
    return " \\\n".join(lines)


def _layers(sheet: Sheet, tokens: int) -> int | None:
    """How many layers go to the cards; None where the server is not told."""
    if "n_gpu_layers" in sheet.inputs:
        return int(sheet.figure("n_gpu_layers"))
    return layers_on_gpu(sheet.at({"n_ctx": tokens}))


def _model(path: str, sheet: Sheet) -> str:
    """The model as its server takes it; a stand-in where another form was read."""
    if path and path.endswith(".gguf") is sheet.is_ggml:
        return path
    if sheet.is_ggml:
        return "MODEL.gguf"
    return "MODEL"


def _cache_type(sheet: Sheet) -> str:
    """The type of the cache, empty where it is the usual one."""
    if sheet.value("bk") == 2:
        return ""
    return sheet.text("kv_type_k")


def _share(sheet: Sheet) -> str:
    """The share of the card, of servers that take one; else empty."""
    name = sheet.option("share")
    if not name or not sheet.has(name):
        return ""
    return f"{sheet.figure(name):.3g}"
