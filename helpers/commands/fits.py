"""The command that says what fits: a model's own header or a server's log against a
card or a box.
"""

import re
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helpers.commands.card import say_other_sizes
from helpers.commands.use import WrongUse, say
from helpers.fits.answer import FitsAnswer, answer
from helpers.fits.cards import cards_of
from helpers.fits.layers import whole_number
from helpers.fits.log import read_log
from helpers.fits.model import is_model, read_model, read_record
from helpers.fits.servers import family_of
from helpers.fits.sheet import (
    MOST_COUNTS,
    MissingFigure,
    ServerFacts,
    Sheet,
    check_count,
    element_bytes,
)
from helpers.fits.view import as_text
from helpers.ground.units import parse_size
from helpers.look.boxes import open_box
from helpers.look.cards import find_card
from helpers.look.text_file import read_text
from helpers.rehearse.view import cards_table

WITHOUT_HELD = (
    "This card's memory is the computer's RAM: what the system and its programs hold of it comes "
    "off; give that as --held."
)
OPTIONS = {
    "n_ctx": "context",
    "n_parallel": "slots",
    "kv_type": "kv",
    "tp": "tp",
    "tokens": "tokens",
    "gpu_memory_utilization": "utilisation",
    "mem_fraction_static": "utilisation",
}
"""Inputs of a sheet, each with the option that gives it: vLLM and SGLang name the share
differently.
"""
TENSOR_PARALLEL = ("vLLM", "SGLang")
"""Servers that divide each layer between cards, and that reserve a share of each card for
themselves.
"""


def fits(arguments: Namespace) -> int:
    """Say whether a model fits a card, with the longest context and the line that starts the
    server.

    [what]: a model (config.json, a safetensors header or index, a GGUF file, a folder) or a
        server's log
    --inputs FILE: program, version, architecture and inputs as JSON, instead of a model
    --gpu NAME: the card, such as 4090; `--gpu list` lists all
    --capacity SIZE: the card's memory, such as 20GiB, instead of --gpu
    --box B: the GPUs of this box or bundle, less the memory that other processes use
    --held SIZE: memory that other processes use, such as 2GiB
    --context N <int>: the context in tokens; for llama.cpp and ollama the sum over all slots
    --slots N <int>: requests at once
    --tokens N <int>: tokens in SGLang's pool
    --kv TYPE: the type of the cache, such as q8_0 or fp8
    --utilisation F <float>: the share of the card that vLLM or SGLang may use, such as 0.9
    --tp N <int>: the number of cards that share each layer (tensor parallel)
    --server NAME: llama.cpp, ollama, vllm, sglang or transformers (default: depends on the model's
        file)
    --release VERSION: the server's release or month, such as 0.21 or 2025-11
    --wide: show where each figure comes from
    Example: fits model.gguf --gpu 4090 --context 32768
    """
    if arguments.gpu == "list":
        print(cards_table(arguments.wide).text(0))
        return 0
    answer = answer_for(arguments)
    return say(arguments, asdict(answer), as_text(answer, arguments.wide))


def answer_for(arguments: Namespace) -> FitsAnswer:
    """The answer to a command line. Raises ValueError in one line."""
    if bool(arguments.what) == bool(arguments.inputs):  # both, or neither
        raise WrongUse(
            "fits: expected a model's file or a server's log, or --inputs FILE"
        )
    _refuse_wrong_numbers(arguments)
    server = _server(arguments)
    _refuse_cache_of_another_server(arguments, server)
    _refuse_pool_of_another_server(arguments, server)
    cards = arguments.tp
    if cards is None:
        cards = 1
    divides_layers = family_of(server.program) in TENSOR_PARALLEL
    _refuse_cards_that_share_no_layer(cards, server, divides_layers)
    if divides_layers:
        server.inputs.update(_inputs(arguments, cards))
    else:
        server.inputs.update(_inputs(arguments))
    return answer(server)


def _server(arguments: Namespace) -> ServerFacts:
    """The facts of the model or log, for the server and release that the options name, if any."""
    server = _read(arguments)
    if arguments.server and not family_of(arguments.server):
        expected = "expected llama.cpp, ollama, vllm, sglang, transformers or diffusers"
        raise WrongUse(f"fits: --server {arguments.server!r:.40}; {expected}")
    is_model_file = bool(server.path)
    server.assumed = is_model_file and not arguments.server
    if arguments.server:
        server.program = arguments.server
    if arguments.release:
        server.version = arguments.release
    return server


