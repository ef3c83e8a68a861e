"""How many trades at a time are right here? As many as fit the free memory, and no more than the cache likes.

Trades are counted, not sessions: neighbouring real sessions differ 8 to 1 in length.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.load.vpoc.memory import Shape, per_trade_bytes, predicted_bytes, size_of
from helpers.load.vpoc.strategies import STRATEGIES
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.files import read
from helpers.look.machine import FILES, cgroup_files, machine
from helpers.look.reading import MIB, Reading

SHARE = 0.8
"""Of the free memory; the rest is for what others take meanwhile, and for a heap's own rounding."""
LEAST_TRADES = 1 << 16
"""Below this the calls cost more than the counting; memory goes before it."""
GPU_CHUNK_BYTES = 64 * MIB
"""Ample for a GPU's full bandwidth (computed from launch time and bandwidth, not measured)."""


class PlanError(ValueError):
    """What is to be counted does not fit, whatever the chunk: one line with what would."""


@dataclass(frozen=True)
class Free:
    """Free memory and the limit that says so; ``cache_bytes`` is the last cache's size (0: not known, or a GPU)."""

    bytes: int
    says: str
    cache_bytes: int = 0
    gpu: bool = False


@dataclass(frozen=True)
class Plan:
    """``chunk_trades`` trades at a time; ``bound``: memory, cache, or all (the trades are fewer). ``says`` is the sentence."""

    strategy: str
    chunk_trades: int
    chunks: int
    bound: str
    peak_bytes: int
    free: Free

    @property
    def says(self) -> str:
        why = {
            "memory": "more would not fit",
            "cache": "more would leave the cache",
            "all": "that is all",
        }[self.bound]
        return (
            f"{self.strategy}: {self.chunk_trades} trades at a time in {self.chunks} chunks ({why}); at most "
            f"{self.peak_bytes / MIB:.1f} MiB beyond the inputs; {self.free.bytes / MIB:.0f} MiB free ({self.free.says})"
        )


def plan(strategy: str, shape: Shape, free: Free, inputs_resident: bool = True) -> Plan:
    """The chunk for a strategy. ``inputs_resident``: the inputs already take their memory, so that ``free`` is without them.

    Raises PlanError where not even one trade at a time would fit; for a strategy that takes all at once that is all trades.
    """
    budget = int(free.bytes * SHARE) - (
        0 if inputs_resident else shape.trades * shape.bytes_a_trade
    )
    trades = max(1, shape.trades)

    def peak(chunk: int) -> int:
        # A GPU reserves in pieces of 2 MiB, and 20 MiB for the middling sizes: every buffer may be rounded up to that.
        return predicted_bytes(strategy, shape, chunk) + 4 * 20 * MIB * free.gpu

    least = 1 if STRATEGIES[strategy].chunked else trades
    if peak(least) > budget:
        need, what = (
            peak(least),
            "one trade at a time" if least == 1 else "all trades at once, as it does,",
        )
        raise PlanError(
            f"{strategy} with {what} needs {need / MIB:.1f} MiB and {max(0, budget) / MIB:.1f} MiB may be taken "
            f"({free.says}): stream the file with stream_read, or count fewer sessions at a time"
        )
    if not STRATEGIES[strategy].chunked:
        return Plan(strategy, trades, 1, "all", peak(trades), free)
    low, high = 1, trades
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if peak(middle) <= budget else (low, middle - 1)
    each = max(1, per_trade_bytes(strategy, shape) + size_of(shape.price))
    fast = GPU_CHUNK_BYTES if free.gpu else free.cache_bytes // 2
    liked = max(LEAST_TRADES, fast // each) if fast else trades
    chunk, bound = (low, "all" if low == trades else "memory") if low <= liked else (liked, "cache")
    return Plan(strategy, chunk, -(-trades // chunk), bound, peak(chunk), free)


def free_here(root: Path = Path("/")) -> Free:
    """What this process may still take: the least of available RAM, its control groups' rest, and RLIMIT_DATA and RLIMIT_AS."""
    facts = machine(_bundle(root))
    found = [
        (one, says)
        for one, says in (
            (_bytes(facts.ram_available), "available RAM"),
            (_rest(facts.cgroup_limit, facts.cgroup_used), "the memory control group's rest"),
            (
                _rest(facts.cgroup_high, facts.cgroup_used),
                "the control group's rest up to memory.high",
            ),
            *_limits(),
        )
        if one is not None
    ]
    least, says = min(found, default=(0, "nothing says how much memory is free"))
    return Free(max(0, least), says, cache_bytes(root))


def free_on(device_free_bytes: int, device: str) -> Free:
    """Free memory of a GPU, as torch or the driver tells it."""
    return Free(device_free_bytes, f"free on {device}", 0, True)


def cache_bytes(root: Path = Path("/")) -> int:
    """The size of the last level of cache that the first core has; 0 where the kernel does not tell."""
    sizes = []
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
    return max(sizes, default=0)


def _bundle(root: Path) -> Bundle:
    writer = BundleWriter("this box", "live", "", "")
    for source in {*FILES, *cgroup_files(root)}:
        content, status, why = read(str(root), source)
        writer.add("file", source, content, status=status, why=why)
    return writer.bundle()


def _bytes(reading: Reading) -> int | None:
    return int(reading.value or 0) if reading.ok else None


def _rest(limit: Reading, used: Reading) -> int | None:
    most, now = _bytes(limit), _bytes(used)
    return None if most is None or now is None else most - now


def _limits() -> list[tuple[int | None, str]]:
    import resource

    fields = {
        line.split(":")[0]: line.split()
        for line in Path("/proc/self/status").read_text().splitlines()
    }
    found: list[tuple[int | None, str]] = []
    for kind, field, name in (
        (resource.RLIMIT_DATA, "VmData", "RLIMIT_DATA"),
        (resource.RLIMIT_AS, "VmSize", "RLIMIT_AS"),
    ):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            found.append((limit - int(fields[field][1]) * 1024, f"{name}'s rest"))
    return found


def curve(strategy: str, shape: Shape, chunks: list[int]) -> list[dict[str, int]]:
    """Predicted peak at each chunk size, for the figure of chunk sizes."""
    return [
        {"chunk_trades": c, "predicted_bytes": predicted_bytes(strategy, shape, c)} for c in chunks
    ]
