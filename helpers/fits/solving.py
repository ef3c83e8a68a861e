"""The unknowns of an answer: the longest context, and the most tokens, slots and layers, that fit a
card, and the least share of it that suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from helpers.fits.arithmetic import whole
from helpers.fits.sheet import Sheet
from helpers.ground.units import halved

MOST_SLOTS = 256
"""Slots that are tried: llama.cpp allows no more (LLAMA_MAX_SEQ of src/llama-cparams.h)."""


def context(sheet: Sheet) -> int | None:
    """The longest context that fits in tokens, a multiple of the step to which the server rounds; 0
    where none does, None where it is not known. It is at most the model's own maximum.
    """
    if not knows_a_token(sheet):
        return None
    step = max(1, int(sheet.value_or("step", 1)))
    most = int(sheet.value_or("n_ctx_most", 0))
    return most_that_fits(sheet, most, lambda count: {"n_ctx": count}, step)


def knows_a_token(sheet: Sheet) -> bool:
    """Whether the bytes of a token are known, so that caches of other contexts can be computed."""
    if sheet.family == "Diffusers" or sheet.has("share_free"):
        return False  # no cache, or a server that does not start
    if "kv_bytes" in sheet.inputs:
        return False  # only the size of the whole cache is known
    if sheet.has("full_token"):
        return True
    # Without the bytes of a token, a size that a log prints is that of one context; of other
    # servers than vLLM the search itself finds out what is missing.
    if "kv_printed" in sheet.inputs:
        return False
    return not sheet.is_vllm or sheet.has("need_bytes")


def slots(sheet: Sheet) -> int | None:
    """The most requests of the same context that fit at once, as the pool holds them (slots_held),
    else at most MOST_SLOTS; None where it is not known.
    """
    slots_held = _whole_or_zero(sheet, "slots_held")
    if slots_held is not None or not knows_a_token(sheet):
        return slots_held
    share = sheet.value("request_tokens")
    if not share:
        return None
    return most_that_fits(
        sheet, MOST_SLOTS, lambda count: {"n_parallel": count, "n_ctx": share * count}
    )


def layers_on_gpu(sheet: Sheet) -> int | None:
    """The most layers that the cards hold, the output among them, by ollama's own count
    (layers_held) or by trying; None where it is not known, and for servers that leave no layer with
    the host.
    """
    layers_held = _whole_or_zero(sheet, "layers_held")
    if layers_held is not None or not sheet.is_ggml:
        return layers_held
    layers = sheet.value("n_layer")
    if layers is None:
        return None
    return most_that_fits(sheet, int(layers + 1), lambda count: {"n_gpu_layers": count})


def utilisation(sheet: Sheet) -> float | None:
    """The least share of the card that suffices, between 0 and 1 and in whole percents. For a vLLM
    that refuses its share, it is the share that is free.

    None in three cases: the server takes no share, 99 % do not suffice, or what the server needs
    is not known. 100 % is not tried: vLLM refuses a share that is not free when it starts, and
    its own context has taken some of the card by then.
    """
    share = sheet.value("share_free")
    if share is not None:
        return max(0, share)
    name = sheet.option("share")
    sizes = {"kv_cache_memory_bytes", "available_kv_bytes"}
    if not name or (sheet.is_vllm and sizes & sheet.inputs.keys()):
        return None  # the size of the pool is given, and no share needed

    def fits(percent: int) -> bool | None:
        return _fits(sheet, {name: percent * 0.01})

    if fits(1) is None or not fits(99):
        return None
    least_percent, _ = halved(lambda percent: bool(fits(percent)), 99, 0)
    return round(least_percent * 0.01, 4)  # 0.58, not 0.5800000000000001


def most_that_fits(
    sheet: Sheet,
    most: int,
    changed: Callable[[int], Mapping[str, float]],
    step: int = 1,
) -> int | None:
    """The largest count that fits: ``most`` itself, or else a multiple of ``step`` below it; 0
    where not even one step fits, None where that is not known. ``changed`` gives the inputs of the
    sheet for a count. It halves the range, so a larger count must never fit better than a smaller
    one.
    """

    def fits(count: int) -> bool | None:
        return _fits(sheet, changed(count))

    if not most or fits(step) is None or fits(most) is None:
        return None
    if fits(most):
        return most
    if not fits(step):
        return 0
    above = -(-most // step) * step
    largest, _ = halved(lambda count: bool(fits(count)), step, above, step)
    return largest


def holds(sheet: Sheet, tokens: int) -> bool:
    """Whether a context of so many tokens fits."""
    is_possible = tokens <= sheet.value_or("n_ctx_most", 0)
    return is_possible and _fits(sheet, {"n_ctx": tokens}) is True


def _fits(sheet: Sheet, changed: Mapping[str, float]) -> bool | None:
    """Whether a sheet with changed inputs leaves nothing short; None where that is not known."""
    spare = sheet.at(changed).value("spare")
    if spare is None:
        return None
    return spare >= 0


def _whole_or_zero(sheet: Sheet, name: str) -> int | None:
    """A figure without its fraction, at least 0; None where it is not known."""
    number = whole(sheet.value(name))
    if number is None:
        return None
    return max(0, number)


def tokens(sheet: Sheet) -> int | None:
    """The tokens that the pool of a server holds; None for a server without a pool."""
    return _whole_or_zero(sheet, "tokens_held")


UNKNOWNS: dict[str, Callable[[Sheet], float | None]] = {
    "context": context,
    "tokens": tokens,
    "slots": slots,
    "layers_on_gpu": layers_on_gpu,
    "utilisation": utilisation,
}
"""What solves for each unknown, by its name in an answer's JSON."""


def solved(sheet: Sheet) -> dict[str, float | None]:
    """Each unknown by its name; None where the inputs do not say it."""
    return {name: solve(sheet) for name, solve in UNKNOWNS.items()}
