"""The changes of a server's options, of its model or of its card that make more fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from helpers.fits.rules.weights import quantised_bytes
from helpers.fits.servers import table
from helpers.fits.sheet import Figure, Sheet
from helpers.fits.solving import holds, layers_on_gpu, utilisation
from helpers.ground.units import GIB, show_bytes
from helpers.look.cards import cards

LOSSES = ("others", "share", "cache", "quantisation", "host", "cards", "card")
"""Kinds of changes in the order of what they cost, the least first: nothing for ``others`` and
``share``, bits of the cache, bits of the weights, speed, and money for ``cards`` and ``card``.
"""
# vLLM docs/features/quantization/llm_compressor/fp8.md
FP8_CACHE = 8.9
"""Compute capability from which vLLM computes in FP8, as a cache of FP8 needs it."""
FP8_WEIGHTS = 7.5
"""Compute capability from which vLLM reads weights of FP8."""
FP8_OF_AMD = ("gfx94", "gfx95")
"""How the names of AMD's architectures begin that compute in FP8: MI300 and later."""
SOLVED = ("share", "host", "cards")
"""Kinds whose change is computed: the smallest one that suffices."""
HARDLY_SMALLER = 0.95
"""Weights above this share of the present ones are no help: a choice of ours."""
POWERS_OF_2 = (2, 4, 8, 16)
"""Numbers of cards that are tried: heads and widths of models divide by these."""


@dataclass(frozen=True)
class OptionChange:
    """One change: its ``kind`` (one of LOSSES), the ``option`` that a person gives, and what it
    does (``says``).

    ``inputs`` are the inputs of the sheet that it replaces (None takes one out), ``gaps`` those of
    the line that starts the server. Of the changes of one kind, those with a higher ``level``
    change more; ``usual`` is true for the one that most people take first.
    """

    kind: str
    option: str
    says: str
    inputs: dict[str, Figure | None]
    gaps: dict[str, object] = field(default_factory=dict)
    level: int = 0
    usual: bool = False


def changes_of(sheet: Sheet, wanted: int) -> Iterator[OptionChange]:
    """All changes that may make room for ``wanted`` tokens; ``other_cards`` has further ones."""
    yield from _without_others(sheet)
    yield from _other_share(sheet, wanted)
    yield from _smaller_cache(sheet)
    yield from _smaller_weights(sheet)
    yield from _layers_in_ram(sheet, wanted)
    yield from _weights_in_ram(sheet, wanted)
    yield from _more_cards(sheet, wanted)


def _without_others(sheet: Sheet) -> Iterator[OptionChange]:
    """The change that others give back what they hold; none where nobody holds anything."""
    others = sheet.others_bytes
    if others:
        says = f"the {show_bytes(int(others))} that others hold are given back"
        yield OptionChange("others", "--held 0", says, {"others_bytes": 0})


def _other_share(sheet: Sheet, wanted: int) -> Iterator[OptionChange]:
    """The smallest share of the card that suffices; for a server that refuses to start because less
    is free than its share, the share that is free.
    """
    name = sheet.option("share")
    if not name:
        return
    share = utilisation(sheet.at({"n_ctx": wanted}))
    if sheet.refused:
        free = sheet.ceiling - sheet.others_bytes
        share = int(100 * free / sheet.ceiling) / 100  # whole percents, rounded down
    if share and share < 1:  # the whole card is no share that a server takes
        option = sheet.option("share_option").format(share)
        yield OptionChange("share", option, f"{share:.0%} of the card", {name: share})


def _smaller_cache(sheet: Sheet) -> Iterator[OptionChange]:
    """A cache of eight bits in place of sixteen, where the server has such a type (cache_type) and
    the card, if it is known, computes in it.
    """
    kind = sheet.option("cache_type")
    is_fp8 = kind.startswith("fp8")
    if not kind or sheet.value("bk") != 2:  # bytes of an element of the keys
        return
    if is_fp8 and _lacks_fp8(sheet, FP8_CACHE):
        return
    says = f"a cache of type {kind}"
    if is_fp8 and "card_arch" not in sheet.inputs:
        says += " (from compute capability 8.9 on, or MI300)"
    option = sheet.option("cache").format(kind)
    yield OptionChange("cache", option, says, {"kv_type": kind})


def _lacks_fp8(sheet: Sheet, capability: float) -> bool:
    """Whether the card is known and has no FP8: an AMD card older than MI300, or an NVIDIA card
    below the compute capability ``capability``.
    """
    if "card_arch" not in sheet.inputs:
        return False
    arch = sheet.text("card_arch")
    if arch.startswith("gfx"):
        return not arch.startswith(FP8_OF_AMD)
    return float(arch) < capability


