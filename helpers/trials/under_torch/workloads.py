"""The built-in workloads on which remedies are tried: training, volume profiles, tuning trials,
allocation churn; each seeded, on one device.

A program; its options are workload, device, pci, seed and the parameters ``p``, which
helpers/trials/workloads.json names with their defaults. Its rows are ready (torch), step (number,
loss, seconds), then end with the peaks, or oom with the message, or refused with the reason why it
cannot run here. ``loss`` is the answer of a step: a remedy must not change it.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.device import Device
from helpers.trials.under_torch.frame import (
    MIB,
    NotRun,
    Row,
    is_oom,
    one_line,
    own_bytes,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer

Parameters = SimpleNamespace
BITS = "8-bit optimizers need bitsandbytes, which is not installed: pip install bitsandbytes"
FLOAT_BYTES = 4
ADAM_RATE = 1e-3  # the default of torch.optim.AdamW
SGD_RATE = 1e-2  # larger: SGD does not scale its steps up
HEADS = 4  # divides every width that a remedy asks for
SEEDS_APART = 1000
"""The seed of a step is that of the run times this, plus the step's number: runs share no seeds."""
COLUMNS = 1024
"""Columns of the data of a tuning trial: a row of float32 is 4 KiB."""
MOST_VOLUME = 60
"""Volumes of ticks are below this, so that sums of some 100,000 are below 2**24 and exact in
float32 in any order.
"""
BYTE_VALUES = 251
"""A prime below 256: sizes that are powers of two give different values of a byte, too."""
MOST_MESSAGE = 4000


def tidy(run: Device, number: int, p: Parameters) -> None:
    """Do what people do between steps: collect garbage every ``p.gc_every`` steps, and then empty
    torch's cache every ``p.empty_cache_every`` steps, with ``p.double`` also before the garbage is
    collected. 0 is never. ``number`` is that of the step, from 0.
    """
    empty = bool(p.empty_cache_every) and (number + 1) % p.empty_cache_every == 0
    if empty and p.double:
        run.torch.cuda.empty_cache()
    if p.gc_every and (number + 1) % p.gc_every == 0:
        gc.collect()
    if empty:
        run.torch.cuda.empty_cache()
    run.wait()


def training(run: Device, seed: int, p: Parameters) -> Iterator[float]:
    """Train a small transformer; yields the loss of each step.

    ``p.prune`` percent of each linear layer are pruned; ``p.data_mib`` MiB of samples are in memory
    beside it, and each step reads some.
    """
    from helpers.trials.under_torch.transformer import Run

    torch = run.torch
    primed(run, p.prime)
    work = Run(
        {
            "seed": seed,
            "device": run.name,
            "dropout": 0.0,
            "heads": HEADS,
            "batch": p.batch,
            "length": p.length,
            "width": p.width,
            "layers": p.layers,
            "vocab": p.vocabulary,
            "pieces": p.accumulate,
            "recompute": p.checkpointing,
            "bf16": p.precision == "bfloat16",
            "offload": p.offload,
        }
    )
    work.model.to(getattr(torch, p.weights))
    if p.prune:
        prune = importlib.import_module("torch.nn.utils.prune")
        for layer in list(work.model.modules()):
            if isinstance(layer, torch.nn.Linear):
                prune.l1_unstructured(layer, "weight", p.prune / 100)
    samples = _samples(torch, p.data_mib * MIB, bool(p.mapped))
    work.optimizer = _optimizer(run, p.optimizer, work.model.parameters())
    for number in range(p.steps):
        samples[number * p.length : (number + p.batch) * p.length].sum()
        loss = work.step()
        tidy(run, number, p)
        yield loss


def _samples(torch: ModuleType, size: int, mapped: bool) -> Tensor:
    """Samples of ``size`` bytes: in memory, or ``mapped`` from a file, of which only the parts that
    are used take memory.
    """
    samples: Tensor
    if not mapped:
        samples = torch.ones(size, dtype=torch.uint8)
        return samples
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(size)
        samples = torch.from_file(file.name, size=size, dtype=torch.uint8)
    return samples


