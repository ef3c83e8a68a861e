"""Three programs that run out of memory, as traces of what they ask of the allocator.

Each program is a function that writes its requests to a Tape. The first sentence of its
docstring says which failure it shows; its parameters, ``p``, stand in patterns.json. The traces
are seeded, and the same on every machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helpers.allocator.trace import Op, Trace, trace_of_rows

BF16_BYTES = 2
FP32_BYTES = 4
INT64_BYTES = 8
# Powers of two, and numbers between them, so that the blocks of one trial seldom fit another's.
WIDTHS = (256, 384, 512, 777, 1024, 1536, 2048, 3000, 4096)
"""Features of a linear layer in a tuning trial."""
BATCH_ROWS = (64, 100, 256, 512, 1000, 4096)
"""Rows of a batch in a tuning trial."""


class Tape:
    """The requests of one program in order, and the random choices that it makes.

    ``round``: the number of the batch, trial or chunk that runs, from 0; it is a part of each
    tensor's name. The programs below set it, as the variable of their loop.

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
        """Ask for a tensor, of at least one element in fp32; returns its id."""
        name = f"{self.name}:{self.round} {tensor}"
        frame = self._frames.setdefault(name, len(self._frames))
        ident = self._count
        self._count += 1
        size = max(FP32_BYTES, int(size_bytes))
        self._rows.append((Op.ALLOC, ident, size, frame))
        return ident

    def free(self, *ids: int) -> None:
        """Free tensors, given by their ids, in this order."""
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
        """The requests so far as a trace, in which each stack is one frame."""
        stacks = tuple((frame,) for frame in self._frames)
        return trace_of_rows(self._rows, stacks, header)


def volume_profiles(tape: Tape, p: SimpleNamespace) -> None:
    """Chunks padded to their longest session: each has another size, so the segments of earlier
    chunks stay cached, unused, beside the small profiles that are kept.

    A chunk loads price and volume [chunk, longest], makes int64 bin numbers and a mask of the
    same shape, then for each session a histogram with its temporaries; the rows are stacked,
    searched for their POC and value area, and appended to a list that one final cat joins.
    """
    profiles = []
    pocs = []
    for tape.round, first in enumerate(range(0, p.sessions, p.chunk_sessions)):
        count = min(p.chunk_sessions, p.sessions - first)
        ticks = [_session_ticks(tape, p) for _ in range(count)]
        cells = count * max(ticks)
        price = tape.alloc("price", cells * FP32_BYTES)
        volume = tape.alloc("volume", cells * FP32_BYTES)
        scaled = tape.alloc("price_in_bins", cells * FP32_BYTES)
        index = tape.alloc("bin_numbers", cells * INT64_BYTES)
        tape.free(scaled)
        mask = tape.alloc("padding_mask", cells)
        rows = []
        for length in ticks:
            used = tape.alloc("session_bins", length * INT64_BYTES)
            weight = tape.alloc("session_volume", length * FP32_BYTES)
            rows.append(tape.alloc("session_profile", p.bins * FP32_BYTES))
            tape.free(used, weight)
        bins = count * p.bins
        profiles.append(tape.alloc("chunk_profile", bins * FP32_BYTES))
        tape.free(*rows, mask, index, volume, price)
        order = tape.alloc("sorted_order", bins * INT64_BYTES)
        ranked = tape.alloc("sorted_volume", bins * FP32_BYTES)
        running = tape.alloc("cumulative_share", bins * FP32_BYTES)
        pocs.append(tape.alloc("chunk_poc", count * INT64_BYTES))
        tape.free(order, ranked, running)
    tape.alloc("all_profiles", p.sessions * p.bins * FP32_BYTES)
    tape.alloc("all_pocs", p.sessions * INT64_BYTES)
    tape.free(*profiles, *pocs)


def _session_ticks(tape: Tape, p: SimpleNamespace) -> int:
    """The length of a session in ticks. Most are short and a few very long, as the product of
    three draws gives them; the longest of a chunk sets its padding.
    """
    share = tape.rng.random() * tape.rng.random() * tape.rng.random()
    spread = p.high_ticks - p.low_ticks
    return int(p.low_ticks) + int(spread * share)