def _smaller_weights(sheet: Sheet) -> Iterator[OptionChange]:
    """The quantisations that the server reads and that make the weights clearly smaller (see
    HARDLY_SMALLER), the largest first. Their size comes from the number of weights, which has to be
    known.
    """
    if not sheet.has("parameters", "model_bytes"):
        return
    # ollama reads what llama.cpp does, SGLang what vLLM does.
    family = {"ollama": "llama.cpp", "SGLang": "vLLM"}.get(sheet.family, sheet.family)
    rows = [row for row in table("quantised")["smaller"] if row["family"] == family]
    for level, row in enumerate(rows):
        size = quantised_bytes(sheet, row["bits"])
        if size > HARDLY_SMALLER * sheet.model_bytes:
            continue
        if row["name"] == "FP8" and _lacks_fp8(sheet, FP8_WEIGHTS):
            continue
        yield OptionChange(
            kind="quantisation",
            option=row["name"],
            says=f"weights of about {show_bytes(int(size))}",
            inputs={
                "quantised_bits": row["bits"],
                "model_bytes": None,
                "host_bytes": None,
                "weights_bytes": None,
            },
            gaps=row["start"],
            level=level,
            usual="usual" in row,
        )


def _layers_in_ram(sheet: Sheet, wanted: int) -> Iterator[OptionChange]:
    """The fewest whole layers in RAM, for llama.cpp and ollama; nothing where all or none of them
    fit the card.
    """
    if not sheet.is_ggml:
        return
    at_length = sheet.at({"n_ctx": wanted, "n_gpu_layers": None})
    layers = layers_on_gpu(at_length)
    count = int(sheet.value_or("n_layer", 0)) + 1  # the output counts as a layer
    if not layers or layers >= count:
        return
    size = show_bytes(int((count - layers) * at_length.value_or("layer_bytes", 0)))
    yield OptionChange(
        kind="host",
        option=sheet.option("layers").format(layers),
        says=f"{layers} of {count} layers on the card, the rest ({size}) in RAM: slower",
        inputs={"n_gpu_layers": layers},
        gaps={"layers": layers},
    )


def _weights_in_ram(sheet: Sheet, wanted: int) -> Iterator[OptionChange]:
    """As many bytes of the weights in RAM as the card is short of, for vLLM and transformers;
    nothing where it is short of none, or of more than is of use.
    """
    if sheet.family not in ("vLLM", "Transformers") or not sheet.has("weights"):
        return
    at_length = sheet.at({"n_ctx": wanted, "n_gpu_layers": None})
    short = ceil(-at_length.value_or("spare", 0))
    if short <= 0:
        return
    # Our choice: with half of the weights read over PCIe at each step a server is too slow to use.
    if sheet.is_vllm and short < sheet.weights / 2:
        gib = ceil(short / GIB)  # vLLM takes whole GiB
        yield OptionChange(
            kind="host",
            option=f"--cpu-offload-gb {gib}",
            says=f"{gib} GiB of the weights in RAM, read over PCIe at each step: slow",
            inputs={"offload_bytes": gib * GIB},
            gaps={"offload": gib},
        )
    if sheet.family == "Transformers" and short < sheet.weights:
        yield OptionChange(
            kind="host",
            option='device_map="auto"',
            says=f"{show_bytes(short)} of the weights in RAM: slow",
            inputs={"offload_bytes": short},
            gaps={"device": "auto"},
        )


def _more_cards(sheet: Sheet, wanted: int) -> Iterator[OptionChange]:
    """The fewest cards of the same kind that suffice, for servers that divide each layer among
    cards; nothing where POWERS_OF_2 has no such number.
    """
    if not sheet.is_pooled or "card_total_bytes" not in sheet.inputs:
        return
    for count in POWERS_OF_2:
        # Each card has the same number of heads.
        divides_heads = not sheet.has("n_head") or sheet.n_head % count == 0
        if count <= sheet.tp or not divides_heads:
            continue
        if holds(sheet.at({"tp": count}), wanted):
            yield OptionChange(
                kind="cards",
                option=sheet.option("cards").format(count),
                says=f"{count} such cards",
                inputs={"tp": count},
                level=count,
            )
            return


def other_cards() -> Iterator[OptionChange]:
    """The change to another card, for one card of each size in cards.csv, the smallest first."""
    smallest_first = sorted(cards().items(), key=lambda row: row[1].total_bytes)
    sizes = set[int]()
    for name, card in smallest_first:
        gib = card.total_bytes // GIB
        if card.total_bytes and gib not in sizes:
            sizes.add(gib)
            yield OptionChange(
                kind="card",
                option=f"--gpu {name}",
                says=f"{card.name}, {show_bytes(card.total_bytes)}",
                inputs={
                    "card_total_bytes": card.total_bytes,
                    "card_arch": card.arch,
                    "card_free_bytes": None,
                    "others_bytes": None,
                },
            )
