"""Work that remedies are tried on: training, volume profiles, tuning trials, allocation churn; each seeded, on one device.

    python workloads.py SPEC

runs one workload; SPEC is JSON: workload, device, seed, threads, device_bytes (a cap, or null) and its parameters. One JSON
line an event on stdout: ready (torch, import_s), step (number, loss, seconds), then end with the peaks, or oom with the
message, or refused with why it cannot run here. ``loss`` is the step's answer: a remedy that changes it is no remedy.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(
        Path(__file__).resolve().parents[2]
    )  # run as a file: the checkout instead of this folder

from helpers.torchside.device import MIB, Device, one_line

PROGRAM = "from helpers.torchside.workloads import main; main()"
BITS = "8-bit optimizers need bitsandbytes, which is not installed: pip install bitsandbytes"


class Refused(Exception):
    """This torch or this box cannot run the workload: one line."""


class Housekeeping:
    """What people call between steps: empty the cache (once, or before and after collecting) and collect garbage."""

    def __init__(self, run: Device, empty_cache_every: int = 0, gc_every: int = 0, double: int = 0):
        self.run, self.empty_cache_every, self.gc_every, self.double = (
            run,
            empty_cache_every,
            gc_every,
            double,
        )

    def after(self, number: int) -> None:
        empty = bool(self.empty_cache_every) and (number + 1) % self.empty_cache_every == 0
        if empty and self.double:
            self.run.torch.cuda.empty_cache()
        if self.gc_every and (number + 1) % self.gc_every == 0:
            gc.collect()
        if empty:
            self.run.torch.cuda.empty_cache()  # without a GPU it does nothing, as for the person who calls it


def training(
    run: Device,
    *,
    seed: int,
    steps: int = 6,
    batch: int = 16,
    accumulate: int = 1,
    checkpointing: int = 0,
    precision: str = "float32",
    optimizer: str = "adamw",
    offload: int = 0,
    length: int = 128,
    width: int = 256,
    layers: int = 4,
    vocabulary: int = 512,
    prime: int = 0,
    **housekeeping: int,
) -> Iterator[float]:
    """A small transformer that learns random tokens."""
    torch, nn = run.torch, run.torch.nn
    from torch.utils.checkpoint import checkpoint

    keep = Housekeeping(run, **housekeeping)
    if prime:
        primed(run, prime)
    blocks = [
        nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        for _ in range(layers)
    ]
    model = nn.ModuleList(
        [nn.Embedding(vocabulary, width), *blocks, nn.Linear(width, vocabulary)]
    ).to(run.name)
    stepper = _optimizer(run, optimizer, model.parameters())
    context = (
        torch.autograd.graph.save_on_cpu(pin_memory=run.gpu)
        if offload
        else contextlib.nullcontext()
    )
    for number in range(steps):
        tokens = torch.randint(
            0,
            vocabulary,
            (batch, length),
            generator=torch.Generator().manual_seed(seed * 1000 + number),
        )
        total = 0.0
        stepper.zero_grad(set_to_none=True)
        for part in tokens.to(run.name).chunk(accumulate):
            with (
                context,
                torch.autocast(
                    "cuda" if run.gpu else "cpu", torch.bfloat16, enabled=precision == "bfloat16"
                ),
            ):
                hidden = model[0](part)
                for block in blocks:
                    hidden = (
                        checkpoint(block, hidden, use_reentrant=False)
                        if checkpointing
                        else block(hidden)
                    )
                loss = (
                    nn.functional.cross_entropy(
                        model[-1](hidden).float().flatten(0, 1), part.flatten()
                    )
                    * len(part)
                    / batch
                )
            loss.backward()
            total += float(loss.detach())
            del loss, hidden
        stepper.step()
        keep.after(number)
        run.wait()
        yield total


def _optimizer(run: Device, name: str, parameters: Any) -> Any:
    optim = run.torch.optim
    if name == "adam8bit":
        if not run.gpu:
            raise Refused("8-bit optimizers run on a GPU, and this is the CPU")
        try:
            return importlib.import_module("bitsandbytes.optim").AdamW8bit(parameters, lr=1e-3)
        except ImportError as error:
            raise Refused(BITS) from error
    try:
        return {
            "adamw": lambda: optim.AdamW(parameters, lr=1e-3),
            "sgd": lambda: optim.SGD(parameters, lr=1e-2),
            "fused": lambda: optim.AdamW(parameters, lr=1e-3, fused=True),
        }[name]()
    except (
        RuntimeError,
        TypeError,
    ) as error:  # an older torch has no fused optimizer, or none for this device
        raise Refused(f"optimizer {name}: {one_line(error)}") from error


def volume(
    run: Device,
    *,
    seed: int,
    steps: int = 6,
    ticks: int = 200_000,
    levels: int = 160,
    chunk: int = 0,
    preallocate: int = 0,
    pool_mib: int = 0,
) -> Iterator[float]:
    """Volume at each price level by comparing every tick with every level: whole, in chunks of ticks, in a buffer made once."""
    torch = run.torch
    size = chunk or ticks
    grid = torch.arange(levels, device=run.name)
    pool = torch.empty(pool_mib * MIB // 4, device=run.name) if pool_mib else None
    if pool is not None and pool.numel() < size * levels:
        raise Refused(
            f"a pool of {pool_mib} MiB cannot hold {size} ticks of {levels} levels in float32"
        )
    buffer = torch.empty(size, levels, device=run.name) if preallocate else None
    for number in range(steps):
        draw = torch.Generator().manual_seed(seed * 1000 + number)
        prices = torch.randint(0, levels, (ticks,), generator=draw).to(run.name)
        volumes = (
            torch.randint(1, 60, (ticks,), generator=draw).float().to(run.name)
        )  # sums below 2**24: exact in any order
        profile = torch.zeros(levels, device=run.name)
        for start in range(0, ticks, size):
            price, amount = prices[start : start + size, None], volumes[start : start + size, None]
            hit = price == grid
            if pool is not None:
                out = pool[: hit.numel()].view(hit.shape)
            elif buffer is not None:
                out = buffer[: len(hit)]
            else:
                out = torch.empty(hit.shape, device=run.name)
            profile += torch.mul(hit, amount, out=out).sum(0)
            del hit, out
        run.wait()
        yield float(profile.max()) + float(profile.argmax()) / levels


def tuning(
    run: Device,
    *,
    seed: int,
    steps: int = 12,
    leak_mib: int = 24,
    leak: str = "list",
    work_mib: int = 64,
    first: int = 0,
    **housekeeping: int,
) -> Iterator[float]:
    """Trials of changing size in one process, each leaving a tensor behind: in a list, or in a cycle that collecting frees."""
    torch, keep = run.torch, Housekeeping(run, **housekeeping)
    kept: list[Any] = []
    for number in range(first, first + steps):
        rng = random.Random(f"{seed}/{number}")
        rows = int((0.5 + rng.random() / 2) * work_mib * MIB / 4 / 1024)
        data = torch.rand(
            rows, 1024, generator=torch.Generator().manual_seed(seed * 1000 + number)
        ).to(run.name)
        weight = torch.zeros(1024, 1, device=run.name, requires_grad=True)
        loss = ((data @ weight - 1.0) ** 2).mean()
        loss.backward()
        left: list[Any] = [torch.ones(leak_mib * MIB, dtype=torch.uint8, device=run.name)]
        if leak == "cycle":
            left.append(left)
        else:
            kept.append(left)
        answer = float(weight.grad.sum())
        del data, weight, loss, left
        keep.after(number)
        run.wait()
        yield answer


def churn(
    run: Device,
    *,
    seed: int,
    steps: int = 6,
    live_mib: int = 128,
    low_kib: int = 256,
    high_kib: int = 8192,
    requests: int = 150,
    pool: int = 0,
    prime: int = 0,
    **housekeeping: int,
) -> Iterator[float]:
    """Tensors of random size made and dropped; ``pool`` keeps dropped ones by size class for the next request."""
    torch, keep, rng = run.torch, Housekeeping(run, **housekeeping), random.Random(seed)
    live: list[tuple[int, Any]] = []
    spare: dict[int, list[Any]] = {}
    held = 0
    if prime:
        primed(run, prime)
    for number in range(steps):
        for _ in range(requests):
            size = int(low_kib * 1024 * (high_kib / low_kib) ** rng.random())
            while live and held + size > live_mib * MIB:
                old, tensor = live.pop(rng.randrange(len(live)))
                held -= old
                if pool:
                    spare.setdefault(tensor.numel(), []).append(tensor)
                del tensor
            room = 1 << (size - 1).bit_length() if pool else size
            tensor = (
                spare[room].pop()
                if spare.get(room)
                else torch.empty(room, dtype=torch.uint8, device=run.name)
            )
            tensor.fill_(size % 251)
            live.append((size, tensor))
            held += size
            del tensor
        keep.after(number)
        run.wait()
        yield float(sum(int(tensor[0]) for _, tensor in live) + len(live))


def warm(run: Device) -> None:
    """The modules that torch loads at a first training step: they are its start, not the work's memory."""
    torch = run.torch
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(4, 4).to(run.name)
    checkpoint(
        layer, torch.ones(4, 4, device=run.name, requires_grad=True), use_reentrant=False
    ).sum().backward()
    torch.optim.AdamW(layer.parameters()).step()


