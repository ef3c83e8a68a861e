"""The highest counters of each card, also where the program resets them on its way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType

RESETS = "_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"
"""torch's own functions, in torch._C, behind torch.cuda.reset_peak_memory_stats and its like."""


class PeaksBeforeReset:
    """What torch's counters of each card had reached when the program reset them."""

    def __init__(self) -> None:
        self.by_device: dict[int, dict[str, int]] = {}

    def watch(self, torch: ModuleType) -> None:
        """Note the counters from now on before each reset."""
        for name in RESETS:
            reset = getattr(torch._C, name, None)
            if reset is not None:
                setattr(torch._C, name, self.noting(torch, reset))

    def noting(
        self, torch: ModuleType, reset: Callable[[int], None]
    ) -> Callable[[int], None]:
        """The reset, with the counters noted before."""

        @functools.wraps(reset)
        def note_and_reset(device: int) -> None:
            stats = torch.cuda.memory_stats(device)
            self.by_device[device] = self.highest(device, stats)
            reset(device)

        return note_and_reset

    def highest(self, device: int, stats: Mapping[str, int]) -> dict[str, int]:
        """The peaks among these counters, or the higher ones that were noted before."""
        noted = self.by_device.get(device, {})
        return {
            name: max(value, noted.get(name, 0))
            for name, value in stats.items()
            if name.endswith(".peak")
        }
