"""What a batch keeps its hands off, and why: a whole box, or one GPU of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from helpers.units import pci_address


@dataclass(frozen=True)
class Trouble:
    """Why a box is not clean. ``scope`` is "box", "gpu PCI", or "a GPU" where nobody knows which.

    ``why`` is one line: seen, expected, with units. ``passes`` is true for what a clean look of the gate may lift: memory,
    holders, heat, a full disk, a program's own fault. It is false for what no such look can disprove, such as a GPU reset:
    that stays until a person has seen to it.
    """

    scope: str
    why: str
    passes: bool = True


class Quarantine:
    """What is kept out and why. It holds state alone and does nothing by itself.

    ``add`` takes what the gate found and what others know, such as a process that SIGKILL did not end; theirs never passes.
    """

    def __init__(self) -> None:
        self.troubles: tuple[Trouble, ...] = ()

    def add(self, *troubles: Trouble) -> None:
        """Keep these scopes out. What is said twice of one scope is kept once."""
        self.troubles = tuple(dict.fromkeys((*self.troubles, *troubles)))

    def lifted(self, found: Iterable[Trouble]) -> tuple[Trouble, ...]:
        """What a look lifts that found only ``found``: passing troubles of the scopes that are clean now."""
        unclean = {trouble.scope for trouble in found}
        gone = tuple(
            trouble for trouble in self.troubles if trouble.passes and trouble.scope not in unclean
        )
        self.troubles = tuple(trouble for trouble in self.troubles if trouble not in gone)
        return gone

    def refuses(self, run: Any) -> str:
        """Why this run must not start, or empty. ``run`` has ``gpu`` and ``danger`` (a Run or a Step).

        A box refuses every run. A GPU refuses those that name it, and those that name none and do more than look.
        """
        named, looks = pci_address(run.gpu) or run.gpu, run.danger == "looks"
        for trouble in self.troubles:
            if trouble.scope == "box" or trouble.scope == f"gpu {named}":
                return f"{trouble.scope} is in quarantine: {trouble.why}"
            if (not named and not looks) or (named and trouble.scope == "a GPU"):
                return f"{trouble.scope} is in quarantine, and this run may use it: {trouble.why}"
        return ""