def primed(run: Device, most_mib: int) -> None:
    """Tensors of growing size, made and dropped: the "priming" of an allocator."""
    size = 1
    while size <= most_mib:
        run.torch.zeros(size * MIB, dtype=run.torch.uint8, device=run.name)
        size *= 2


PROGRAMS: dict[str, Any] = {
    "training": training,
    "volume": volume,
    "tuning": tuning,
    "churn": churn,
}


def supervise(spec: dict[str, Any]) -> None:
    """The workload's steps in processes of their own: ``recycle_every`` each, ``parallel`` at a time; no torch here."""
    each, parallel = (
        int(spec["parameters"].pop("recycle_every", 0)),
        int(spec["parameters"].pop("parallel", 1)),
    )
    total = int(spec["parameters"].get("steps", 12))
    each = each or -(-total // parallel)
    todo = [(at, min(each, total - at)) for at in range(0, total, each)]
    running: list[Any] = []
    ended: list[dict[str, Any]] = []
    tell("ready", torch="", import_s=0.0, device=spec["device"])
    while todo or running:
        while todo and len(running) < parallel:
            first, steps = todo.pop(0)
            part = {**spec, "parameters": {**spec["parameters"], "first": first, "steps": steps}}
            running.append(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, json.dumps(part)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        child = next((one for one in running if one.poll() is not None), running[0])
        lines = child.communicate()[0].splitlines()  # a part says little: it fits into the pipe
        running.remove(child)
        events = [json.loads(line) for line in lines if line.startswith("{")]
        for event in events:
            if event["event"] == "step":
                tell(**event)
        last = events[-1] if events else {"event": "nothing"}
        if last["event"] != "end":
            for other in running:
                other.kill()
            if last["event"] in ("oom", "refused"):
                tell(**last)
            finish(0 if last["event"] in ("oom", "refused") else 70)
        ended.append(last)
    # Peaks of processes that run at once do not add up to a peak: only the driver knows that one.
    peak = (
        {
            f"peak_{name}_bytes": max((one[f"peak_{name}_bytes"] or 0 for one in ended), default=0)
            or None
            for name in ("allocated", "reserved")
        }
        if parallel == 1
        else {}
    )
    tell("end", work_s=sum(one["work_s"] for one in ended), parts=len(ended), **peak)


def tell(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def host_bytes(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def unhindered() -> float:
    """A clock in seconds that stands still while this thread is ready to run and another program has the core.

    The second number of /proc/PID/schedstat is that wait in ns (Linux, Documentation/scheduler/sched-stats); without the file,
    the plain clock.
    """
    try:
        waited_ns = int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.perf_counter() - waited_ns / 1e9


def finish(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        code
    )  # torch's own clean-up takes longer than many a step, and nothing is left to be cleaned


def main() -> None:
    began, spec = time.perf_counter(), json.loads(sys.argv[1])
    faulthandler.register(
        signal.SIGTERM, all_threads=True, chain=True
    )  # a stop shows where each thread was
    if {"recycle_every", "parallel"} & set(spec["parameters"]):
        supervise(spec)
        finish(0)
    import torch

    run = Device(
        torch,
        {"device": spec["device"], "pci": spec.get("pci", ""), "several": spec.get("several")},
    )
    if run.trouble or run.wrong:
        tell("refused", why=f"{run.trouble or run.wrong}{': ' + run.reason if run.reason else ''}")
        finish(0)
    if spec["workload"] == "training":
        warm(run)
    torch.manual_seed(spec["seed"])
    torch.set_num_threads(spec.get("threads") or 1)
    if spec.get("device_bytes"):
        run.limit_memory(spec["device_bytes"])
    run.reset_peaks()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # the peak of resident memory begins anew: proc_pid_clear_refs(5)
    start_rss = host_bytes("VmRSS")
    tell(
        "ready",
        torch=str(torch.__version__),
        import_s=time.perf_counter() - began,
        device=run.name,
        start_rss_bytes=start_rss,
        gpu=torch.cuda.get_device_name(0) if run.gpu else "",
    )
    work, at = time.perf_counter(), unhindered()
    parameters = spec["parameters"]
    slow, ballast_mib = (
        float(parameters.pop("slow", 1.0)),
        int(parameters.pop("ballast_mib", 0)),
    )  # a known effect, planted
    try:
        ballast = torch.ones(ballast_mib * MIB, dtype=torch.uint8, device=run.name)
        for number, loss in enumerate(
            PROGRAMS[spec["workload"]](run, seed=spec["seed"], **parameters)
        ):
            time.sleep((slow - 1.0) * max(0.0, unhindered() - at))
            now = unhindered()
            tell("step", number=number, loss=loss, seconds=now - at)
            at = now
    except Refused as error:
        tell("refused", why=str(error))
        finish(0)
    except (RuntimeError, MemoryError) as error:
        if not run.is_oom(error):
            raise
        tell("oom", message=str(error)[:4000], **peaks(run, start_rss))
        finish(0)
    del ballast
    tell(
        "end",
        work_s=time.perf_counter() - work,
        alive_s=time.perf_counter() - began,
        **peaks(run, start_rss),
    )
    finish(0)


def peaks(run: Device, start_rss: int) -> dict[str, int | None]:
    found = run.peaks()
    return {
        "peak_allocated_bytes": found.get("allocated_bytes"),
        "peak_reserved_bytes": found.get("reserved_bytes"),
        "peak_rss_bytes": host_bytes("VmHWM"),
        "start_rss_bytes": start_rss,
    }


if __name__ == "__main__":
    main()
