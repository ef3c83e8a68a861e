"""`rehearse --model`: a model's config in place of a program, on one card or on all."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from helpers.commands.use import WrongUse

if TYPE_CHECKING:
    from helpers.look.cards import GpuCard
    from helpers.rehearse.model import Training
    from helpers.rehearse.rehearsal import Rehearsal

NEEDED = {"train": "full, lora or qlora", "sequence": "4096", "batch": "8"}
OPTIONS = (*NEEDED, "precision", "checkpointing")


def training(arguments: argparse.Namespace) -> Training | None:
    """How --model is to be trained; None without it. Raises WrongUse for options that cannot be."""
    from helpers.rehearse.model import Training

    if not arguments.model:
        for name in OPTIONS:
            if getattr(arguments, name):
                raise WrongUse(
                    f"rehearse: seen --{name} without --model; add --model config.json"
                )
        if arguments.gpu == "all":
            raise WrongUse(
                "rehearse: seen --gpu all without --model; expected the name of a card"
            )
        return None
    for name, example in NEEDED.items():
        value = getattr(arguments, name)
        if value in (None, ""):
            raise WrongUse(
                f"rehearse --model: no --{name}; expected --{name} {example}"
            )
        if isinstance(value, int) and value < 1:
            raise WrongUse(
                f"rehearse --model: seen --{name} {value}; expected 1 or more"
            )
    _refuse_what_excludes_a_model(arguments)
    return Training(
        config=arguments.model,
        train=arguments.train,
        sequence=arguments.sequence,
        batch=arguments.batch,
        precision=arguments.precision,
        checkpointing=arguments.checkpointing,
    )


def _refuse_what_excludes_a_model(arguments: argparse.Namespace) -> None:
    if [word for word in arguments.command if word != "--"]:
        raise WrongUse("rehearse: seen --model and a command; expected one of the two")
    if arguments.against_commit:
        raise WrongUse(
            "rehearse: seen --model and --against-commit; expected one of the two"
        )
    if arguments.train == "qlora" and arguments.world > 1:
        expected = "weights in four bits are not shared by ranks; expected --train full or lora"
        raise WrongUse(
            f"rehearse: seen --train qlora and --world {arguments.world}; {expected}"
        )
    if arguments.train == "qlora" and arguments.precision not in ("", "bf16"):
        seen = f"--train qlora and --precision {arguments.precision}"
        raise WrongUse(f"rehearse: seen {seen}; expected bf16, in which it computes")
    for name in ("capacity", "box", "find_capacity", "find_batch"):
        if arguments.gpu == "all" and getattr(arguments, name):
            option = name.replace("_", "-")
            raise WrongUse(
                f"rehearse: seen --gpu all and --{option}; expected one of the two"
            )


def answer_for_all_cards(
    arguments: argparse.Namespace, run: Callable[[GpuCard], Rehearsal]
) -> int:
    """Print the cards on which the model can be trained. The exit code: 1 where there is none."""
    from helpers.ground.units import parse_size
    from helpers.rehearse.every_card import cards_that_fit, fitting_table

    rows = cards_that_fit(run, parse_size(arguments.held or "0"))
    if arguments.json:
        shapes = [
            {
                "name": row.name,
                "card": row.card.name,
                "total_bytes": row.card.total_bytes,
                "peak_reserved_bytes": row.rehearsal.peak_reserved_bytes,
                "left_bytes": row.left_bytes,
                "rehearsed_on": row.rehearsal.device.name,
            }
            for row in rows
        ]
        print(json.dumps(shapes, indent=1))
    elif rows:
        print(fitting_table(rows).text(0))
    else:
        print("It fits on no card of the table.")
    return 0 if rows else 1
