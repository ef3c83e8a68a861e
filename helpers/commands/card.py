"""The card that --gpu, --capacity or --box names, and the notes about it on standard error."""

from argparse import Namespace

from helpers.commands.signs import print_notes
from helpers.look.boxes import open_box
from helpers.look.cards import SIZE_ALONE, GpuCard, find_card, named_card, other_sizes

AS_AN_H100 = (
    "the size is as given; the card's other figures (chip, multiprocessors, the kernels' block "
    "sizes) are an H100's; --gpu NAME takes those of another card"
)


def card_of(arguments: Namespace) -> GpuCard:
    """The card that the options name; --held is what others use of it. Raises CardError."""
    bundle = None
    if arguments.box:
        bundle = open_box(arguments.box)
    return find_card(arguments.gpu, arguments.capacity, arguments.held, bundle)


def say_which_card(arguments: Namespace, card: GpuCard) -> None:
    """Print which card --gpu was taken for, or that only the size of this card is known."""
    say_other_sizes(arguments)
    if card.source == SIZE_ALONE and not arguments.json:
        print_notes(AS_AN_H100)


def say_other_sizes(arguments: Namespace) -> None:
    """Print which card --gpu was taken for, if cards of other sizes have that name too."""
    if not arguments.gpu or arguments.capacity or arguments.json:
        return  # --capacity says the size, and JSON stands alone
    others = other_sizes(arguments.gpu)
    if others:
        also = ", ".join(others)
        taken = named_card(arguments.gpu).name
        print_notes(f"--gpu {arguments.gpu} is {taken} here; also: {also}")
