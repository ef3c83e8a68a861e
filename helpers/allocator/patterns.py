"""What programs that run out of memory ask of the allocator, in order: three patterns as traces.

Each program writes its requests to a Tape. The first line of its docstring says what it shows;
its parameters, ``p``, stand in patterns.json. The traces are seeded, and the same on every
machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helpers.allocator.trace import Op, Trace, trace_of_rows


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
        self._count = 0
        self._rows: list[tuple[int, int, int, int]] = []
        self._frames: dict[str, int] = {}

    def alloc(self, tensor: str, size_bytes: float) -> int:
        """One tensor: its id. At least one element of 4 bytes is asked for."""
        frame = self._frames.setdefault(
            f"{self.name}:{self.round} {tensor}", len(self._frames)
        )
        ident = self._count
        self._count += 1
        self._rows.append((Op.ALLOC, ident, max(4, int(size_bytes)), frame))
        return ident

    def free(self, *ids: int) -> None:
        self._rows += [(Op.FREE, ident, 0, -1) for ident in ids]

    def empty_cache(self) -> None:
        self._rows.append((Op.EMPTY_CACHE, -1, 0, -1))

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count`` - 1."""
        return int(self.rng.random() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def trace(self, header: dict[str, Any]) -> Trace:
        return trace_of_rows(
            self._rows, tuple((text,) for text in self._frames), header
        )


def volume_profiles(t: Tape, p: SimpleNamespace) -> None:
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
        # The product of three draws: most sessions are of middling length, a few very long, and the
        # longest sets the padding.
        spread = p.high_ticks - p.low_ticks
        ticks = []
        for _ in range(count):
            share = t.rng.random() * t.rng.random() * t.rng.random()
            ticks.append(p.low_ticks + int(spread * share))
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
        running = t.alloc("cumulative_share", count * p.bins * 4)
        pocs.append(t.alloc("chunk_poc", count * 8))
        t.free(order, ranked, running)
    t.alloc("all_profiles", p.sessions * p.bins * 4)
    t.alloc("all_pocs", p.sessions * 8)
    t.free(*profiles, *pocs)


def growing_batches(t: Tape, p: SimpleNamespace) -> None:
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
        length = p.first_length + t.round * p.growth + t.below(p.length_noise)
        state = p.batch * length * p.hidden * 2  # bytes of a hidden state in bf16
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
    return [t.alloc(tensor, state * width) for tensor, width in widths.items()]


def tuning_trials(t: Tape, p: SimpleNamespace) -> None:
    """Models of other widths and depths one after another, where the best state and a leak here
    and there outlive their trial.

    A trial has linear layers in fp32 under Adam and a few steps; the best so far is copied and
    kept instead of the one before; a leak keeps one activation for good (a loss appended with
    its graph). Some trials end with empty_cache.
    """
    best: list[int] = []
    best_score = 0.0
    for t.round in range(p.trials):  # the tensors' names carry it
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
            if not step:
                for size in shapes:
                    moments = ("adam_mean", "adam_variance")
                    state += [t.alloc(tensor, size) for tensor in moments]
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


PATTERNS: Mapping[str, Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("patterns.json").read_text(encoding="utf-8")
)
"""The programs by name, each with the bytes of the card that it is made for, and its parameters."""
PROGRAMS: Mapping[str, Callable[[Tape, SimpleNamespace], None]] = {
    "volume_profiles": volume_profiles,
    "growing_batches": growing_batches,
    "tuning_trials": tuning_trials,
}


def generate(name: str, seed: int = 0, **changed: int | float) -> Trace:
    """The trace of a pattern: what it asks for in order, each request with the frame
    "pattern:round what".

    ``changed`` replaces defaults of its parameters.
    """
    pattern = PATTERNS[name]
    tape = Tape(name, seed)
    parameters = {**pattern["parameters"], **changed}
    PROGRAMS[name](tape, SimpleNamespace(**parameters))
    return tape.trace(
        {
            "label": "generated",
            "pattern": name,
            "seed": seed,
            "parameters": parameters,
            "conf": "",
            "vram": pattern["card_bytes"],
        }
    )
