"""Walks from the names of a program to its tensors, the shortest way first.

Names come in groups, which are counted from 1. An object belongs to the first group that reaches
it, and is not walked again.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable

from .references import Reference, inside, inside_tensor, is_plain
from .storages import Storage

MOST_OBJECTS = 400_000
"""Objects after which a walk stops: it remembers each of them."""
OBJECTS_BETWEEN_CLOCKS = 64
"""Objects between two looks at the clock, each of which is a system call."""


class Walk:
    """A walk from names to the tensors of ``storages``, which are by the id of the tensor.

    ``reached``: for each tensor, by its id, the reference that reached it. ``longest_s``: seconds
    of processor time after which the walk stops.
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
        """Whether no name that was not walked could lead to another tensor: the walk was not
        stopped at a limit, or it had reached every tensor before.
        """
        return self._is_in_time or self.has_all

    def run(self, groups: Iterable[Iterable[Reference]]) -> None:
        """Walk from each group of names in turn, until all tensors are reached."""
        for roots in groups:
            if not self.has_all:
                self.run_from(roots)

    def run_from(self, roots: Iterable[Reference]) -> list[Reference]:
        """Walk from a group of names to all objects that no earlier group reached. Returns the
        references that led to objects of an earlier group: these are shared with it.
        """
        self._groups += 1
        self._check_time()
        shared = []
        waiting = collections.deque(roots)
        while waiting and self._is_in_time:
            reference = waiting.popleft()
            # Of an object that was not reached before, this group.
            group = self._group_of.get(id(reference.value), self._groups)
            if group != self._groups:
                shared.append(reference)
            waiting.extend(self._next(reference))
        return shared

    def _check_time(self) -> None:
        """Stop the walk where it has reached its limit of objects or of time."""
        if len(self._group_of) > MOST_OBJECTS or time.thread_time() > self._ends_at:
            self._is_in_time = False

    def _next(self, reference: Reference) -> Iterable[Reference]:
        """The objects to which an object refers; none where it was walked before or is plain. Notes
        a tensor in ``reached``.
        """
        key = id(reference.value)
        if key in self._group_of or is_plain(reference.value):
            return ()
        self._group_of[key] = self._groups
        count = len(self._group_of)
        if count > MOST_OBJECTS or count % OBJECTS_BETWEEN_CLOCKS == 0:
            self._check_time()
        if key not in self.storages:
            return inside(reference)
        self.reached[key] = reference
        return inside_tensor(reference)
