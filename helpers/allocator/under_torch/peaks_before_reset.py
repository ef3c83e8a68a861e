"""Keeps the peaks of torch's counters that a program resets while it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType

RESETS = "_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"
"""The functions of torch._C that torch.cuda.reset_peak_memory_stats and torch.accelerator's call.
"""


class PeaksBeforeReset:
    """``by_device``: for each card, by its index, the peaks of its counters at all resets so far."""

    def __init__(self) -> None:
        self.by_device: dict[int, dict[str, int]] = {}

    def watch(self, torch: ModuleType) -> None:
        """From now on note the counters before each reset. A torch without one of RESETS has no
        such reset to watch.
        """
        for name in RESETS:
            reset = getattr(torch._C, name, None)
            if reset is not None:
                setattr(torch._C, name, self._noting(torch, reset))

    def _noting(
        self, torch: ModuleType, reset: Callable[[int], None]
    ) -> Callable[[int], None]:
        """A function that notes the counters and then resets them."""

        @functools.wraps(reset)
        def note_and_reset(device: int) -> None:
            stats = torch.cuda.memory_stats(device)
            self.by_device[device] = self.highest(device, stats)
            reset(device)

        return note_and_reset

    def highest(self, device: int, stats: Mapping[str, int]) -> dict[str, int]:
        """The peaks among these counters of a card (names that end in ".peak"), each the higher one
        of its value now and the value noted at resets so far.
        """
        noted = self.by_device.get(device, {})
        return {
            name: max(value, noted.get(name, 0))
            for name, value in stats.items()
            if name.endswith(".peak")
        }
