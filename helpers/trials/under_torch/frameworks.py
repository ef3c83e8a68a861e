"""Train one small model in torch, JAX or TensorFlow on the CPU: one JSON argument in, JSON
lines out.

helpers/trials/training.py starts, limits and reads it. Weights and data are the same random
numbers, the steps plain descent. What is measured is resident memory (VmHWM, proc(5)) above
what was held once all was imported and the numbers were made: compiling counts, a library's own
size does not. torch runs eagerly, the others are compiled.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import random
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.frame import Row

RATE = 0.5
TOLERANCE = 1e-4


def numbers(spec: Row) -> list[tuple[Any, tuple[int, int]]]:
    """Data, goal and two layers' weights with their shapes: the same for the same seed
    whichever framework asks.
    """
    batch, width, hidden = (spec[name] for name in ("batch", "width", "hidden"))
    draw = random.Random(spec["seed"]).uniform
    shapes = [(width, hidden), (hidden, width)]

    def drawn(most: float, shape: tuple[int, int]) -> tuple[Any, tuple[int, int]]:
        return array("f", (draw(-most, most) for _ in range(shape[0] * shape[1]))), shape

    outer = [drawn(1.0, (batch, width)) for _ in "xy"]
    return [*outer, *(drawn(1 / math.sqrt(shape[0]), shape) for shape in shapes)]


def with_torch(torch: Any, given: Any) -> Callable[[], Any]:
    torch.set_num_threads(1)
    x, y, w, v = (torch.frombuffer(a, dtype=torch.float32).reshape(n) for a, n in given)
    weights = [w.clone().requires_grad_(), v.clone().requires_grad_()]

    def step() -> Any:
        loss = ((torch.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for one in weights:
                one -= RATE * one.grad
                one.grad = None
        return loss.detach()

    return step


def with_jax(jax: Any, given: Any) -> Callable[[], Any]:
    np = jax.numpy
    x, y, *weights = (np.asarray(a, dtype=np.float32).reshape(n) for a, n in given)

    def loss_of(weights: Any) -> Any:
        return ((np.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()

    @jax.jit
    def learnt(weights: Any) -> Any:
        loss, slopes = jax.value_and_grad(loss_of)(weights)
        return loss, [one - RATE * slopes[at] for at, one in enumerate(weights)]

    def step() -> Any:
        loss, weights[:] = learnt(weights)
        return loss

    return step


def with_tensorflow(tf: Any, given: Any) -> Callable[[], Any]:
    np = importlib.import_module("numpy")
    x, y, w, v = (np.frombuffer(a, dtype="float32").reshape(n) for a, n in given)
    weights = [tf.Variable(w), tf.Variable(v)]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ weights[0]) @ weights[1] - y) ** 2)
        slopes = tape.gradient(loss, weights)
        for at, one in enumerate(weights):
            one.assign_sub(RATE * slopes[at])
        return loss

    return step


WITH = {"torch": with_torch, "jax": with_jax, "tensorflow": with_tensorflow}


def framework(spec: Row) -> Iterator[Row]:
    """ready, a row a step, and the end: ran or not_run.

    Whatever a framework raises ends the program.
    """
    name = spec["path"]
    given = numbers(spec)
    if importlib.util.find_spec(name) is None:
        why = f"not installed in this Python; the line that would: pip install {spec['pip']}"
        yield {"event": "end", "state": "not_run", "why": why}
        return
    library = importlib.import_module(name)
    yield {"event": "ready"}
    began = time.monotonic()
    kept = Path(spec["folder"], "torch.json")
    losses = []
    start = frame.restart_peak()
    frame.limit_host(spec["limit_bytes"])
    step = WITH[name](library, given)
    for number in range(spec["steps"]):
        losses.append(float(step()))
        yield {"event": "step", "step": number + 1, "loss": losses[-1]}
    row = {"start_bytes": start, "peak_bytes": frame.own_bytes("VmHWM"), "equal": "not applicable"}
    held = f"{max(0, frame.own_bytes('VmRSS') - start) / frame.MIB:.1f} MiB still held at its end"
    if name == "torch":
        kept.write_text(json.dumps(losses))
    elif kept.exists():
        near = map(partial(math.isclose, rel_tol=TOLERANCE), losses, json.loads(kept.read_text()))
        row["equal"] = "within tolerance" if all(near) else "no"
        held += "; its losses beside torch's"
    says = f"{name} {library.__version__}; {held}"
    yield {"event": "end", "state": "ran", "seconds": time.monotonic() - began, "says": says, **row}


def main() -> None:
    frame.run(framework)
