"""The figures that torch.cuda.memory_stats keeps: current, peak, allocated and freed, per pool."""

from __future__ import annotations

NAMES = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
         "inactive_split_bytes", "requested_bytes")
COUNTERS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "num_sync_all_streams",
            "num_oom_rejections")
POOLS = ("all", "small_pool", "large_pool")


class Stat:
    """One figure: [current, peak, allocated, freed]."""

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def change(self, amount: int) -> None:
        self.current += amount
        if amount >= 0:
            self.peak = max(self.peak, self.current)
            self.allocated += amount
        else:
            self.freed -= amount

    def row(self) -> list[int]:
        return [self.current, self.peak, self.allocated, self.freed]


class Statistics:
    """All figures of one device."""

    def __init__(self) -> None:
        self.stats = {name: {pool: Stat() for pool in POOLS} for name in NAMES}
        self.oversize_allocations = Stat()
        self.oversize_segments = Stat()
        self.counters = dict.fromkeys(COUNTERS, 0)

    def change(self, small: bool, **amounts: int) -> None:
        """Add to (or take from) the named figures, for all pools together and for the small or large one."""
        for name, amount in amounts.items():
            figures = self.stats[name]
            figures["all"].change(amount)
            figures["small_pool" if small else "large_pool"].change(amount)

    def current(self, name: str, pool: str = "all") -> int:
        return self.stats[name][pool].current

    def peak(self, name: str, pool: str = "all") -> int:
        return self.stats[name][pool].peak

    def reset_peak(self) -> None:
        for figures in [*self.stats.values(), {"": self.oversize_allocations}, {"": self.oversize_segments}]:
            for stat in figures.values():
                stat.peak = stat.current

    def row(self) -> dict:
        """The figures after an operation, in the words of the oracle's result lines."""
        return {"alloc": self.current("allocated_bytes"), "res": self.current("reserved_bytes"),
                "act": self.current("active_bytes"), "req": self.current("requested_bytes"),
                "isplit": self.current("inactive_split_bytes"),
                "n": [self.current(name) for name in ("allocation", "active", "segment", "inactive_split")],
                "c": list(self.counters.values())}

    def final(self) -> dict:
        """Every figure, in the words of the oracle's last line."""
        return {**self.counters, **{name: {pool: stat.row() for pool, stat in pools.items()}
                                    for name, pools in self.stats.items()},
                "oversize_allocations": self.oversize_allocations.row(), "oversize_segments": self.oversize_segments.row()}
