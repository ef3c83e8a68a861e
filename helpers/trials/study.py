"""What an allocator study replays: a recorded trace or a pattern; and on a live GPU nobody else
uses, carried out for real.

A live run is torch's own, in a child process within a limit, and its figures stand beside the
model's.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from helpers.allocator.driver import Card
from helpers.allocator.engine import replay
from helpers.allocator.load import read
from helpers.allocator.outcome import Outcome
from helpers.allocator.recorded import circumstances, with_record
from helpers.allocator.trace import STREAM_STEP, Op, Trace, program_lines
from helpers.ground.child import CHECKOUT, Transcript, program, transcript
from helpers.ground.units import MIB, parse_size, show_bytes
from helpers.look.bundle import Bundle, is_this_box
from helpers.settings.table import CONF_NAMES
from helpers.trials.targets import CPU, Target, environment, free_targets, torch_interpreter

BUNDLED = CHECKOUT / "env" / "traces"
CPU_STEP = "cpu-training-step"
LIVE_SECONDS = 60.0
PROGRAM = "helpers.trials.under_torch.stress"
# Python, import torch, driver start; and the end: statistics, a snapshot of every event, giving
# the memory back.
START_S = 90.0
END_S = 60.0


@dataclass(frozen=True)
class Study:
    """One trace with the card, release, build and settings it is studied under.

    ``recorded``: by a GPU, not made up; ``own``: a file that was given, no pattern or example
    of the workbook's.
    """

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
        card = f"a card of {show_bytes(self.card.capacity_bytes)}"
        under = f"torch {self.torch}, {self.build}, {self.conf or 'default settings'}"
        return f"{self.name}: {len(self.trace)} operations ({label}) on {card}, {under}"


def study(
    source: str,
    *,
    capacity: str = "",
    conf: str = "",
    torch: str = "",
    build: str = "",
    seed: int = 0,
) -> Study:
    """The study of a pattern, of a trace in env/traces by its name, or of a trace file.

    capacity is a size such as 20GiB; empty takes the trace's own. Raises ValueError
    (TraceError) in one line.
    """
    bundled = {path.stem: path for path in sorted(BUNDLED.glob("*.parquet"))}
    if source in PATTERNS:
        trace = generate(source, seed=seed)
    elif source in bundled:
        trace = read(bundled[source])
    elif Path(source).is_file():
        trace = with_record(read(source), Path(source))
    else:
        names = f"a pattern ({', '.join(PATTERNS)}) or a bundled trace ({', '.join(bundled)})"
        raise ValueError(f"trace {source!r}: expected a file, {names}")
    known = circumstances(trace)
    size = parse_size(capacity) if capacity else known.capacity_bytes
    if size <= 0:
        expected = "it does not say how large the card was; give capacity, such as 20GiB"
        raise ValueError(f"trace {Path(source).name}: {expected}")
    return Study(
        name=Path(source).stem,
        trace=trace,
        card=Card(size, known.held_bytes),
        torch=torch or known.torch,
        build=build or known.build,
        conf=conf or known.conf,
        fraction=known.fraction,
        recorded="GPU" in str(trace.header.get("label")),
        notes=(*trace.notes, *known.notes),
        own=source not in PATTERNS and source not in bundled,
    )


def live(bundle: Bundle, wanted: Study, limit: str) -> tuple[StressResult, list[list[str]]]:
    """The pattern carried out on this box's first free GPU within a limit, and its figures
    beside the model's.

    A box that is not this machine, has no GPU or whose GPUs are in use is left alone: no
    figures, and the result says why.
    """
    why = ""
    target = CPU
    if not limit:
        why = "no limit was given, so nothing was loaded"
    elif not is_this_box(bundle):
        why = f"{bundle.box} is not this machine, or not since it booted"
    else:
        free, why = free_targets(bundle)
        target = next(iter(free), CPU)
    done = StressResult("not_available", why)
    if not why:
        most = min(parse_size(limit), wanted.card.capacity_bytes)
        how: dict[str, Any] = {"conf": wanted.conf, "rows": True, "target": target}
        done = stress(torch_interpreter(), wanted.trace, most, LIVE_SECONDS, **how)
    if done.status not in ("ok", "time"):
        return done, []
    model = done.replayed(wanted.trace, wanted.conf)
    figures = {
        "operations": (model.events, done.done),
        "requests that failed": (model.ooms, done.ooms),
        "bytes reserved at most": (
            model.peak_reserved_bytes,
            done.stats.get("reserved_bytes.all.peak"),
        ),
        "retries": (model.counter("num_alloc_retries"), done.stats.get("num_alloc_retries")),
    }
    rows = [[name, str(said), str(real)] for name, (said, real) in figures.items()]
    bytes_of = (model.column("allocated").tolist(), model.column("reserved").tolist())
    sizes = list(zip(*bytes_of, strict=True))
    same = sum(sizes[i] == tuple(real) for i, how, *real in done.rows if how != "left_out")
    return done, [*rows, ["operations with equal bytes", str(len(done.rows)), str(same)]]


# On a real GPU.


@dataclass(frozen=True)
class StressResult:
    """What a stress run did. Sizes are bytes.

    ``status``: ok, time (stopped after its seconds), not_available, failed (torch or the driver
    raised an error), crashed, timed_out, or stuck (left behind in the kernel); ``why`` says it
    in words. ``done`` operations were carried out, with ``ooms`` failed allocations and
    ``skipped`` frees of those; ``left_out`` counts what a real GPU cannot do. ``stats`` are
    torch.cuda.memory_stats at the end. ``rows``: [index, ok|oom|skipped|left_out, allocated,
    reserved] where wanted. ``fraction`` is the limit as torch got it: a replay that is to be
    compared takes ``total_bytes`` and this. ``streams``: the handle of each stream's number.
    ``build``: cuda or rocm.
    """

    status: str
    why: str
    done: int = 0
    ooms: int = 0
    skipped: int = 0
    stats: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[tuple[int, str, int, int], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[int, int] = field(default_factory=dict)
    torch: str = ""
    build: str = ""
    device: str = ""
    total_bytes: int = 0
    limit_bytes: int = 0
    fraction: float = 0.0
    snapshot: Path | None = None

    def replayed(self, trace: Trace, conf: str) -> Outcome:
        """The model's answer to the operations that were carried out, on the same card within
        the same limit.
        """
        of = {"torch": self.torch, "build": self.build, "fraction": self.fraction}
        card = Card(self.total_bytes)
        return replay(trace, conf, card, **of, timeline=True, stop=self.done)  # type: ignore[arg-type]


def stress(
    python: str,
    trace: Trace,
    limit_bytes: int | None = None,
    seconds: float = 60.0,
    *,
    conf: str = "",
    snapshot: Path | None = None,
    rows: bool = False,
    target: Target = CPU,
) -> StressResult:
    """Carry out a trace on the target, or on the first GPU that ``python``'s torch sees, under
    ``conf`` and no other settings.

    ``limit_bytes``: hold at most this, by default 80 % of what is free. ``snapshot``: where
    torch's snapshot goes at the end. Raises ValueError for a limit or a time that is not above
    0 and for a trace that begins in the middle of a program.
    """
    for name, value in (("limit_bytes", limit_bytes), ("seconds", seconds)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value!r}: expected a number above 0")
    if not shutil.which(python):
        return StressResult("not_available", f"there is no Python at {python}")
    with tempfile.TemporaryDirectory(prefix="casebook-stress-") as scratch:
        operations = Path(scratch) / "operations.jsonl"
        with operations.open("w") as file:
            file.writelines(json.dumps(op) + "\n" for op in program_lines(trace))
        spec = {"operations": str(operations), "seconds": seconds, "limit_bytes": limit_bytes}
        spec |= {"snapshot": str(snapshot.resolve()) if snapshot else "", "rows": rows}
        argv = program(python, PROGRAM, json.dumps(spec))
        # Each build and version reads another of these names; all get the same.
        confs = dict.fromkeys(CONF_NAMES, conf) if conf else {}
        more = environment(target, more={**confs, "TMPDIR": scratch})
        then_s = {"ready": seconds + END_S, "end": END_S}
        return _result(transcript(argv, START_S, then_s, env=more, cwd=scratch))


def _result(told: Transcript) -> StressResult:
    ready = told.last("ready")
    end = told.last("end")
    ended = told.ended
    known = {one.name for one in fields(StressResult)} - {"snapshot", "streams", "rows"}
    values = {"why": "", **{key: value for key, value in {**ready, **end}.items() if key in known}}
    if not end:
        status = {"exited": "failed", "signalled": "crashed"}.get(ended.how, ended.how)
        how = f"the child did not tell its end ({ended.signal or ended.exit_code})"
        values |= {"status": status, "why": f"{how}: {ended.last_line}"}
    elif ended.how != "exited":
        how = ended.signal or ended.how
        values["why"] = f"afterwards the child ended otherwise than by itself ({how})"
    batches = (row["rows"] for row in told.rows if row["event"] == "rows")
    return StressResult(
        **values,
        rows=tuple(tuple(row) for batch in batches for row in batch),
        streams={int(number): handle for number, handle in end.get("streams", {}).items()},
        snapshot=Path(end["snapshot"]) if end.get("snapshot") else None,
    )


# What do programs that run out of memory ask of the allocator, in order? Five stress patterns,
# in their own terms, as traces.
#
# Each writes its requests to a Tape. The first line of its docstring is what it shows; its
# parameters, ``p``, stand in patterns.json. The traces are seeded, and the same on every
# machine.


class Tape:
    """The requests of one program as it makes them.

    ``round`` is the batch, trial, chunk or step that it is at.

    Of the random generator only ``random()`` is used and no logarithm is taken, so that every
    machine and Python gets the same.
    """

    def __init__(self, name: str, seed: int):
        self.name = name
        # A text seeds by SHA-512, the same in every Python since 3.2.
        self.rng = random.Random(f"{name}/{seed}")
        self.round = 0
        self._streams: list[int] = []
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._frames: dict[str, int] = {}

    def alloc(self, what: str, size_bytes: float, stream: int = 0) -> int:
        """One tensor: its id. At least one element of 4 bytes is asked for."""
        frame = self._frames.setdefault(f"{self.name}:{self.round} {what}", len(self._frames))
        self._streams.append(stream * STREAM_STEP)
        made = len(self._streams) - 1
        self._rows.append((Op.ALLOC, made, max(4, int(size_bytes)), self._streams[made], frame))
        return made

    def free(self, *ids: int) -> None:
        self._rows += [(Op.FREE, i, 0, self._streams[i], -1) for i in ids]

    def empty_cache(self) -> None:
        self._rows.append((Op.EMPTY_CACHE, -1, 0, 0, -1))

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count`` - 1."""
        return int(self.rng.random() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def octave(self, low_bytes: int, high_bytes: int) -> int:
        """A size from ``low_bytes`` to below ``high_bytes`` whose powers of two are equally
        likely.
        """
        octaves = max(1, (high_bytes // low_bytes).bit_length() - 1)
        low_bytes <<= self.below(octaves)
        return min(high_bytes - 1, int(low_bytes * (1 + self.rng.random())))

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def trace(self, header: dict[str, Any]) -> Trace:
        op, ids, sizes, streams, frames = zip(*self._rows, strict=True)
        return Trace(
            op=np.array(op, np.int8),
            id=np.array(ids, np.int64),
            size=np.array(sizes, np.int64),
            stream=np.array(streams, np.int64),
            pool=np.zeros(len(op), np.int32),
            frame=np.array(frames, np.int32),
            frames=tuple((text,) for text in self._frames),
            header=header,
        )


def volume_profiles(t: Tape, p: Any) -> None:
    """Chunks padded to their longest session: whole segments of ever other sizes stay cached
    beside a small list to be joined.

    A chunk loads price and volume [chunk, longest], makes int64 bin numbers and a mask of the
    same shape, then for each session a histogram with its temporaries; the rows are stacked,
    searched for their POC and value area, and appended to a list that one final cat joins.
    """
    profiles = []
    pocs = []
    for t.round, first in enumerate(range(0, p.sessions, p.chunk_sessions)):
        count = min(p.chunk_sessions, p.sessions - first)
        # The sum of three draws: most sessions are of middling length, a few very long, and the
        # longest sets the padding.
        spread = p.high_ticks - p.low_ticks
        ticks = [
            p.low_ticks + int(spread * (t.rng.random() * t.rng.random() * t.rng.random()))
            for _ in range(count)
        ]
        cells = count * max(ticks)
        price = t.alloc("price", cells * 4)
        volume = t.alloc("volume", cells * 4)
        scaled = t.alloc("price_in_bins", cells * 4)
        index = t.alloc("bin_numbers", cells * 8)
        t.free(scaled)
        mask = t.alloc("padding_mask", cells)
        rows = []
        for length in ticks:
            used = t.alloc("session_bins", length * 8)
            weight = t.alloc("session_volume", length * 4)
            rows.append(t.alloc("session_profile", p.bins * 4))
            t.free(used, weight)
        profiles.append(t.alloc("chunk_profile", count * p.bins * 4))
        t.free(*rows, mask, index, volume, price)
        order = t.alloc("sorted_order", count * p.bins * 8)
        ranked = t.alloc("sorted_volume", count * p.bins * 4)
        share = t.alloc("cumulative_share", count * p.bins * 4)
        pocs.append(t.alloc("chunk_poc", count * 8))
        t.free(order, ranked, share)
    t.alloc("all_profiles", p.sessions * p.bins * 4)
    t.alloc("all_pocs", p.sessions * 8)
    t.free(*profiles, *pocs)


def growing_batches(t: Tape, p: Any) -> None:
    """Batches of growing length whose kept outputs split the segments that the longer next
    batch can no longer use.

    A transformer in bf16 with fp32 Adam and gradient checkpointing (the backward pass makes
    each layer's activations again); of every batch the last hidden state is kept in fp32
    (``kept_share`` of it) for the end of the epoch. Nothing that is freed fits the next batch,
    and a kept output in a freed segment stops its release. ``batch`` is in sequences, lengths
    in tokens.

    Measured on the real allocator (torch 2.6.0, 2.11.0, 2.13.0 and 2.14.1, card of 20 GiB): by
    default it runs out of memory in batch 41 to 43, counted from 0, with allocated and request
    together below 16 GiB (2.14.1, seeds 0 to 19). All batches pass with expandable_segments
    (seeds 0 to 19) and with max_split_size_mb:128 (0 and 1); roundup_power2_divisions:4 and
    garbage_collection_threshold:0.8 under a fraction put the end off by 1 to 3 batches (0 and
    1).
    """
    parameter_bytes = 12 * p.hidden * p.hidden * 2
    for _ in range(p.layers):
        t.alloc("weights", parameter_bytes)
    for t.round in range(p.batches):
        state = (
            p.batch * (p.first_length + t.round * p.growth + t.below(p.length_noise)) * p.hidden * 2
        )
        inputs = []
        for _ in range(p.layers):
            inputs.append(t.alloc("layer_input", state))
            t.free(*_layer_activations(t, state))
        output = t.alloc("output_fp32", 2 * state)
        t.alloc("kept_output", 2 * state * p.kept_share)
        back = t.alloc("gradient", state)
        t.free(output)
        gradients = []
        for _ in range(p.layers):
            activations = [inputs.pop(), *_layer_activations(t, state)]
            first = t.alloc("mlp_gradient", 4 * state)
            second = t.alloc("mlp_gradient", 4 * state)
            t.free(first)
            third = t.alloc("qkv_gradient", 3 * state)
            t.free(second)
            gradients.append(t.alloc("weight_gradient", parameter_bytes))
            before = t.alloc("gradient", state)
            t.free(third, back, *reversed(activations))
            back = before
        t.free(back)
        if not t.round:
            for _ in range(p.layers):
                t.alloc("adam_mean", 2 * parameter_bytes)
                t.alloc("adam_variance", 2 * parameter_bytes)
        t.free(*gradients)


def _layer_activations(t: Tape, state: int) -> list[int]:
    widths = {"qkv": 3, "attention_output": 1, "mlp_hidden": 4, "mlp_activation": 4}
    return [t.alloc(what, state * width) for what, width in widths.items()]


def tuning_trials(t: Tape, p: Any) -> None:
    """Models of other widths and depths one after another, where the best state and a leak here
    and there outlive their trial.

    A trial has linear layers in fp32 under Adam and a few steps; the best so far is copied and
    kept instead of the one before; a leak keeps one activation for good (a loss appended with
    its graph). Some trials end with empty_cache.
    """
    best: list[int] = []
    best_score = 0.0
    for t.round in range(p.trials):
        width = (256, 384, 512, 777, 1024, 1536, 2048, 3000, 4096)[t.below(9)]
        depth = t.between(2, 8)
        rows = (64, 100, 256, 512, 1000, 4096)[t.below(6)]
        shapes = [width * width * 4] * depth
        params = [t.alloc("weight", size) for size in shapes]
        params += [t.alloc("bias", width * 4) for _ in shapes]
        state: list[int] = []
        for step in range(p.steps):
            x = t.alloc("inputs", rows * width * 4)
            acts = [t.alloc("activation", rows * width * 4) for _ in shapes]
            loss = t.alloc("loss", 4)
            grads = []
            for size in shapes:
                back = t.alloc("activation_gradient", rows * width * 4)
                grads.append(t.alloc("weight_gradient", size))
                t.free(acts.pop(), back)
            for size in shapes if not step else ():
                state += [t.alloc("adam_mean", size), t.alloc("adam_variance", size)]
            t.free(loss, x, *grads)
            if step == p.steps - 1 and t.chance(p.leak_share):
                t.alloc("leaked_activation", rows * width * 4)
        score = t.rng.random()
        if score > best_score:
            kept = [t.alloc("best_state", size) for size in shapes]
            t.free(*best)
            best = kept
            best_score = score
        t.free(*params, *state)
        if t.chance(p.empty_cache_share):
            t.empty_cache()


def mixed_survivors(t: Tape, p: Any) -> None:
    """Large and small requests mixed, where a few that never die each hold a whole segment back
    from being released.

    Sizes from 256 B to 256 MiB with equally likely powers of two; lives from a few requests to
    thousands. A share is made on a copy stream, whose cached memory the main stream cannot use.
    """
    dying: list[tuple[int, int]] = []
    held = 0
    for t.round in range(p.requests):
        small = t.chance(0.5)
        size = t.octave(256, MIB) if small else t.octave(MIB, 256 * MIB)
        while dying and held + size > p.live_bytes:
            i, freed = dying.pop(t.below(len(dying)))
            t.free(i)
            held -= freed
        stream = 1 if t.chance(p.copy_stream_share) else 0
        survives = t.chance(p.survivor_share) and size < 16 * MIB
        i = t.alloc("survivor" if survives else "small" if small else "large", size, stream)
        if not survives:
            dying.append((i, size))
            held += size
        if dying and t.chance(0.45):
            # Half of the time the youngest: most tensors die young.
            i, freed = dying.pop() if t.chance(0.5) else dying.pop(t.below(len(dying)))
            t.free(i)
            held -= freed


def key_value_cache(t: Tape, p: Any) -> None:
    """Inference whose key/value caches are made anew one token longer at every step, for
    requests that come and go.

    bf16, keys and values [tokens, kv_width] for each layer and request, grown by cat: for a
    moment the old and the new exist. ``at_once`` requests are served together; a finished one
    leaves holes of its own length.
    """
    waiting = [
        (t.between(p.low_prompt, p.high_prompt), t.between(p.low_answer, p.high_answer))
        for _ in range(p.requests)
    ]
    for layer in range(p.layers):
        t.alloc(f"weights_{layer}", 12 * p.kv_width * p.kv_width * 2)
    serving: list[tuple[int, int, list[int]]] = []
    while waiting or serving:
        t.round += 1
        while waiting and len(serving) < p.at_once:
            tokens, answer = waiting.pop(0)
            caches = []
            for _ in range(p.layers):
                hidden = t.alloc("prompt_hidden", tokens * p.kv_width * 2)
                caches.append(t.alloc("keys", tokens * p.kv_width * 2))
                caches.append(t.alloc("values", tokens * p.kv_width * 2))
                t.free(hidden)
            serving.append((tokens, answer, caches))
        for at, (tokens, answer, caches) in enumerate(serving):
            serving[at] = tokens + 1, answer - 1, caches
            for layer in range(p.layers):
                for cache, what in ((2 * layer, "keys"), (2 * layer + 1, "values")):
                    longer = t.alloc(what, (tokens + 1) * p.kv_width * 2)
                    t.free(caches[cache])
                    caches[cache] = longer
                scores = t.alloc("attention_scores", 32 * (tokens + 1) * 4)
                t.free(scores, t.alloc("attention_output", p.kv_width * 2))
        for _, answer, caches in serving:
            t.free(*caches if not answer else ())
        serving = [served for served in serving if served[1]]


# The table of patterns, and a trace of one.

PATTERNS: Mapping[str, Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("patterns.json").read_text(encoding="utf-8")
)
"""The programs by name, each with the bytes of the card that it is made for, and its parameters."""
_PROGRAMS = (volume_profiles, growing_batches, tuning_trials, mixed_survivors, key_value_cache)
PROGRAMS: Mapping[str, Callable[..., None]] = {one.__name__: one for one in _PROGRAMS}


def generate(name: str, seed: int = 0, **changed: int | float) -> Trace:
    """The trace of a pattern: what it asks for in order, each request with the frame
    "pattern:round what".

    ``changed`` replaces defaults of its parameters.
    """
    known = PATTERNS[name]
    tape = Tape(name, seed)
    chosen = {**known["parameters"], **changed}
    PROGRAMS[name](tape, SimpleNamespace(**chosen))
    header = {"label": "generated", "pattern": name, "seed": seed, "scale": 1.0}
    more = {"parameters": chosen, "conf": "", "vram": known["card_bytes"]}
    return tape.trace({**header, **more})