def _optimizer(run: Device, name: str, parameters: Iterator[Parameter]) -> Optimizer:
    """The optimizer of this name: sgd, adamw, fused or adam8bit. Raises NotRun if there is none
    here.
    """
    from torch.optim import SGD, AdamW

    if name == "sgd":
        return SGD(parameters, lr=SGD_RATE)
    if name == "adam8bit":
        return _adam_in_8_bits(run, parameters)
    try:
        if name == "fused":
            return AdamW(parameters, lr=ADAM_RATE, fused=True)
        return AdamW(parameters, lr=ADAM_RATE)
    except (RuntimeError, TypeError) as error:
        # An older torch has no fused optimizer, or none for this device.
        raise NotRun(f"optimizer {name}: {one_line(error)}") from error


def _adam_in_8_bits(run: Device, parameters: Iterator[Parameter]) -> Optimizer:
    """The AdamW of bitsandbytes, whose state has 8 bits. Raises NotRun."""
    if not run.gpu:
        raise NotRun("8-bit optimizers run on a GPU, and this is the CPU")
    try:
        optimizers = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise NotRun(BITS) from error
    optimizer: Optimizer = optimizers.AdamW8bit(parameters, lr=ADAM_RATE)
    return optimizer


def volume(run: Device, seed: int, p: Parameters) -> Iterator[float]:
    """Sum the volume at each price level, by comparing every tick with every level; yields the
    highest volume, with its level as a fraction.

    All ticks are compared at once (``p.chunk`` 0), or ``p.chunk`` of them. With ``p.preallocate``
    or ``p.pool_mib`` the products are in a buffer that is made once. Raises NotRun if the pool is
    too small.
    """
    torch = run.torch
    ticks = p.ticks
    levels = p.levels
    size = p.chunk or ticks
    grid = torch.arange(levels, device=run.name)
    elements = 0
    if p.pool_mib:
        elements = p.pool_mib * MIB // FLOAT_BYTES
    elif p.preallocate:
        elements = size * levels
    if elements and elements < size * levels:
        raise NotRun(
            f"a pool of {p.pool_mib} MiB cannot hold {size} ticks of {levels} "
            "levels in float32"
        )
    pool = torch.empty(elements, device=run.name)
    for number in range(p.steps):
        draw = torch.Generator().manual_seed(seed * SEEDS_APART + number)
        prices = torch.randint(0, levels, (ticks,), generator=draw).to(run.name)
        volumes = torch.randint(1, MOST_VOLUME, (ticks,), generator=draw)
        volumes = volumes.float().to(run.name)
        profile = torch.zeros(levels, device=run.name)
        for start in range(0, ticks, size):
            price = prices[start : start + size, None]
            amount = volumes[start : start + size, None]
            hit = price == grid
            if elements:
                out = pool[: hit.numel()].view(hit.shape)
            else:
                out = torch.empty(hit.shape, device=run.name)
            profile += torch.mul(hit, amount, out=out).sum(0)
            del hit, out
        run.wait()
        yield float(profile.max()) + float(profile.argmax()) / levels


def tuning(run: Device, seed: int, p: Parameters) -> Iterator[float]:
    """Run trials of changing size in one process, each of which leaves a tensor of ``p.leak_mib``
    behind: in a list, or in a cycle of references that garbage collection frees. Yields an answer
    of each.
    """
    torch = run.torch
    held_for_good: list[object] = []
    for number in range(p.steps):
        rng = random.Random(f"{seed}/{number}")
        share = 0.5 + rng.random() / 2  # between half of work_mib and all of it
        rows = int(share * p.work_mib * MIB / FLOAT_BYTES / COLUMNS)
        draw = torch.Generator().manual_seed(seed * SEEDS_APART + number)
        data = torch.rand(rows, COLUMNS, generator=draw).to(run.name)
        weight = torch.zeros(COLUMNS, 1, device=run.name, requires_grad=True)
        loss = ((data @ weight - 1.0) ** 2).mean()
        loss.backward()
        leaked: list[object] = [
            torch.ones(p.leak_mib * MIB, dtype=torch.uint8, device=run.name)
        ]
        if p.leak == "cycle":
            leaked.append(leaked)  # refers to itself: only garbage collection frees it
        else:
            held_for_good.append(leaked)
        answer = float(weight.grad.sum())
        del data, weight, loss, leaked
        tidy(run, number, p)
        yield answer


