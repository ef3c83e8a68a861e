"""The command that says what fits: a model's own header or a server's log against a card or a box."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.use import WrongUse, say

if TYPE_CHECKING:
    from helpers.fits.answer import Answer


def fits(given: argparse.Namespace) -> int:
    """What a server needs of a model and what a card can give: yes or no, the longest context, slots, layers, share.

    [what]: a model (config.json, a safetensors header or index, a GGUF file, a folder) or a server's log
    --inputs FILE: program, version, architecture and inputs as JSON, in place of it
    --gpu NAME: the card, such as 4090; `rehearse --gpu list` names all
    --capacity SIZE: its memory, such as 20GiB
    --box B: the GPUs of that box or bundle, and what others hold on them
    --held SIZE: what others hold, such as 2GiB
    --context N <int>: tokens, over all slots of llama.cpp and ollama
    --slots N <int>: requests at once
    --tokens N <int>: tokens of the pool, of SGLang
    --kv TYPE: type of the cache, such as q8_0 or fp8
    --utilisation F <float>: the share that vLLM or SGLang may take
    --tp N <int>: cards that share each layer
    --server NAME: llama.cpp, ollama, vllm, sglang (default: by the model's file)
    --release VERSION: its release or month, such as 0.21 or 2025-11
    --train OPTIMIZER: training with it instead: adamw, adamw_8bit, adafactor, sgd, sgd_momentum
    --batch N <int>: sequences of a training step
    --checkpointing {none,selective,full}: what a training step keeps
    Example: fits model.gguf --gpu 4090 --context 32768
    """
    from helpers.fits.view import as_text

    found = found_for(given)
    return say(given, vars(found), as_text(found))


def found_for(given: argparse.Namespace) -> Answer:
    """The answer to a command line. Raises ValueError in one line."""
    from helpers.fits import answer, model
    from helpers.fits.sheet import family_of
    from helpers.look.text_file import TextFile

    if bool(given.what) == bool(given.inputs):
        raise WrongUse("fits: expected a model's file or a server's log, or --inputs FILE")
    path = Path(given.what or given.inputs)
    if not path.exists():
        raise WrongUse(f"{path}: not there; expected a local file, nothing is downloaded")
    if given.inputs:
        known = answer.read_inputs(path)
    elif path.is_dir() or model.SUFFIX.search(path.name) or model.start_of(path, 4) == b"GGUF":
        known = model.read_model(path)
    else:
        with TextFile(str(path)) as file:
            known = model.read_log(file.lines())
    known.program = given.server or known.program
    known.version = given.release or known.version
    alike = family_of(known.program) in ("vLLM", "SGLang")
    known.inputs.update(_asked(given, (given.tp or 1) if alike else 0))
    if given.train:
        known.inputs = {"n_ctx": 2048, **known.inputs, "optimizer": given.train}
        known.program = "training"
    return answer.answer(known)


def _asked(given: argparse.Namespace, alike: int) -> dict[str, Any]:
    """What the options say, as inputs of a sheet; ``alike``: as of cards_of."""
    from helpers.fits.answer import cards_of
    from helpers.fits.sheet import table
    from helpers.ground.units import parse_size
    from helpers.look.bundle import open_box
    from helpers.look.cards import find_card

    found: dict[str, Any] = cards_of(open_box(given.box), alike) if given.box else {}
    if given.gpu or given.capacity:
        card = find_card(given.gpu, given.capacity, given.held)
        found.update(card_total_bytes=card.total_bytes, ceiling_words=given.gpu and card.name)
    found.update({"card_free_bytes": None} if found else {})
    found["others_bytes"] = parse_size(given.held) if given.held else found.get("others_bytes")
    found.update({name: getattr(given, one) for name, one in table()["options"].items()})
    return {k: v for k, v in found.items() if v not in (None, "") or k == "card_free_bytes"}


VERBS = (fits,)
