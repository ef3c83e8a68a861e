"""A walk from the names of a program to its tensors."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable

from .references import Reference, inside, inside_tensor, is_plain
from .storages import Storage

MOST_OBJECTS = 400_000
MOST_BETWEEN_CLOCKS = 64
"""Objects between two looks at the clock, which is a call of the system."""


class Walk:
    """A walk from names to tensors, the shortest way first.

    ``reached``: of each tensor, by its id, the reference that reached it. ``longest_s``: seconds of
    work after which the walk stops.
    """

    def __init__(self, storages: dict[int, Storage], longest_s: float):
        self.storages = storages
        self.reached: dict[int, Reference] = {}
        self._groups = 0
        self._group_of: dict[int, int] = {}
        self._is_in_time = True
        self._ends_at = time.thread_time() + longest_s

    @property
    def has_all(self) -> bool:
        """Whether every tensor is reached."""
        return len(self.reached) == len(self.storages)

    @property
    def complete(self) -> bool:
        """Whether no name can lead to a tensor that is not reached."""
        return self._is_in_time or self.has_all

    def run(self, groups: Iterable[Iterable[Reference]]) -> None:
        """Walk from each group of roots; a later group gets what the earlier ones left."""
        for roots in groups:
            if not self.has_all:
                self.run_from(roots)

    def run_from(self, roots: Iterable[Reference]) -> list[Reference]:
        """Walk from a group of roots to all that is new. Returns the references to objects that an
        earlier group had reached.
        """
        self._groups += 1
        self._check_time()
        shared = []
        waiting = collections.deque(roots)
        while waiting and self._is_in_time:
            reference = waiting.popleft()
            if self._group_of.get(id(reference.value), self._groups) != self._groups:
                shared.append(reference)
            waiting.extend(self._next(reference))
        return shared

    def _check_time(self) -> None:
        has_time = (
            len(self._group_of) <= MOST_OBJECTS and time.thread_time() <= self._ends_at
        )
        self._is_in_time = self._is_in_time and has_time

    def _next(self, reference: Reference) -> Iterable[Reference]:
        """What an object refers to; nothing where that was asked before."""
        key = id(reference.value)
        if key in self._group_of or is_plain(reference.value):
            return ()
        self._group_of[key] = self._groups
        count = len(self._group_of)
        if count > MOST_OBJECTS or count % MOST_BETWEEN_CLOCKS == 0:
            self._check_time()
        if key not in self.storages:
            return inside(reference)
        self.reached[key] = reference
        return inside_tensor(reference)