def churn(run: Device, seed: int, p: Parameters) -> Iterator[float]:
    """Make and drop tensors of random size, at most ``p.live_mib`` at once; yields the sum of the
    first bytes of the tensors that live, plus their number.

    With ``p.pool`` sizes are rounded up to powers of two, and a dropped tensor is kept for the next
    request of its size.
    """
    torch = run.torch
    rng = random.Random(seed)
    live: list[tuple[int, Tensor]] = []
    spare: dict[int, list[Tensor]] = {}
    live_bytes = 0
    primed(run, p.prime)
    for number in range(p.steps):
        for _ in range(p.requests):
            # Evenly spread over the logarithms from low_kib to high_kib.
            size = int(p.low_kib * 1024 * (p.high_kib / p.low_kib) ** rng.random())
            while live and live_bytes + size > p.live_mib * MIB:
                old, tensor = live.pop(rng.randrange(len(live)))
                live_bytes -= old
                if p.pool:
                    spare.setdefault(tensor.numel(), []).append(tensor)
                del tensor
            room = size
            if p.pool:  # the next power of two
                room = 1 << (size - 1).bit_length()
            if spare.get(room):
                tensor = spare[room].pop()
            else:
                tensor = torch.empty(room, dtype=torch.uint8, device=run.name)
            tensor.fill_(size % BYTE_VALUES)
            live.append((size, tensor))
            live_bytes += size
            del tensor
        tidy(run, number, p)
        yield float(sum(int(tensor[0]) for _, tensor in live) + len(live))


def primed(run: Device, most_mib: int) -> None:
    """Make and drop tensors of 1, 2, 4 ... MiB up to ``most_mib``: the "priming" of an
    allocator.
    """
    size_mib = 1
    while size_mib <= most_mib:
        run.torch.zeros(size_mib * MIB, dtype=run.torch.uint8, device=run.name)
        size_mib *= 2


PROGRAMS: dict[str, Callable[[Device, int, Parameters], Iterator[float]]] = {
    "training": training,
    "volume": volume,
    "tuning": tuning,
    "churn": churn,
}


def work(spec: Row) -> Iterator[Row]:
    """Run one workload in this process; yields its rows."""
    p = SimpleNamespace(**spec["parameters"])
    import torch

    run = Device(torch, {"pci": "", **spec})
    why = run.trouble or run.wrong
    if run.reason:
        why += f": {run.reason}"
    if why:
        yield {"event": "refused", "why": why}
        return
    if spec["workload"] == "training":
        importlib.import_module("helpers.trials.under_torch.transformer").warm(spec)
    torch.manual_seed(spec["seed"])
    torch.set_num_threads(1)
    run.reset_peaks()
    start = {"start_rss_bytes": frame.restart_peak()}
    card = ""
    if run.gpu:
        card = torch.cuda.get_device_name(0)
    yield {
        "event": "ready",
        "torch": str(torch.__version__),
        "device": run.name,
        "gpu": card,
        **start,
    }
    step_began = unhindered()
    # a step for each value it yields
    losses = PROGRAMS[spec["workload"]](run, spec["seed"], p)
    try:
        for number, loss in enumerate(losses):
            now = unhindered()
            seconds = now - step_began
            yield {"event": "step", "number": number, "loss": loss, "seconds": seconds}
            step_began = now
    except NotRun as error:
        yield {"event": "refused", "why": str(error)}
        return
    except (RuntimeError, MemoryError) as error:
        if not is_oom(torch, error):
            raise
        message = str(error)[:MOST_MESSAGE]
        yield {"event": "oom", "message": message, **peaks(run), **start}
        return
    yield {"event": "end", **peaks(run), **start}


def peaks(run: Device) -> dict[str, int | None]:
    """The peaks of torch's allocator (None on a CPU) and of resident memory, in bytes."""
    most = run.peaks()
    return {
        "peak_allocated_bytes": most.get("allocated_bytes"),
        "peak_reserved_bytes": most.get("reserved_bytes"),
        "peak_rss_bytes": own_bytes("VmHWM"),
    }


def unhindered() -> float:
    """A clock in seconds that does not count the time in which this process could run and another
    had the core.

    That time in ns is the second number of /proc/PID/schedstat (Linux, Documentation/scheduler/
    sched-stats.rst); without the file this is the plain clock.
    """
    try:
        numbers = Path("/proc/self/schedstat").read_text().split()
        waited_ns = int(numbers[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.perf_counter() - waited_ns / 1e9


def main() -> None:
    """Run the program; it ends at once, without torch's clean-up, which takes longer than a
    step.
    """
    frame.run(work)
    sys.stderr.flush()
    os._exit(0)