def growing_batches(tape: Tape, p: SimpleNamespace) -> None:
    """Batches of growing length: their kept outputs split segments, which the next, longer batch
    cannot use.

    A transformer in bf16 with fp32 Adam and gradient checkpointing (the backward pass makes
    each layer's activations again); of every batch the last hidden state is kept in fp32
    (``kept_share`` of it) until the end of the epoch. No freed block is large enough for the
    next batch, and a kept output stops the release of its segment. ``batch`` is in sequences,
    lengths in tokens.

    Measured on the real allocator (torch 2.6.0, 2.11.0, 2.13.0 and 2.14.1, card of 20 GiB): by
    default it runs out of memory in batch 41 to 43, counted from 0, with allocated and request
    together below 16 GiB (2.14.1, seeds 0 to 19). All batches pass with expandable_segments
    (seeds 0 to 19) and with max_split_size_mb:128 (0 and 1); roundup_power2_divisions:4 and
    garbage_collection_threshold:0.8 under a fraction put the end off by 1 to 3 batches (0 and
    1).
    """
    # Of a layer: 4 hidden * hidden in attention (query, key, value, output), 8 in the MLP, which
    # widens to 4 * hidden and back.
    parameter_bytes = 12 * p.hidden * p.hidden * BF16_BYTES
    for _ in range(p.layers):
        tape.alloc("weights", parameter_bytes)
    for tape.round in range(p.batches):
        length = p.first_length + tape.round * p.growth + tape.below(p.length_noise)
        state = p.batch * length * p.hidden * BF16_BYTES
        inputs = []
        for _ in range(p.layers):
            inputs.append(tape.alloc("layer_input", state))
            tape.free(*_layer_activations(tape, state))
        output_bytes = state // BF16_BYTES * FP32_BYTES
        output = tape.alloc("output_fp32", output_bytes)
        tape.alloc("kept_output", output_bytes * p.kept_share)
        back = tape.alloc("gradient", state)
        tape.free(output)
        gradients = []
        for _ in range(p.layers):
            activations = [inputs.pop(), *_layer_activations(tape, state)]
            first = tape.alloc("mlp_gradient", 4 * state)
            second = tape.alloc("mlp_gradient", 4 * state)
            tape.free(first)
            third = tape.alloc("qkv_gradient", 3 * state)
            tape.free(second)
            gradients.append(tape.alloc("weight_gradient", parameter_bytes))
            before = tape.alloc("gradient", state)
            tape.free(third, back, *reversed(activations))
            back = before
        tape.free(back)
        is_first_step = tape.round == 0
        if is_first_step:  # Adam makes its state when it has the first gradients
            moment_bytes = parameter_bytes // BF16_BYTES * FP32_BYTES
            for _ in range(p.layers):
                tape.alloc("adam_mean", moment_bytes)
                tape.alloc("adam_variance", moment_bytes)
        tape.free(*gradients)


def _layer_activations(tape: Tape, state: int) -> list[int]:
    """Asks for the activations that the forward pass of a layer makes, and returns their ids.
    ``state``: the bytes of a hidden state; each activation is a multiple of it.
    """
    widths = {"qkv": 3, "attention_output": 1, "mlp_hidden": 4, "mlp_activation": 4}
    return [tape.alloc(tensor, state * width) for tensor, width in widths.items()]


def tuning_trials(tape: Tape, p: SimpleNamespace) -> None:
    """Trials of models of different widths and depths: the best model's weights, and a leak here
    and there, outlive their trial and split segments.

    A trial has linear layers in fp32 under Adam and a few steps; the best so far is copied and
    kept instead of the one before; a leak keeps one activation forever (a loss appended with
    its graph). Some trials end with empty_cache.
    """
    best: list[int] = []
    best_score = 0.0
    for tape.round in range(p.trials):
        width = WIDTHS[tape.below(len(WIDTHS))]
        depth = tape.between(2, 8)
        activation_bytes = BATCH_ROWS[tape.below(len(BATCH_ROWS))] * width * FP32_BYTES
        weights = [width * width * FP32_BYTES] * depth  # bytes of each layer's
        kept = [tape.alloc("weight", size) for size in weights]
        kept += [tape.alloc("bias", width * FP32_BYTES) for _ in weights]
        for step in range(p.steps):
            inputs = tape.alloc("inputs", activation_bytes)
            activations = [tape.alloc("activation", activation_bytes) for _ in weights]
            loss = tape.alloc("loss", FP32_BYTES)
            gradients = []
            for size in weights:
                back = tape.alloc("activation_gradient", activation_bytes)
                gradients.append(tape.alloc("weight_gradient", size))
                tape.free(activations.pop(), back)
            if step == 0:  # Adam makes its state when it has the first gradients
                for size in weights:
                    kept.append(tape.alloc("adam_mean", size))
                    kept.append(tape.alloc("adam_variance", size))
            tape.free(loss, inputs, *gradients)
            if step == p.steps - 1 and tape.chance(p.leak_share):  # never freed
                tape.alloc("leaked_activation", activation_bytes)
        score = tape.rng.random()
        if score > best_score:
            better = [tape.alloc("best_state", size) for size in weights]
            tape.free(*best)
            best = better
            best_score = score
        tape.free(*kept)
        if tape.chance(p.empty_cache_share):
            tape.empty_cache()


PATTERNS: Mapping[str, Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("patterns.json").read_text(encoding="utf-8")
)
"""For each program ``card_bytes``, the card that it is made for, and ``parameters``."""
PROGRAMS: Mapping[str, Callable[[Tape, SimpleNamespace], None]] = {
    "volume_profiles": volume_profiles,
    "growing_batches": growing_batches,
    "tuning_trials": tuning_trials,
}


def generate(name: str, seed: int = 0, **changed: int | float) -> Trace:
    """The trace of a pattern. Each request has the stack of one frame, "pattern:round tensor".

    ``changed`` replaces defaults of the pattern's parameters.
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
