"""What an allocator study replays: a recorded trace, or a pattern, and on a live GPU nobody else uses the pattern for real."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.allocator import trace as traces
from helpers.allocator.driver import Card
from helpers.allocator.recorded import circumstances, with_record
from helpers.allocator.replay import replay
from helpers.allocator.trace import Trace
from helpers.load.box import is_this_box, torch_interpreter
from helpers.load.patterns import PATTERNS, generate
from helpers.load.stress import StressResult, stress
from helpers.load.targets import gpu_targets
from helpers.look.bundle import Bundle
from helpers.look.gpus import gpus
from helpers.look.kernel_log import events
from helpers.look.reading import parse_size, show_bytes

BUNDLED = Path(__file__).resolve().parents[2] / "env" / "traces"
CPU_STEP = "cpu-training-step"
LIVE_SECONDS = 60.0


@dataclass(frozen=True)
class Study:
    """One trace with the card, release, build and settings it is studied under. ``recorded``: by a GPU, not made up;
    ``own``: a file that was given, no pattern or example of the workbook's."""

    name: str
    trace: Trace
    card: Card
    torch: str
    build: str
    conf: str
    fraction: float | None
    recorded: bool
    notes: tuple[str, ...]
    own: bool = False

    @property
    def words(self) -> str:
        """The study in one line."""
        label = self.trace.header.get("label") or "label unknown"
        return (f"{self.name}: {len(self.trace)} operations ({label}) on a card of {show_bytes(self.card.capacity_bytes)}, "
                f"torch {self.torch}, {self.build}, {self.conf or 'default settings'}")


def study(source: str, *, capacity: str = "", conf: str = "", torch: str = "", build: str = "", seed: int = 0) -> Study:
    """The study of a pattern, of a trace in env/traces by its name, or of a trace file.

    capacity is a size such as 20GiB; empty takes the trace's own. Raises ValueError (TraceError) in one line.
    """
    bundled = {path.stem: path for path in sorted(BUNDLED.glob("*.parquet"))}
    if source in PATTERNS:
        trace = generate(source, seed=seed)
    elif source in bundled:
        trace = traces.read(bundled[source])
    elif Path(source).is_file():
        trace = with_record(traces.read(source), Path(source))
    else:
        raise ValueError(f"trace {source!r}: expected a file, a pattern ({', '.join(PATTERNS)}) or a bundled trace "
                         f"({', '.join(bundled) or 'none'})")
    known = circumstances(trace)
    size = parse_size(capacity) if capacity else known.capacity_bytes
    if size <= 0:
        raise ValueError(f"trace {Path(source).name}: it does not say how large the card was; give capacity, such as 20GiB")
    own = source not in PATTERNS and source not in bundled
    recorded = "GPU" in str(trace.header.get("label"))
    return Study(Path(source).stem, trace, Card(size, known.held_bytes), torch or known.torch, build or known.build,
                 conf or known.conf, known.fraction, recorded, (*trace.notes, *known.notes), own)


def live(bundle: Bundle, wanted: Study, limit: str) -> tuple[StressResult, list[list[str]]]:
    """The pattern carried out on this box's first free GPU within a limit, and its figures beside the model's.

    A box that is not this machine, has no GPU or whose GPUs are in use is left alone; the result says why.
    """
    if not limit:
        return _not_run("no limit was given, so nothing was loaded")
    if not is_this_box(bundle):
        return _not_run(f"{bundle.box} is not this machine, or not since it booted")
    targets = gpu_targets(gpus(bundle), [event for event in events(bundle) if event.boot == 0])
    free = [target for target in targets if target.visible_variable and not target.refused]
    if not free:
        return _not_run("; ".join(target.refused for target in targets if target.refused) or "this box has no GPU")
    done = stress(torch_interpreter(), wanted.trace, min(parse_size(limit), wanted.card.capacity_bytes), LIVE_SECONDS,
                  conf=wanted.conf, rows=True, env={free[0].visible_variable: free[0].visible_value})
    if done.status not in ("ok", "time"):
        return done, [["the card", "not available because", done.why]]
    model = replay(wanted.trace, wanted.conf, Card(done.total_bytes), torch=done.torch, build=done.build,
                   fraction=done.fraction, timeline=True, stop=done.done)
    real = {"operations": done.done, "requests that failed": done.ooms,
            "peak reserved": done.stats.get("reserved_bytes.all.peak"), "retries": done.stats.get("num_alloc_retries")}
    said = {"operations": model.events, "requests that failed": model.ooms, "peak reserved": model.peak_reserved_bytes,
            "retries": model.counter("num_alloc_retries")}
    same = sum((allocated, reserved) == (int(model.column("allocated")[index]), int(model.column("reserved")[index]))
               for index, how, allocated, reserved in done.rows if how != "left_out")
    table = [[name, str(said[name]), str(real[name])] for name in real]
    return done, [*table, ["operations with equal bytes", str(len(done.rows)), str(same)]]


def _not_run(why: str) -> tuple[StressResult, list[list[str]]]:
    return StressResult("not_available", why), [["the card", "not available because", why]]
