"""What would work where a model, or the context that was asked for, does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from helpers.fits.contexts import Contexts
from helpers.fits.servers import table
from helpers.fits.sheet import Sheet
from helpers.fits.solving import context, layers_on_gpu, utilisation
from helpers.ground.units import show_bytes
from helpers.look.cards import cards

CARDS = 3
"""Other cards that are named."""


@dataclass
class Way:
    """A change with which the model fits: ``kind``, ``option`` to give, ``says`` in words with
    numbers, and the longest ``context`` then, None where that is not solved.
    """

    kind: str
    option: str
    says: str
    context: int | None = None


def ways_that_work(sheet: Sheet, contexts: Contexts) -> list[Way]:
    """The changes, the smallest first; none where what was asked for fits, or no card is given."""
    if sheet.family == "Diffusers":
        return list(_parts_one_by_one(sheet))
    longest = contexts.longest
    wanted = contexts.asked or contexts.least
    if longest is None or longest >= wanted or not sheet.has("ceiling"):
        return []
    ways = [*_without_others(sheet, wanted), *_other_share(sheet, wanted)]
    ways += _smaller_cache(sheet, wanted)
    ways += _smaller_weights(sheet, wanted)
    ways += _layers_beside(sheet, wanted)
    ways += _more_cards(sheet, wanted)
    ways += _other_cards(sheet, wanted)
    return ways


def _parts_one_by_one(sheet: Sheet) -> Iterator[Way]:
    """The parts of a pipeline on the card in turn, where all at once are too much."""
    largest = sheet.value("largest_part_bytes")
    spare = sheet.value("spare")
    if largest is None or spare is None or spare >= 0:
        return
    rest = spare + sheet.weights - largest
    says = f"one part at a time on the card, the largest {show_bytes(int(largest))}"
    if rest >= 0:
        yield Way("host", "pipe.enable_model_cpu_offload()", f"{says}: it fits, slower")
    else:
        says = "each layer alone on the card"
        yield Way("host", "pipe.enable_sequential_cpu_offload()", f"{says}: it fits, very slow")


def _with_context(kind: str, option: str, says: str, sheet: Sheet, wanted: int) -> Iterator[Way]:
    """The way where so many tokens fit with it."""
    tokens = context(sheet)
    if tokens is not None and tokens >= wanted:
        yield Way(kind, option, f"{says}; the longest context is then {tokens:,}", tokens)


def _without_others(sheet: Sheet, wanted: int) -> Iterator[Way]:
    """The card for itself."""
    others = sheet.others_bytes
    if others:
        says = f"the {show_bytes(int(others))} that others hold are given back"
        changed = sheet.at({"others_bytes": 0})
        yield from _with_context("others", "--held 0", says, changed, wanted)


def _other_share(sheet: Sheet, wanted: int) -> Iterator[Way]:
    """A larger share of the card, or at most what is free of it."""
    name = sheet.option("share")
    if not name:
        return
    share = utilisation(sheet.at({"n_ctx": wanted}))
    if sheet.refused:
        free = sheet.ceiling - sheet.others_bytes
        share = int(100 * free / sheet.ceiling) / 100
    if share and share < 1:
        option = sheet.option("share_option").format(share)
        changed = sheet.at({name: share})
        yield from _with_context("share", option, f"{share:g} of the card", changed, wanted)


def _smaller_cache(sheet: Sheet, wanted: int) -> Iterator[Way]:
    kind = sheet.option("cache_type")
    if kind and sheet.value("bk") == 2:
        option = sheet.option("cache").format(kind)
        changed = sheet.at({"kv_type": kind})
        yield from _with_context("cache", option, f"a cache of type {kind}", changed, wanted)


def _smaller_weights(sheet: Sheet, wanted: int) -> Iterator[Way]:
    """The largest quantisation with which it fits; where none does alone, a usual one and the
    layers or cards that it needs beside it.
    """
    rows = list(_quantisations(sheet))
    for row, says, changed in rows:
        ways = list(_with_context("quantisation", row["name"], says, changed, wanted))
        if ways:
            yield from ways
            return
    for row, says, changed in rows:
        if row.get("usual"):
            for way in [*_layers_beside(changed, wanted), *_more_cards(changed, wanted)]:
                option = f"{row['name']} and {way.option}"
                yield Way(
                    "quantisation", option, f"{says}, still too much; {way.says}", way.context
                )


def _quantisations(sheet: Sheet) -> Iterator[tuple[dict[str, Any], str, Sheet]]:
    """The smaller forms that a server reads, the largest first: the row, its weights in words, and
    the sheet with it.
    """
    if not sheet.has("parameters", "model_bytes"):
        return
    for row in table("quantised")["smaller"]:
        size = _quantised_bytes(sheet, row["bits"])
        if row["family"] == _forms_of(sheet) and size <= 0.95 * sheet.model_bytes:
            inputs = {"model_bytes": size, "host_bytes": None, "weights_bytes": None}
            yield row, f"the weights take about {show_bytes(int(size))}", sheet.at(inputs)


def _forms_of(sheet: Sheet) -> str:
    """The family whose quantisations a server reads."""
    return {"ollama": "llama.cpp", "SGLang": "vLLM"}.get(sheet.family, sheet.family)


def _quantised_bytes(sheet: Sheet, bits: float) -> float:
    """The weights at so many bits; all but GGUF leave the tables of tokens at 16."""
    size = sheet.parameters * bits / 8
    if _forms_of(sheet) != "llama.cpp":
        size += sheet.token_tables * (2 - bits / 8)
    return size


def _layers_beside(sheet: Sheet, wanted: int) -> Iterator[Way]:
    """Whole layers with the host, of servers that run them there."""
    if sheet.family == "vLLM" and sheet.has("spare"):
        short = -int(sheet.at({"n_ctx": wanted}).value("spare") or 0)
        gib = -(-short // (1 << 30))
        if short > 0 and gib << 30 < sheet.weights / 2:
            says = f"{gib} GiB of the weights stay in RAM and are read over PCIe at each step"
            yield Way("host", f"--cpu-offload-gb {gib}", f"{says}: slow", wanted)
        return
    if sheet.family == "Transformers" and sheet.has("spare"):
        short = -int(sheet.at({"n_ctx": wanted}).value("spare") or 0)
        if 0 < short < sheet.weights:
            says = f"accelerate leaves {show_bytes(short)} of the weights in RAM: slow"
            yield Way("host", 'device_map="auto"', says, wanted)
        return
    if not sheet.is_ggml:
        return
    changed = sheet.at({"n_ctx": wanted, "n_gpu_layers": None})
    layers = layers_on_gpu(changed)
    count = int(sheet.value("n_layer") or 0) + 1
    if layers and layers < count:
        beside = int((count - layers) * (changed.value("layer_bytes") or 0))
        says = (
            f"{layers} of {count} layers on the card, the rest ({show_bytes(beside)}) in RAM, at a "
            f"context of {wanted:,}: slower"
        )
        yield Way("host", sheet.option("layers").format(layers), says, wanted)


def _more_cards(sheet: Sheet, wanted: int) -> Iterator[Way]:
    """So many such cards together, of servers that divide each layer."""
    if not sheet.is_pooled or not sheet.given("card_total_bytes"):
        return
    for count in (2, 4, 8, 16):
        if count <= sheet.tp or (sheet.has("n_head") and sheet.n_head % count):
            continue  # each card has as many heads
        changed = sheet.at({"tp": count})
        option = sheet.option("cards").format(count)
        ways = list(_with_context("cards", option, f"{count} such cards", changed, wanted))
        if ways:
            yield from ways
            return


def _other_cards(sheet: Sheet, wanted: int) -> Iterator[Way]:
    """The smallest cards of the table that it fits on alone."""
    rows = sorted(cards().items(), key=lambda row: row[1].total_bytes)
    sizes = set[int]()
    for key, card in rows:
        if not card.total_bytes or card.total_bytes >> 30 in sizes:
            continue
        inputs: dict[str, Any] = {
            "card_total_bytes": card.total_bytes,
            "card_free_bytes": None,
            "others_bytes": None,
        }
        says = f"{card.name}, {show_bytes(card.total_bytes)}"
        ways = list(_with_context("card", f"--gpu {key}", says, sheet.at(inputs), wanted))
        if not ways:
            continue
        sizes.add(card.total_bytes >> 30)
        yield from ways
        if len(sizes) == CARDS:
            return
