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
LEFT_OUT = {False: (None, ""), True: (None, "", 1)}
LINE_CHARS = 74


def start_lines(
    path: str,
    sheet: Sheet,
    contexts: Contexts,
    changed: Mapping[str, object] | None = None,
) -> list[str]:
    """The lines to paste, of the family's form in servers.json, with parts that are ``changed``;
    none where it has none, or nothing is known of the context.
    """
    lines = table()["start"].get(sheet.server)
    tokens = tokens_to_serve(contexts)
    if not lines or not tokens or (contexts.longest or 0) < contexts.least:
        return []
    slots = int(sheet.value("n_parallel") or 1)
    parts = {
        "model": shlex.quote(_model(path, sheet)),
        "context": None if contexts.has_no_end and not contexts.asked else tokens,
        "context_of_a_slot": tokens // slots,
        "slots": slots,
        "layers": _layers(sheet, tokens),
        "share": _share(sheet),
        "tp": int(sheet.value("tp") or 1),
        "kv": _cache_type(sheet),
        "device": "cuda",
        "offload": None,
        "quantised": None,
        **(changed or {}),
    }
    return [_line(words, parts) for words in lines]


def tokens_to_serve(contexts: Contexts) -> int:
    """The context to start with: as asked where that fits, else the longest to ask for."""
    if contexts.longest is None:
        return contexts.served or 0
    if contexts.asked and contexts.asked <= contexts.longest:
        return contexts.asked
    return contexts.longest_to_ask_for or 0


def _line(words: Sequence[str], parts: Mapping[str, object]) -> str:
    """A line of words with gaps, continued where it is long; a word whose gap has nothing to say, or
    the usual 1, is left out.
    """
    filled = []
    for word in words:
        gap = GAP.search(word)
        if gap is None or parts[gap[1]] not in LEFT_OUT[gap[1] in ("slots", "tp")]:
            filled.append(word.format(**parts))
    line = " ".join(filled)
    if len(line) <= LINE_CHARS or line.startswith("#"):
        return line
    if line.endswith(")"):
        return "\n    ".join(filled)  # Python goes on within its parenthesis
    lines = filled[:1]
    for word in filled[1:]:
        if len(f"{lines[-1]} {word}") <= LINE_CHARS:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return " \\\n".join(lines)


def _layers(sheet: Sheet, tokens: int) -> int | None:
    layers = layers_on_gpu(sheet.at({"n_ctx": tokens}))
    if sheet.is_given("n_gpu_layers"):
        layers = int(sheet.figure("n_gpu_layers"))
    return layers or None


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
    """The share of the card, of servers that take one."""
    name = sheet.option("share")
    if not name or not sheet.has(name):
        return ""
    return f"{sheet.figure(name):.3g}"
