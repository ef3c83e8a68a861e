"""Does torch work on this device? A program: one JSON argument in, one JSON line out when each check starts and when it ends.

It runs under the user's own torch (1.13 or later); helpers/load/checks.py starts, watches and reads it. The end of a check
says ``state`` (passed, failed, not_run), ``says`` (one sentence without times, paths or versions), ``max_error``, the
allocator's peaks in bytes, an error's message, and figures with their unit in the name.

Tolerances. Matrix product with k = 256: the error of each element over that element of |A| |B|, against float64 on the CPU.
fp32 stays below k * 2**-24 = 2**-16 in any order of summation (Higham, Accuracy and Stability of Numerical Algorithms, 3.5),
and TF32 does not; bf16 has 2**-7, four roundings of 2**-9, since a library may add partial sums in bf16. Network: 1e-4 of the
largest value of the loss and of each gradient, fp32 against float64. Copies: bit equal.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from helpers.torchside import pairs
from helpers.torchside.device import GIB, MIB, SEED, Device, Failed, NotRun, one_line
from helpers.torchside.ladder import ladder

TOLERANCE = {"float32": 2.0**-16, "bfloat16": 2.0**-7}
NETWORK_TOLERANCE = 1e-4


def enumeration(device: Device) -> dict[str, Any]:
    if not device.gpu:
        return {"says": "torch works on the CPU"}
    if device.trouble:
        raise Failed(device.trouble, message=device.reason)
    seen = [
        device.torch.cuda.get_device_properties(index)
        for index in range(device.torch.cuda.device_count())
    ]
    return {
        "says": "torch sees "
        + " and ".join(f"{p.name} with {p.total_memory / GIB:.2f} GiB" for p in seen),
        "figures": {"total_bytes": [p.total_memory for p in seen]},
    }


def alone(device: Device) -> dict[str, Any]:
    if not device.gpu:
        raise NotRun("not run because it is about GPUs and this is the CPU")
    if device.trouble:
        raise NotRun("not run because " + device.trouble)
    if device.wrong:
        raise Failed(device.wrong)
    return {"says": "torch sees this GPU and no other"}


def matmul(device: Device, kind: str) -> dict[str, Any]:
    torch = device.torch
    if kind == "bfloat16" and device.gpu and not _has_bf16(torch):
        raise NotRun("not run because this GPU has no bf16")
    generator = device.generator()
    a, b = (torch.randn(256, 256, generator=generator).to(getattr(torch, kind)) for _ in range(2))
    got = torch.matmul(a.to(device.name), b.to(device.name)).to("cpu").double()
    a, b = a.double(), b.double()
    error = float(((got - torch.matmul(a, b)).abs() / torch.matmul(a.abs(), b.abs())).max())
    limit = TOLERANCE[kind]
    # Written so that a NaN fails.
    if not error <= limit:
        raise Failed(f"differs from the CPU reference by more than {limit:.1e}", max_error=error)
    return {"says": f"equal to the CPU reference within {limit:.1e}", "max_error": error}


def _has_bf16(torch: Any) -> bool:
    try:
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    except TypeError:
        return bool(torch.cuda.is_bf16_supported())


def network(device: Device, wrap: Callable[[Any], Any] = lambda net: net) -> dict[str, Any]:
    """Loss and gradients of one step of a small network, ``wrap`` around it, against the same step in float64 on the CPU.

    Linear layers only: at a convolution's first use MIOpen may compile kernels for minutes.
    """
    torch = device.torch
    nn = torch.nn
    torch.manual_seed(SEED)
    net, twin = (
        nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10))
        for _ in range(2)
    )
    twin.load_state_dict(net.state_dict())
    x, y = torch.randn(32, 64, generator=device.generator()), torch.arange(32) % 10
    got = _step(torch, net.to(device.name), wrap, x.to(device.name), y.to(device.name))
    expected = _step(torch, twin.double(), lambda net: net, x.double(), y)
    if not all(bool(torch.isfinite(value).all()) for value in got):
        raise Failed("loss or gradients are not finite")
    error = max(map(lambda g, e: float((g - e).abs().max() / e.abs().max()), got, expected))
    if not error <= NETWORK_TOLERANCE:
        raise Failed(
            f"loss or gradients differ from the CPU's by more than {NETWORK_TOLERANCE:.1e}",
            max_error=error,
        )
    return {
        "says": f"loss and gradients are finite and equal to the CPU's within {NETWORK_TOLERANCE:.1e}",
        "max_error": error,
    }


def _step(torch: Any, net: Any, wrap: Callable[[Any], Any], x: Any, y: Any) -> list[Any]:
    loss = torch.nn.functional.cross_entropy(wrap(net)(x), y)
    loss.backward()
    return [
        value.detach().to("cpu").double() for value in (loss, *(p.grad for p in net.parameters()))
    ]


def copies(device: Device, pinned: bool) -> dict[str, Any]:
    torch = device.torch
    if pinned and not device.gpu:
        raise NotRun("not run because pinned memory is about GPUs and this is the CPU")
    for words in (1, 4097, 4 * MIB):
        there = torch.randint(
            -(2**31), 2**31, (words,), generator=device.generator(), dtype=torch.int32
        )
        there = there.pin_memory() if pinned else there
        on_device = there.to(device.name, non_blocking=pinned).clone()
        back = torch.empty_like(there, pin_memory=pinned)
        back.copy_(on_device, non_blocking=pinned)
        device.wait()
        wrong = int((back != there).sum())
        if wrong:
            raise Failed(
                "what came back is not what went there",
                message=f"{wrong} of {words} words of 4 bytes differ",
                figures={"wrong_words": wrong, "words": words},
            )
    return {"says": "16 MiB there and back are bit equal"}


# Those that take no device memory, those that share the time of one GPU, and those that are asked for by name.
LOOKS: dict[str, Callable[[Device], dict[str, Any]]] = {"enumeration": enumeration, "alone": alone}
LOADS: dict[str, Callable[[Device], dict[str, Any]]] = {
    "matmul_fp32": lambda device: matmul(device, "float32"),
    "matmul_bf16": lambda device: matmul(device, "bfloat16"),
    "network": network,
    "copy_pageable": lambda device: copies(device, pinned=False),
    "copy_pinned": lambda device: copies(device, pinned=True),
}
OPT_IN: dict[str, Callable[[Device], dict[str, Any]]] = {
    "ladder": ladder,
    "peer_access": pairs.peer_access,
    "pair_copy": pairs.pair_copy,
    "all_reduce_gloo": lambda device: pairs.all_reduce(device, "gloo"),
    "all_reduce_nccl": lambda device: pairs.all_reduce(device, "nccl"),
    "data_parallel": lambda device: network(
        device, lambda net: device.torch.nn.DataParallel(net, device_ids=[0, 1])
    ),
}


def run(device: Device, tell: Callable[..., None]) -> None:
    """Run the checks of ``spec["names"]`` in order and tell each one's start and end.

    After an error that no check expects on a GPU the rest is left undone: the context may be broken, and the parent runs them
    in a fresh process.
    """
    spec, spent_s = device.spec, 0.0
    blocked = device.trouble or device.wrong
    for name in spec["names"]:
        check = {**LOOKS, **LOADS, **OPT_IN}[name]
        left_s = (
            spec["gpu_s"] - spent_s
            if name in LOADS
            else spec["opt_in_s"]
            if name in OPT_IN
            else spec["start_s"]
        )
        tell(event="start", check=name)
        if blocked and name not in LOOKS:
            tell(event="end", check=name, state="not_run", says="not run because " + blocked)
            continue
        if left_s < spec["least_s"]:
            tell(event="end", check=name, state="not_run", says=spec["used_up"])
            continue
        # A hang then leaves its Python stack on stderr before the parent's limit ends it; no GIL is needed for that.
        faulthandler.dump_traceback_later(
            0.9 * min(left_s, spec["check_s"] if name in LOADS else left_s)
        )
        began = time.monotonic()
        state, answer, broken = _outcome(device, check, name in LOOKS)
        faulthandler.cancel_dump_traceback_later()
        seconds = time.monotonic() - began
        spent_s += seconds if name in LOADS else 0.0
        tell(event="end", check=name, state=state, seconds=round(seconds, 3), **answer)
        if broken:
            return


def _outcome(
    device: Device, check: Callable[[Device], dict[str, Any]], looks: bool
) -> tuple[str, dict[str, Any], bool]:
    """State, what to tell of it, and whether this process may be broken by now."""
    try:
        if looks:
            # No limit, no counter, no wait: each would take a context.
            return "passed", check(device), False
        device.limit_memory(device.spec["gpu_bytes"])
        device.reset_peaks()
        answer = check(device)
        device.wait()
        return "passed", {**answer, **device.peaks()}, False
    except NotRun as error:
        return "not_run", {"says": str(error)}, False
    except Failed as error:
        return (
            "failed",
            {"says": str(error), **error.measured, **({} if looks else device.peaks())},
            False,
        )
    except Exception as error:  # noqa: BLE001  whatever a check raises is its result
        message = f"{type(error).__name__}: {one_line(error)}"
        if not device.is_oom(error):
            return "failed", {"says": "ended with an error", "message": message}, device.gpu
        if device.gpu and device.free_bytes() > device.spec["gpu_bytes"]:
            says = f"not run because it needs more than the {device.spec['gpu_bytes'] // MIB} MiB that a check may take"
            return "not_run", {"says": says, "message": message}, False
        return "failed", {"says": "there is not enough memory for it", "message": message}, False


def main() -> None:
    """Read the spec from argv, import torch, run the checks."""
    spec = json.loads(sys.argv[1])
    # Only the lines of this program reach the parent's pipe; what libraries print on stdout goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    faulthandler.dump_traceback_later(0.9 * spec["start_s"])

    def tell(**message: Any) -> None:
        _write(answers, message)

    try:
        import torch
    except Exception as error:  # noqa: BLE001  a broken torch raises anything: ImportError, OSError of a library, NameError
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        tell(
            event="no_torch", missing=missing, message=f"{type(error).__name__}: {one_line(error)}"
        )
        return
    torch.set_num_threads(2)
    device = Device(torch, spec)
    faulthandler.cancel_dump_traceback_later()
    tell(event="ready", torch=str(torch.__version__))
    run(device, tell)


def _write(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
