"""Each unknown solved for: the context, tokens, slots, layers and share that a card has room for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from helpers.fits.arithmetic import whole
from helpers.fits.sheet import Sheet
from helpers.ground.units import halved

MOST_SLOTS = 256


def context(sheet: Sheet) -> int | None:
    """The longest context, in the steps in which the program rounds."""
    # A cache of which only the whole is known does not say what a token takes.
    if not knows_a_token(sheet):
        return None
    step = max(1, int(sheet.value_or("step", 1)))
    most = int(sheet.value_or("n_ctx_most", 0))
    return most_that_fits(sheet, most, lambda count: {"n_ctx": count}, step)


def knows_a_token(sheet: Sheet) -> bool:
    """Whether another context may be asked for: what a token takes is known."""
    if (
        sheet.family == "Diffusers"
        or sheet.has("share_free")
        or "kv_bytes" in sheet.inputs
    ):
        return False
    if "kv_printed" in sheet.inputs and not sheet.has("full_token"):
        return False
    return not sheet.is_vllm or sheet.has("need_bytes") or sheet.has("full_token")


def slots(sheet: Sheet) -> int | None:
    """The most requests at once, each of the same context."""
    slots_held = _whole_number(sheet, "slots_held")
    if slots_held is not None or not knows_a_token(sheet):
        return slots_held
    share = sheet.value("request_tokens")
    if not share:
        return None
    return most_that_fits(
        sheet, MOST_SLOTS, lambda count: {"n_parallel": count, "n_ctx": share * count}
    )


def layers_on_gpu(sheet: Sheet) -> int | None:
    """The most layers that the cards hold, of a server that may leave some with the host."""
    layers_held = _whole_number(sheet, "layers_held")
    # llama.cpp common/arg.cpp; ollama api/types.go, NumGPU
    if layers_held is not None or not sheet.is_ggml:
        return layers_held
    layers = sheet.value("n_layer")
    if layers is None:
        return None
    return most_that_fits(sheet, int(layers + 1), lambda count: {"n_gpu_layers": count})


def utilisation(sheet: Sheet) -> float | None:
    """The least share of the card that would do, of servers that take a share."""
    share = sheet.value("share_free")
    if share is not None:
        return max(0, share)
    name = sheet.option("share")
    sizes = {"kv_cache_memory_bytes", "available_kv_bytes"}
    if not name or (sheet.is_vllm and sizes & sheet.inputs.keys()):
        return None  # the size of the pool is given, and no share needed

    # from 1% to 99% in whole percents, as people type it
    def fits(percent: int) -> bool | None:
        return _fits(sheet, {name: percent * 0.01})

    if fits(1) is None or not fits(99):
        return None
    return round(halved(lambda percent: bool(fits(percent)), 99, 0)[0] * 0.01, 4)


def most_that_fits(
    sheet: Sheet,
    most: int,
    changed: Callable[[int], Mapping[str, float]],
    step: int = 1,
) -> int | None:
    """The most of an unknown that leaves something spare; 0 where none does, None where that is
    not known. ``changed`` gives the inputs for a count.
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
    return halved(lambda count: bool(fits(count)), step, above, step)[0]


def holds(sheet: Sheet, tokens: int) -> bool:
    """Whether a context of so many tokens fits."""
    is_possible = tokens <= sheet.value_or("n_ctx_most", 0)
    return is_possible and _fits(sheet, {"n_ctx": tokens}) is True


def _fits(sheet: Sheet, changed: Mapping[str, float]) -> bool | None:
    """Whether a sheet with other inputs leaves something spare; None where that is not known."""
    spare = sheet.at(changed).value("spare")
    return None if spare is None else spare >= 0


def _whole_number(sheet: Sheet, name: str) -> int | None:
    """A figure without its fraction, at least 0; None where it is not known."""
    number = whole(sheet.value(name))
    return None if number is None else max(0, number)


def tokens(sheet: Sheet) -> int | None:
    """The tokens that the pool of a server holds."""
    return _whole_number(sheet, "tokens_held")


UNKNOWNS: dict[str, Callable[[Sheet], float | None]] = {
    "context": context,
    "tokens": tokens,
    "slots": slots,
    "layers_on_gpu": layers_on_gpu,
    "utilisation": utilisation,
}


def solved(sheet: Sheet) -> dict[str, float | None]:
    """Each unknown that the inputs allow to solve, None where they do not."""
    return {name: solve(sheet) for name, solve in UNKNOWNS.items()}
