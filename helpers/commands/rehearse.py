"""The command that runs a program of the user's own on a simulated card."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.commands import recording
from helpers.commands.card import card_of, say_which_card
from helpers.commands.rehearse_answer import answer_for_card
from helpers.commands.rehearse_bench import RehearsalBench
from helpers.commands.rehearse_commit import compare_with_commit
from helpers.commands.rehearse_options import refuse_wrong_options, training
from helpers.commands.rehearse_search import answer_for_all_cards, search_for_size
from helpers.commands.signs import print_notes
from helpers.commands.use import WrongUse
from helpers.ground.units import show_bytes
from helpers.look.cards import GpuCard, find_card
from helpers.rehearse import build, commits, torches
from helpers.rehearse.view import cards_table
from helpers.settings.rules import release


def rehearse(arguments: Namespace) -> int:
    """Run your program on a simulated card to see whether it fits, and if not, why.

    <recording>
    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: the program's own)
    --find-capacity: find the smallest card on which the program finishes
    --find-batch ARG: find the largest value of an argument with which it fits, such as batch
    --against-commit REF: compare the peak with that of the program at a commit; exit code 1 if it
        rose
    --allow SHARE = 1%: with --against-commit: how much the peak may rise
    --github: with --against-commit: write GitHub's summary of the job, and a note at each line
    --no-counterfactual: if the program runs out of memory, do not run it again without a limit and
        with expandable segments
    --setup: install what is missing, such as a CUDA build of torch beside your CPU build (0.6 to
        0.8 GB, once, no GPU needed); also without a COMMAND: casebook rehearse --setup
    --remove: delete everything that --setup installed
    --gpu NAME: the card, such as 4090 or a100-40; `--gpu list` lists all
    --wide: with `--gpu list`: show where the figures of each card come from
    --capacity SIZE: the card's memory, such as 20GiB, instead of --gpu
    --box B: rehearse on the largest card of this box or bundle, with the memory that is in use
        there and the box's allocator settings
    --gpus N <int> = 1: the number of such cards, for torchrun --nproc_per_node N
    --world N <int> = 0: rehearse ranks of a job of N processes, each without the others; give the
        program itself, without torchrun; --gpus is then the number of GPUs of a node
    --ranks LIST: with --world: which ranks, such as 0,7 (default: the first and the last)
    --steps N <int> = 0: end after N steps of an optimizer, with the verdict so far
    --seconds S <float> = 0: end after S seconds, with the verdict so far
    --values {least,typical,most,between} = typical: the size of whatever depends on values that are
        not computed (typical: half of the bound; between: both ends)
    --compile: compile what the program gives to torch.compile, beside a run without it; this takes
        minutes, and needs a torch with Triton: --torch-python
    --held SIZE: memory that the GPU context and other processes use, such as 500MiB
    --torch VER: the release of torch (default: your own CUDA torch, else 2.14.1)
    --cudnn-workspace SIZE = 0: memory that each cuDNN call uses, such as 512MiB (default: 0; the
        answer
        gives a range)
    --cache FOLDER: the folder of the files that rehearsals need (default: vram-casebook in
        XDG_CACHE_HOME)
    --model CONFIG: instead of a COMMAND: train the language model of this config.json with AdamW,
        under your own transformers and peft, with --train, --sequence and --batch; `--gpu all`
        lists the cards on which it fits
    --train {full,lora,qlora}: with --model: all weights, or adapters of rank 16 at all linear
        layers (qlora: of a model in 4 bits)
    --sequence N <int>: with --model: the tokens of a sequence
    --batch N <int>: with --model: the sequences of a step, of each rank
    --precision {bf16,mixed,fp32}: with --model: of weights and computing (mixed: weights in fp32,
        computed in bf16; default: mixed for full, else bf16)
    --checkpointing: with --model: compute activations again in the backward pass
    Example: rehearse --gpu 4090 -- python train.py
    """
    refuse_wrong_options(arguments)
    cache = torches.cache_folder(arguments.cache)
    model = training(arguments)
    if model:
        arguments.command = model.command()
    command = recording.checked_command(arguments)
    if arguments.remove:
        print(f"{show_bytes(torches.remove(cache))} removed from {cache}")
        return 0
    if arguments.gpu == "list":
        print(cards_table(arguments.wide).text(0))
        return 0
    if not command:
        return _set_up(arguments, cache)
    # What is wrong in the options is said before _torch fetches or builds anything.
    card = _card(arguments)
    if arguments.against_commit:
        commits.commit_of(arguments.against_commit)
    if model:
        model.check(torches.interpreter(command, arguments.torch_python))
    if arguments.gpu != "all":
        say_which_card(arguments, card)
    torch = _torch(arguments, command, cache)
    return _answer(RehearsalBench(arguments, command, card, torch, cache))


def _set_up(arguments: Namespace, cache: Path) -> int:
    """Install what a rehearsal needs, without a command. Raises WrongUse without --setup."""
    if not arguments.setup:
        raise WrongUse(
            "rehearse: no command; expected: rehearse --gpu 4090 -- python train.py"
        )
    torch = _torch(arguments, ["python"], cache)
    print(f"ready: torch {torch.version}; {cache}")
    return 0


def _card(arguments: Namespace) -> GpuCard:
    """The card of the options; one of ample size for --gpu all, and for --find-capacity alone."""
    is_named = arguments.gpu or arguments.capacity or arguments.box
    if arguments.gpu == "all" or (arguments.find_capacity and not is_named):
        return find_card(capacity=str(AMPLE_BYTES), held_by_others=arguments.held)
    return card_of(arguments)


def _torch(arguments: Namespace, command: Sequence[str], cache: Path) -> torches.Torch:
    """The torch that runs a rehearsed command, with the simulated card built for it.

    Raises WrongUse for a wrong --torch or --compile, and NotReady where a torch would have to be
    installed first, or where there is no C compiler.
    """
    build.tools()  # raises without a compiler, before anything is fetched
    python = torches.interpreter(command, arguments.torch_python)
    if arguments.torch and not release(arguments.torch):
        raise WrongUse(
            f"--torch {arguments.torch!r}: expected a release such as 2.14.1"
        )
    torch, install_folder = torches.find_torch(python, arguments.torch, cache)
    if arguments.compile:
        _refuse_without_triton(torch, python)
    if torch is None:
        if not arguments.setup:
            raise torches.NotReady(_what_is_missing(python, arguments.torch, cache))
        torch = torches.install(python, arguments.torch, install_folder)
    build.build(torch, cache)
    return torch


def _what_is_missing(python: str, version: str, cache: Path) -> str:
    """The message that no torch was found: what is needed, of what size, and how to install it."""
    missing = f"{python} has no CUDA build of torch {version}".rstrip()
    needed = f"a rehearsal needs one alone, {torches.SIZE_WORDS}, in {cache}"
    again = "run this again with --setup (--remove deletes it)"
    return f"{missing}; {needed}; {again}"


def _refuse_without_triton(torch: torches.Torch | None, python: str) -> None:
    """Raises WrongUse where Triton is not installed beside torch, in the same site-packages.

    ``torch`` is None where it would have to be installed first, which installs torch alone.
    """
    if torch is not None and (torch.folder / "triton").is_dir():
        return
    where = f"for {python}"
    if torch is not None:
        where = f"beside torch {torch.version} in {torch.folder}"
    expected = "expected --torch-python with a Python that has a CUDA build of torch and Triton"
    raise WrongUse(f"rehearse: --compile, and no Triton {where}; {expected}")


def _answer(bench: RehearsalBench) -> int:
    """Rehearse as often as the options ask, and print the answer. The exit code."""
    arguments = bench.arguments
    if arguments.gpu == "all":
        return answer_for_all_cards(bench)
    if not arguments.json:
        print_notes(*bench.settings.taken)
    if arguments.against_commit:
        return compare_with_commit(bench)
    if arguments.find_capacity or arguments.find_batch:
        return search_for_size(bench)
    return answer_for_card(bench)
