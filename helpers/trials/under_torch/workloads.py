"""Work that remedies are tried on: training, volume profiles, tuning trials, allocation churn;
each seeded, on one device.

A program; its options: workload, device, seed, threads, device_bytes (a cap, or null) and its
parameters, ``p``, each of which is named and given by helpers/trials/workloads.json. Its rows:
ready (torch, import_s), step (number, loss, seconds), then end with the peaks, or oom with the
message, or refused with why it cannot run here. ``loss`` is the step's answer: a remedy that
changes it is no remedy.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.device import Device
from helpers.trials.under_torch.frame import MIB, NotRun, Row, is_oom, one_line, own_bytes

PROGRAM = "from helpers.trials.under_torch.workloads import main; main()"
BITS = "8-bit optimizers need bitsandbytes, which is not installed: pip install bitsandbytes"


def tidy(run: Device, number: int, p: Any) -> None:
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


def training(run: Device, seed: int, p: Any) -> Iterator[float]:
    """A small transformer that learns.

    ``prune``: percent of each linear layer; ``data_mib``: of samples that are read beside.
    """
    from helpers.trials.under_torch.transformer import Run

    torch = run.torch
    primed(run, p.prime)
    save_on_cpu = torch.autograd.graph.save_on_cpu
    kind = "cuda" if run.gpu else "cpu"
    bf16 = p.precision == "bfloat16"

    class Training(Run):
        def loss(self, tokens: Any) -> Any:
            keep_there = save_on_cpu(run.gpu) if p.offload else contextlib.nullcontext()
            with keep_there, torch.autocast(kind, torch.bfloat16, enabled=bf16):
                return super().loss(tokens)

    spec: dict[str, Any] = {"seed": seed, "device": run.name, "dropout": 0.0, "heads": 4}
    spec |= {"batch": p.batch, "length": p.length, "width": p.width, "layers": p.layers}
    spec |= {"vocab": p.vocabulary, "pieces": p.accumulate, "recompute": p.checkpointing}
    work = Training(spec)
    work.model.to(getattr(torch, p.weights))
    layers = work.model.modules() if p.prune else ()
    for layer in [one for one in layers if isinstance(one, torch.nn.Linear)]:
        pruned = importlib.import_module("torch.nn.utils.prune")
        pruned.l1_unstructured(layer, "weight", p.prune / 100)
    samples = _samples(torch, p.data_mib * MIB, bool(p.mapped))
    work.optimizer = _optimizer(run, p.optimizer, work.model.parameters())
    for number in range(p.steps):
        samples[number * p.length : (number + p.batch) * p.length].sum()
        loss = work.step()
        tidy(run, number, p)
        yield loss


def _samples(torch: Any, size: int, mapped: bool) -> Any:
    """So many bytes to train on: read into memory as a whole, or a file of which only what is
    used comes in.
    """
    if not mapped:
        return torch.ones(size, dtype=torch.uint8)
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(size)
        return torch.from_file(file.name, size=size, dtype=torch.uint8)


def _optimizer(run: Device, name: str, parameters: Any) -> Any:
    optim = run.torch.optim
    if name == "adam8bit":
        if not run.gpu:
            raise NotRun("8-bit optimizers run on a GPU, and this is the CPU")
        try:
            return importlib.import_module("bitsandbytes.optim").AdamW8bit(parameters, lr=1e-3)
        except ImportError as error:
            raise NotRun(BITS) from error
    if name == "sgd":
        return optim.SGD(parameters, lr=1e-2)
    fused: Row = {"adamw": {}, "fused": {"fused": True}}[name]
    try:
        return optim.AdamW(parameters, lr=1e-3, **fused)
    except (RuntimeError, TypeError) as error:
        # An older torch has no fused optimizer, or none for this device.
        raise NotRun(f"optimizer {name}: {one_line(error)}") from error


def volume(run: Device, seed: int, p: Any) -> Iterator[float]:
    """Volume at each price level by comparing every tick with every level: whole, in chunks of
    ticks, in a buffer made once.
    """
    torch = run.torch
    ticks = p.ticks
    levels = p.levels
    size = p.chunk or ticks
    grid = torch.arange(levels, device=run.name)
    elements = p.pool_mib * MIB // 4 if p.pool_mib else size * levels if p.preallocate else 0
    if elements and elements < size * levels:
        wanted = f"{size} ticks of {levels} levels in float32"
        raise NotRun(f"a pool of {p.pool_mib} MiB cannot hold {wanted}")
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
            here = pool[: hit.numel()].view(hit.shape) if elements else None
            out = torch.empty(hit.shape, device=run.name) if here is None else here
            profile += torch.mul(hit, amount, out=out).sum(0)
            del hit, here, out
        run.wait()
        yield float(profile.max()) + float(profile.argmax()) / levels


def tuning(run: Device, seed: int, p: Any) -> Iterator[float]:
    """Trials of changing size in one process, each leaving a tensor behind: in a list, or in a
    cycle that collecting frees.
    """
    torch = run.torch
    kept: list[Any] = []
    for number in range(p.first, p.first + p.steps):
        rng = random.Random(f"{seed}/{number}")
        rows = int((0.5 + rng.random() / 2) * p.work_mib * MIB / 4 / 1024)
        draw = torch.Generator().manual_seed(seed * 1000 + number)
        data = torch.rand(rows, 1024, generator=draw).to(run.name)
        weight = torch.zeros(1024, 1, device=run.name, requires_grad=True)
        loss = ((data @ weight - 1.0) ** 2).mean()
        loss.backward()
        left: list[Any] = [torch.ones(p.leak_mib * MIB, dtype=torch.uint8, device=run.name)]
        (left if p.leak == "cycle" else kept).append(left)
        answer = float(weight.grad.sum())
        del data, weight, loss, left
        tidy(run, number, p)
        yield answer


def churn(run: Device, seed: int, p: Any) -> Iterator[float]:
    """Tensors of random size made and dropped; ``pool`` keeps dropped ones by size class for
    the next request.
    """
    torch = run.torch
    rng = random.Random(seed)
    live: list[tuple[int, Any]] = []
    spare: dict[int, list[Any]] = {}
    held = 0
    primed(run, p.prime)
    for number in range(p.steps):
        for _ in range(p.requests):
            size = int(p.low_kib * 1024 * (p.high_kib / p.low_kib) ** rng.random())
            while live and held + size > p.live_mib * MIB:
                old, tensor = live.pop(rng.randrange(len(live)))
                held -= old
                if p.pool:
                    spare.setdefault(tensor.numel(), []).append(tensor)
                del tensor
            room = 1 << (size - 1).bit_length() if p.pool else size
            tensor = spare[room].pop() if spare.get(room) else None
            if tensor is None:
                tensor = torch.empty(room, dtype=torch.uint8, device=run.name)
            tensor.fill_(size % 251)
            live.append((size, tensor))
            held += size
            del tensor
        tidy(run, number, p)
        yield float(sum(int(tensor[0]) for _, tensor in live) + len(live))


def primed(run: Device, most_mib: int) -> None:
    """Tensors of growing size, made and dropped: the "priming" of an allocator."""
    size = 1
    while size <= most_mib:
        run.torch.zeros(size * MIB, dtype=run.torch.uint8, device=run.name)
        size *= 2


PROGRAMS: dict[str, Any] = {one.__name__: one for one in (training, volume, tuning, churn)}


def work(spec: Row) -> Iterator[Row]:
    """One workload in this process."""
    began = time.perf_counter()
    p = SimpleNamespace(**{"first": 0, **spec["parameters"]})
    import torch

    run = Device(torch, {"pci": "", **spec})
    why = run.trouble or run.wrong
    if why:
        yield {"event": "refused", "why": ": ".join(filter(None, [why, run.reason]))}
        return
    if spec["workload"] == "training":
        importlib.import_module("helpers.trials.under_torch.transformer").warm(spec)
    torch.manual_seed(spec["seed"])
    torch.set_num_threads(spec.get("threads") or 1)
    if spec.get("device_bytes"):
        run.limit_memory(spec["device_bytes"])
    run.reset_peaks()
    start = {"start_rss_bytes": frame.restart_peak()}
    card = torch.cuda.get_device_name(0) if run.gpu else ""
    ready = {"event": "ready", "torch": str(torch.__version__), "device": run.name, "gpu": card}
    yield {**ready, "import_s": time.perf_counter() - began, **start}
    begun = time.perf_counter()
    at = unhindered()
    try:
        # A known effect, planted: memory that is held beside, and a factor of time.
        ballast = torch.ones(p.ballast_mib * MIB, dtype=torch.uint8, device=run.name)
        for number, loss in enumerate(PROGRAMS[spec["workload"]](run, spec["seed"], p)):
            time.sleep((p.slow - 1.0) * max(0.0, unhindered() - at))
            now = unhindered()
            yield {"event": "step", "number": number, "loss": loss, "seconds": now - at}
            at = now
    except NotRun as error:
        yield {"event": "refused", "why": str(error)}
        return
    except (RuntimeError, MemoryError) as error:
        if not is_oom(torch, error):
            raise
        yield {"event": "oom", "message": str(error)[:4000], **peaks(run), **start}
        return
    del ballast
    now_s = time.perf_counter()
    end = {"event": "end", "work_s": now_s - begun, "alive_s": now_s - began}
    yield {**end, **peaks(run), **start}


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


def in_parts(spec: Row, each: int, parallel: int) -> Iterator[Row]:
    """The workload's steps in processes of their own: ``each`` in one, ``parallel`` at a time;
    no torch here.
    """
    total = spec["parameters"]["steps"]
    each = each or -(-total // parallel)
    running: list[Any] = []

    def part(first: int) -> list[Row]:
        steps = {"first": first, "steps": min(each, total - first)}
        steps |= {"recycle_every": 0, "parallel": 1}
        own = {**spec, "parameters": {**spec["parameters"], **steps}}
        argv = [sys.executable, "-c", PROGRAM, json.dumps(own)]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        running.append(child)
        return [json.loads(line) for line in child.communicate()[0].splitlines()]

    ended: list[Row] = []
    yield {"event": "ready", "torch": "", "import_s": 0.0, "device": spec["device"]}
    with ThreadPoolExecutor(parallel) as pool:
        for rows in pool.map(part, range(0, total, each)):
            yield from (row for row in rows if row["event"] == "step")
            last = rows[-1] if rows else {"event": "nothing"}
            ended.append(last)
            if last["event"] != "end":
                pool.shutdown(wait=False, cancel_futures=True)
                for child in running:
                    child.kill()
                break
    if ended[-1]["event"] in ("oom", "refused"):
        yield ended[-1]
        return
    if ended[-1]["event"] != "end":
        raise SystemExit(70)
    # Peaks of processes that run at once do not add up to a peak: only the driver knows that one.
    names = ("peak_allocated_bytes", "peak_reserved_bytes") if parallel == 1 else ()
    most = {name: max((one[name] or 0 for one in ended), default=0) or None for name in names}
    work_s = sum(one["work_s"] for one in ended)
    yield {"event": "end", "work_s": work_s, "parts": len(ended), **most}


def workload(spec: Row) -> Iterator[Row]:
    """One workload, in this process or in several one after the other or beside each other."""
    each, parallel = (spec["parameters"].get(name, 0) for name in ("recycle_every", "parallel"))
    return in_parts(spec, each, parallel) if each or parallel > 1 else work(spec)


def main() -> None:
    frame.run(workload)
    sys.stderr.flush()
    # torch's own clean-up takes longer than many a step, and nothing is left to be cleaned.
    os._exit(0)