def _read(arguments: Namespace) -> ServerFacts:
    """The record, the model or the log that a command line names."""
    path = Path(arguments.what or arguments.inputs)
    if not path.exists():
        raise WrongUse(
            f"{path}: not there; expected a local file, nothing is downloaded"
        )
    if arguments.inputs:
        return read_record(path)
    if is_model(path):
        return read_model(path)
    return read_log(read_text(str(path)).text.splitlines(keepends=True))


def _refuse_wrong_numbers(arguments: Namespace) -> None:
    """Raises WrongUse for a value that is impossible on any server."""
    for option in MOST_COUNTS:
        try:
            check_count(option, getattr(arguments, option))
        except ValueError as error:
            raise WrongUse(f"fits: --{error}") from None
    if arguments.release and not re.search(r"\d", arguments.release):
        seen = f"--release {arguments.release!r:.80}"
        raise WrongUse(
            f"fits: {seen}; expected a release or a month, such as 0.21 or 2025-11"
        )
    if arguments.box and (arguments.gpu or arguments.capacity):
        raise WrongUse(
            "fits: --box beside --gpu or --capacity; expected one card or box"
        )
    share = arguments.utilisation
    if share is not None and not 0 < share <= 1:
        raise WrongUse(
            f"fits: --utilisation {share:g}; expected a share above 0, at most 1"
        )
    if arguments.kv and not arguments.kv.startswith("turbo"):
        try:
            element_bytes(arguments.kv.lower())
        except MissingFigure as missing:
            raise WrongUse(f"fits: --kv: {missing.why}") from None


def _refuse_cache_of_another_server(arguments: Namespace, server: ServerFacts) -> None:
    """Raises WrongUse for a type of the cache that the server does not take."""
    kinds = Sheet(server.program, server.version, {}).option("cache_types").split()
    kind = arguments.kv.lower()
    # turbo2 to turbo4 are types of llama.cpp's TurboQuant forks, which no server's list has.
    if not kind or not kinds or kind.startswith("turbo"):
        return
    if kind not in kinds:
        takes = ", ".join(kinds)
        raise WrongUse(
            f"fits: --kv {kind}; expected one that {server.program} takes: {takes}"
        )


def _refuse_pool_of_another_server(arguments: Namespace, server: ServerFacts) -> None:
    """Raises WrongUse for the size of a pool where the server takes none."""
    family = family_of(server.program)
    if arguments.utilisation is not None and family not in TENSOR_PARALLEL:
        seen = f"--utilisation for {server.program}, which takes no share of the card"
        raise WrongUse(f"fits: {seen}; expected --server vllm or sglang")
    if arguments.tokens is not None and family != "SGLang":
        seen = f"--tokens for {server.program}, whose pool has no size of its own"
        raise WrongUse(f"fits: {seen}; expected --server sglang, or --context")


def _refuse_cards_that_share_no_layer(
    cards: int, server: ServerFacts, divides_layers: bool
) -> None:
    """Raises WrongUse for --tp where the server divides no layer, or the model's heads cannot be
    divided by so many ``cards``.
    """
    if cards > 1 and not divides_layers:
        seen = f"--tp {cards} for {server.program}, which divides no layer"
        raise WrongUse(f"fits: {seen}; expected --server vllm or sglang")
    heads = whole_number(server.inputs.get("n_head"))
    if heads and heads % cards:
        raise WrongUse(
            f"fits: --tp {cards}; expected a divisor of the model's {heads} heads"
        )


def _inputs(arguments: Namespace, alike: int = 0) -> dict[str, Any]:
    """What the options say, as inputs of a sheet, which replace those of the model or log; an
    option that is not given has no input.

    ``alike``: between how many cards of a box each layer is divided (0: not divided).
    """
    inputs: dict[str, Any] = {}
    if arguments.box:
        inputs = cards_of(open_box(arguments.box), alike)
    if arguments.gpu or arguments.capacity:
        card = find_card(arguments.gpu, arguments.capacity, arguments.held)
        say_other_sizes(arguments)
        inputs.update(card_total_bytes=card.total_bytes, ceiling_words=card.words)
        if arguments.gpu:
            inputs.update(ceiling_words=card.name, card_arch=card.arch)
        if card.is_shared:
            inputs["held_words"] = WITHOUT_HELD
    if arguments.held:
        inputs["others_bytes"] = parse_size(arguments.held)
        inputs.pop("held_words", None)
    for name, option in OPTIONS.items():
        inputs[name] = getattr(arguments, option)
    given = {name: value for name, value in inputs.items() if value not in (None, "")}
    if "card_total_bytes" in given:
        # A log says what was free of its own card, not of this one.
        given["card_free_bytes"] = None
    return given
