"""Work that remedies are tried on: training, volume profiles, tuning trials, allocation churn;
each seeded, on one device.

A program; its options: workload, device, seed and its
parameters, ``p``, each of which is named and given by helpers/trials/workloads.json. Its rows:
ready (torch), step (number, loss, seconds), then end with the peaks, or oom with the
message, or refused with why it cannot run here. ``loss`` is the step's answer: a remedy that
changes it is no remedy.
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


def tidy(run: Device, number: int, p: Parameters) -> None:
    """What people call between steps: empty the cache (once, or before and after collecting)
    and collect garbage.

    Without a GPU emptying the cache does nothing, as for the person who calls it.
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
    """A small transformer that learns.

    ``prune``: percent of each linear layer; ``data_mib``: of samples that are read beside.
    """
    from helpers.trials.under_torch.transformer import Run

    torch = run.torch
    primed(run, p.prime)
    work = Run(
        {
            "seed": seed,
            "device": run.name,
            "dropout": 0.0,
            "heads": 4,
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
    """So many bytes to train on: in memory as a whole, or mapped from a file, of which only the
    bytes that are used are read.
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
    """The optimizer of this name. Raises NotRun where it cannot be had here."""
    from torch.optim import SGD, AdamW

    if name == "sgd":
        return SGD(parameters, lr=1e-2)
    if name == "adam8bit":
        return _adam_in_8_bits(run, parameters)
    try:
        if name == "fused":
            return AdamW(parameters, lr=1e-3, fused=True)
        return AdamW(parameters, lr=1e-3)
    except (RuntimeError, TypeError) as error:
        # An older torch has no fused optimizer, or none for this device.
        raise NotRun(f"optimizer {name}: {one_line(error)}") from error


def _adam_in_8_bits(run: Device, parameters: Iterator[Parameter]) -> Optimizer:
    if not run.gpu:
        raise NotRun("8-bit optimizers run on a GPU, and this is the CPU")
    try:
        optimizers = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise NotRun(BITS) from error
    optimizer: Optimizer = optimizers.AdamW8bit(parameters, lr=1e-3)
    return optimizer


def volume(run: Device, seed: int, p: Parameters) -> Iterator[float]:
    """Volume at each price level by comparing every tick with every level: whole, in chunks of
    ticks, in a buffer made once.
    """
    torch = run.torch
    ticks = p.ticks
    levels = p.levels
    size = p.chunk or ticks
    grid = torch.arange(levels, device=run.name)
    elements = 0
    if p.pool_mib:
        elements = p.pool_mib * MIB // 4
    elif p.preallocate:
        elements = size * levels
    if elements and elements < size * levels:
        raise NotRun(
            f"a pool of {p.pool_mib} MiB cannot hold {size} ticks of {levels} "
            "levels in float32"
        )
    pool = torch.empty(elements, device=run.name)
    for number in range(p.steps):
        draw = torch.Generator().manual_seed(seed * 1000 + number)
        prices = torch.randint(0, levels, (ticks,), generator=draw).to(run.name)
        # Sums below 2**24: exact in any order.
        volumes = torch.randint(1, 60, (ticks,), generator=draw).float().to(run.name)
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
    """Trials of changing size in one process, each leaving a tensor behind: in a list, or in a
    cycle that collecting frees.
    """
    torch = run.torch
    kept: list[object] = []
    for number in range(p.steps):
        rng = random.Random(f"{seed}/{number}")
        rows = int((0.5 + rng.random() / 2) * p.work_mib * MIB / 4 / 1024)
        draw = torch.Generator().manual_seed(seed * 1000 + number)
        data = torch.rand(rows, 1024, generator=draw).to(run.name)
        weight = torch.zeros(1024, 1, device=run.name, requires_grad=True)
        loss = ((data @ weight - 1.0) ** 2).mean()
        loss.backward()
        leaked: list[object] = [
            torch.ones(p.leak_mib * MIB, dtype=torch.uint8, device=run.name)
        ]
        if p.leak == "cycle":
            leaked.append(leaked)
        else:
            kept.append(leaked)
        answer = float(weight.grad.sum())
        del data, weight, loss, leaked
        tidy(run, number, p)
        yield answer


def churn(run: Device, seed: int, p: Parameters) -> Iterator[float]:
    """Tensors of random size made and dropped.

    ``pool`` keeps dropped ones by size class for the next request.
    """
    torch = run.torch
    rng = random.Random(seed)
    live: list[tuple[int, Tensor]] = []
    spare: dict[int, list[Tensor]] = {}
    live_bytes = 0
    primed(run, p.prime)
    for number in range(p.steps):
        for _ in range(p.requests):
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
            tensor.fill_(size % 251)
            live.append((size, tensor))
            live_bytes += size
            del tensor
        tidy(run, number, p)
        yield float(sum(int(tensor[0]) for _, tensor in live) + len(live))


def primed(run: Device, most_mib: int) -> None:
    """Tensors of growing size, made and dropped: the "priming" of an allocator."""
    size = 1
    while size <= most_mib:
        run.torch.zeros(size * MIB, dtype=run.torch.uint8, device=run.name)
        size *= 2


PROGRAMS: dict[str, Callable[[Device, int, Parameters], Iterator[float]]] = {
    "training": training,
    "volume": volume,
    "tuning": tuning,
    "churn": churn,
}


def work(spec: Row) -> Iterator[Row]:
    """One workload in this process."""
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
    card = torch.cuda.get_device_name(0) if run.gpu else ""
    yield {
        "event": "ready",
        "torch": str(torch.__version__),
        "device": run.name,
        "gpu": card,
        **start,
    }
    step_began = unhindered()
    try:
        for number, loss in enumerate(PROGRAMS[spec["workload"]](run, spec["seed"], p)):
            now = unhindered()
            step: Row = {"event": "step", "number": number, "loss": loss}
            yield {**step, "seconds": now - step_began}
            step_began = now
    except NotRun as error:
        yield {"event": "refused", "why": str(error)}
        return
    except (RuntimeError, MemoryError) as error:
        if not is_oom(torch, error):
            raise
        yield {"event": "oom", "message": str(error)[:4000], **peaks(run), **start}
        return
    yield {"event": "end", **peaks(run), **start}


def peaks(run: Device) -> dict[str, int | None]:
    most = run.peaks()
    return {
        "peak_allocated_bytes": most.get("allocated_bytes"),
        "peak_reserved_bytes": most.get("reserved_bytes"),
        "peak_rss_bytes": own_bytes("VmHWM"),
    }


def unhindered() -> float:
    """A clock in seconds that stands still while this thread is ready to run and another
    program has the core.

    The second number of /proc/PID/schedstat is that wait in ns (Linux,
    Documentation/scheduler/sched-stats); without the file, the plain clock.
    """
    try:
        waited_ns = int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.perf_counter() - waited_ns / 1e9


def main() -> None:
    frame.run(work)
    sys.stderr.flush()
    # torch's own clean-up takes longer than many a step, and nothing is left to be cleaned.
    os._exit(0)
