"""Which options of `rehearse` can be combined, the ranks of --world, and the training
of --model.
"""

import os
from argparse import Namespace
from collections.abc import Sequence

from helpers.commands.use import WrongUse
from helpers.rehearse.model import Training
from helpers.trials.user_program import LAUNCHERS

MOST_GPUS = 16
"""How many cards the simulated driver has room for: MAXDEV of helpers/rehearse/device.c."""
MOST_RANKS = 1_000_000
"""More processes than any job has; a larger number is a typing error."""
NEEDED = {"train": "full, lora or qlora", "sequence": "4096", "batch": "8"}
"""Options that --model cannot do without, each with what it can be."""
OF_A_MODEL = (*NEEDED, "precision", "checkpointing")
"""Options that have a meaning only beside --model."""


def refuse_wrong_options(arguments: Namespace) -> None:
    """Raises WrongUse for impossible numbers and for options that exclude each other."""
    if not 1 <= arguments.gpus <= MOST_GPUS:
        expected = f"expected 1 to {MOST_GPUS}, one a process of torchrun"
        raise WrongUse(f"rehearse: seen --gpus {arguments.gpus}; {expected}")
    steps = arguments.steps
    seconds = arguments.seconds
    if min(steps, seconds) < 0:
        raise WrongUse(
            f"rehearse: --steps {steps}, --seconds {seconds}; expected 0 or more"
        )
    if arguments.find_capacity and arguments.find_batch:
        raise WrongUse("rehearse: seen --find-capacity and --find-batch; expected one")
    if arguments.compile and (_is_search(arguments) or arguments.world):
        others = "--world, --values between, --against-commit, --gpu all or a search"
        raise WrongUse(f"rehearse: --compile cannot be combined with {others}")
    ranks(arguments)  # raises for wrong ranks


def _is_search(arguments: Namespace) -> bool:
    """Whether several sizes, commits or values are rehearsed."""
    searches = (
        arguments.find_capacity,
        arguments.find_batch,
        arguments.gpu == "all",
        arguments.against_commit,
        arguments.values == "between",
    )
    return any(searches)


def ranks(arguments: Namespace) -> list[int]:
    """The ranks to rehearse, ascending; none without --world. Raises WrongUse for
    impossible ones.
    """
    world = arguments.world
    if arguments.ranks and not world:
        raise WrongUse(
            f"rehearse: seen --ranks {arguments.ranks} without --world; add --world N"
        )
    if not world:
        return []
    if not 1 <= world <= MOST_RANKS:
        raise WrongUse(
            f"rehearse: seen --world {world}; expected 1 to {MOST_RANKS:,} processes"
        )
    _refuse_what_excludes_a_world(arguments)
    listed = arguments.ranks
    if not listed:
        listed = f"0,{world - 1}"
    words = listed.split(",")
    if not all(word.isdecimal() and int(word) < world for word in words):
        expected = f"expected numbers from 0 to {world - 1}, such as 0,{world - 1}"
        raise WrongUse(f"rehearse: seen --ranks {listed}; {expected}")
    return sorted({int(word) for word in words})


def _refuse_what_excludes_a_world(arguments: Namespace) -> None:
    """Raises WrongUse for options that exclude --world, and for a launcher in the command."""
    searches = ("find_batch", "find_capacity", "against_commit")
    _refuse_beside(arguments, "--world", searches)
    if arguments.values == "between":
        raise WrongUse(
            "rehearse: seen --world and --values between; give --values least or most"
        )
    # A launcher is at most the fourth word: -- python -m torch.distributed.run
    for word in arguments.command[:4]:
        name = os.path.basename(word)
        if name in LAUNCHERS or name == "torch.distributed.run":
            expected = "expected the program itself, such as python train.py"
            raise WrongUse(f"rehearse --world: seen {name} in the command; {expected}")


def training(arguments: Namespace) -> Training | None:
    """How --model is trained; None without it. Raises WrongUse for options that do not
    go with it.
    """
    if not arguments.model:
        for name in OF_A_MODEL:
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


def _refuse_what_excludes_a_model(arguments: Namespace) -> None:
    """Raises WrongUse for a command, and for options that exclude --model or each other
    beside it.
    """
    if [word for word in arguments.command if word != "--"]:
        raise WrongUse("rehearse: seen --model and a command; expected one of the two")
    _refuse_beside(arguments, "--model", ["against_commit"])
    if arguments.train == "qlora" and arguments.world > 1:
        expected = "weights in four bits are not shared by ranks; expected --train full or lora"
        raise WrongUse(
            f"rehearse: seen --train qlora and --world {arguments.world}; {expected}"
        )
    if arguments.train == "qlora" and arguments.precision not in ("", "bf16"):
        seen = f"--train qlora and --precision {arguments.precision}"
        raise WrongUse(f"rehearse: seen {seen}; expected bf16, in which it computes")
    if arguments.gpu == "all":
        others = ("capacity", "box", "find_capacity", "find_batch")
        _refuse_beside(arguments, "--gpu all", others)


def _refuse_beside(arguments: Namespace, seen: str, others: Sequence[str]) -> None:
    """Raises WrongUse where one of the other options is given beside the one that was seen."""
    for option in others:
        if getattr(arguments, option):
            name = option.replace("_", "-")
            raise WrongUse(
                f"rehearse: seen {seen} and --{name}; expected one of the two"
            )
