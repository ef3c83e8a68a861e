"""Checks whether torch works on this device: a program, one JSON argument in, one JSON line out
when each check starts and when it ends.

It runs under the user's own torch (1.13 or later); helpers/trials/checks.py starts, watches and
reads it. The row of a check's end has ``state`` (passed, failed, not_run), ``says`` (one sentence
without times, paths or versions), ``max_error``, the allocator's peaks in bytes, an error's
``message``, and ``figures`` with their unit in the name.
"""

from __future__ import annotations

import copy
import faulthandler
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.device import SEED, Device, Failed
from helpers.trials.under_torch.frame import GIB, MIB, NotRun, Row, is_oom, one_line
from helpers.trials.under_torch.ladder import ladder

if TYPE_CHECKING:
    from torch import Tensor, nn

MATRIX_SIZE = 256
TOLERANCE = {"float32": 2.0**-16, "bfloat16": 2.0**-7}
"""The largest error of an element of a product A B over that element of |A| |B|, against float64 on
the CPU.

fp32 stays below k * 2**-24 = 2**-16 for k = MATRIX_SIZE in any order of summation (Higham, Accuracy
and Stability of Numerical Algorithms, 3.5), and TF32 does not. bf16 has four roundings of 2**-9,
since a library may add partial sums in bf16.
"""
NETWORK_TOLERANCE = 1e-4
"""The largest error of the loss and of each gradient over its largest value, fp32 against float64:
some hundred roundings of 6e-8, with room to spare.
"""
COPIED_WORDS = (1, 4097, 4 * MIB)
"""Sizes of a copy in words of 4 bytes: the smallest, one that fills no whole page, and 16 MiB."""
THREADS = 2
"""Of the CPU, for references: more would slow down other programs of the box."""
DUMP_SHARE = 0.9
"""A hung check leaves its Python stack after this share of its time, before the parent ends it."""
Check = Callable[[Device], Row]
"""A check returns what it says and measured. Raises Failed, or NotRun if it does not apply here."""


def enumeration(device: Device) -> Row:
    """Whether torch sees any device, and which."""
    if not device.gpu:
        return {"says": "torch works on the CPU"}
    if device.trouble:
        raise Failed(device.trouble, message=device.reason)
    cuda = device.torch.cuda
    cards = [cuda.get_device_properties(index) for index in range(cuda.device_count())]
    names = [f"{card.name} with {card.total_memory / GIB:.2f} GiB" for card in cards]
    sizes = [card.total_memory for card in cards]
    return {
        "says": "torch sees " + " and ".join(names),
        "figures": {"total_bytes": sizes},
    }


def alone(device: Device) -> Row:
    """Whether torch sees only the GPU that it should see."""
    if not device.gpu:
        raise NotRun("not run because it is about GPUs and this is the CPU")
    if device.trouble:
        raise NotRun("not run because " + device.trouble)
    if device.wrong:
        raise Failed(device.wrong)
    return {"says": "torch sees this GPU and no other"}


def matmul(device: Device, kind: str) -> Row:
    """A matrix product of this kind of number against the same in float64 on the CPU."""
    torch = device.torch
    if kind == "bfloat16" and device.gpu and not _has_bf16(torch):
        raise NotRun("not run because this GPU has no bf16")
    generator = device.generator()
    dtype = getattr(torch, kind)
    a = torch.randn(MATRIX_SIZE, MATRIX_SIZE, generator=generator).to(dtype)
    b = torch.randn(MATRIX_SIZE, MATRIX_SIZE, generator=generator).to(dtype)
    on_device = torch.matmul(a.to(device.name), b.to(device.name))
    product = on_device.to("cpu").double()
    a = a.double()
    b = b.double()
    difference = (product - torch.matmul(a, b)).abs()
    relative = difference / torch.matmul(a.abs(), b.abs())
    error = float(relative.max())
    limit = TOLERANCE[kind]
    if not error <= limit:  # also if it is NaN
        raise Failed(
            f"differs from the CPU reference by more than {limit:.1e}", max_error=error
        )
    return {
        "says": f"equal to the CPU reference within {limit:.1e}",
        "max_error": error,
    }


def _has_bf16(torch: ModuleType) -> bool:
    """Whether the GPU computes in bf16 itself."""
    try:
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    except TypeError:  # a release before that parameter, which does not count emulation
        return bool(torch.cuda.is_bf16_supported())


def network(device: Device) -> Row:
    """Loss and gradients of one step of a small network, against the same step in float64 on
    the CPU.

    It has no convolution, at whose first use MIOpen may compile kernels for minutes.
    """
    torch = device.torch
    nn = torch.nn
    torch.manual_seed(SEED)
    net = nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10)
    )
    twin = copy.deepcopy(net).double()
    x = torch.randn(32, 64, generator=device.generator())
    y = torch.arange(32) % 10
    results = _step(net.to(device.name), x.to(device.name), y.to(device.name))
    references = _step(twin, x.double(), y)
    if not all(bool(torch.isfinite(value).all()) for value in results):
        raise Failed("loss or gradients are not finite")
    errors = []
    for value, reference in zip(results, references):  # noqa: B905 -- Python 3.9
        difference = (value - reference).abs()
        errors.append(float(difference.max() / reference.abs().max()))
    error = max(errors)
    limit = f"{NETWORK_TOLERANCE:.1e}"
    if not error <= NETWORK_TOLERANCE:
        says = f"loss or gradients differ from the CPU's by more than {limit}"
        raise Failed(says, max_error=error)
    says = f"loss and gradients are finite and equal to the CPU's within {limit}"
    return {"says": says, "max_error": error}


def _step(net: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The loss of one step and the gradients of all parameters, copied to the CPU as float64."""
    from torch.nn.functional import cross_entropy

    loss = cross_entropy(net(x), y)
    loss.backward()
    values = [loss]
    for parameter in net.parameters():
        assert parameter.grad is not None
        values.append(parameter.grad)
    return [value.detach().to("cpu").double() for value in values]


def copies(device: Device, pinned: bool) -> Row:
    """Whether words that are copied to the device and back are the same, bit by bit."""
    if pinned and not device.gpu:
        raise NotRun("not run because pinned memory is about GPUs and this is the CPU")
    for words in COPIED_WORDS:
        sent = _words(device, words)
        if pinned:
            sent = sent.pin_memory()
        on_device = sent.to(device.name, non_blocking=pinned).clone()
        back = device.torch.empty_like(sent, pin_memory=pinned)
        back.copy_(on_device, non_blocking=pinned)
        device.wait()
        wrong = int((back != sent).sum())
        if wrong:
            raise Failed(
                "what came back is not what went there",
                message=f"{wrong} of {words} words of 4 bytes differ",
                figures={"wrong_words": wrong, "words": words},
            )
    return {"says": "16 MiB there and back are bit equal"}


def _words(device: Device, count: int) -> Tensor:
    """``count`` random words of 4 bytes on the host, the same in every run."""
    words: Tensor = device.torch.randint(
        -(2**31),
        2**31,
        (count,),
        generator=device.generator(),
        dtype=device.torch.int32,
    )
    return words


LOOKS: dict[str, Check] = {"enumeration": enumeration, "alone": alone}
"""Checks that take no device memory."""
LOADS: dict[str, Check] = {
    "matmul_fp32": partial(matmul, kind="float32"),
    "matmul_bf16": partial(matmul, kind="bfloat16"),
    "network": network,
    "copy_pageable": partial(copies, pinned=False),
    "copy_pinned": partial(copies, pinned=True),
}
"""Checks that share the time of one GPU."""
OPT_IN: dict[str, Check] = {"ladder": ladder}
"""Checks that run only where their name is given."""


def checks(device: Device) -> Iterator[Row]:
    """Run the checks of ``spec["names"]`` in order; yields a row at the start and end of each.

    After an unexpected error on a GPU it stops: the context may be broken, and the parent runs the
    rest in a new process.
    """
    spec = device.spec
    left_s = spec["gpu_s"]
    blocked = device.trouble or device.wrong
    for name in spec["names"]:
        yield {"event": "start", "check": name}
        limit_s = spec["start_s"]
        if name in OPT_IN:
            limit_s = spec["opt_in_s"]
        elif name in LOADS:
            limit_s = min(left_s, spec["check_s"])
        end: Row = {"event": "end", "check": name}
        if blocked and name not in LOOKS:
            yield {**end, "state": "not_run", "says": f"not run because {blocked}"}
            continue
        if limit_s < spec["least_s"]:
            yield {**end, "state": "not_run", "says": spec["used_up"]}
            continue
        # faulthandler writes the stack of a hung check without the GIL.
        faulthandler.dump_traceback_later(DUMP_SHARE * limit_s)
        began = time.monotonic()
        state, answer, may_be_broken = _outcome(device, name)
        faulthandler.cancel_dump_traceback_later()
        seconds = time.monotonic() - began
        if name in LOADS:
            left_s -= seconds
        yield {**end, "state": state, "seconds": round(seconds, 3), **answer}
        if may_be_broken:
            return


def _outcome(device: Device, name: str) -> tuple[str, Row, bool]:
    """Run a check: (its state, the rest of its row, whether this process may be broken now)."""
    most = device.spec["gpu_bytes"]
    try:
        if name in LOOKS:
            # A limit, a counter and a wait would each create a context on the GPU.
            return "passed", LOOKS[name](device), False
        device.limit_memory(most)
        device.reset_peaks()
        answer = {**LOADS, **OPT_IN}[name](device)
        device.wait()
        return "passed", {**answer, **device.peaks()}, False
    except NotRun as error:
        return "not_run", {"says": str(error)}, False
    except Failed as error:
        peaks = {}
        if name not in LOOKS:
            peaks = device.peaks()
        return "failed", {"says": str(error), **error.measured, **peaks}, False
    except Exception as error:  # noqa: BLE001  whatever a check raises is its result
        message = f"{type(error).__name__}: {one_line(error)}"
        if not is_oom(device.torch, error):
            says = "ended with an error"
            return "failed", {"says": says, "message": message}, device.gpu
        # The card has room, so it was the limit of this check that refused it.
        if device.gpu and device.free_bytes() > most:
            says = f"not run because it needs more than the {most // MIB} MiB that a check may take"
            return "not_run", {"says": says, "message": message}, False
        says = "there is not enough memory for it"
        return "failed", {"says": says, "message": message}, False


def work(spec: Row) -> Iterator[Row]:
    """A row with torch's version or why there is no torch, then the rows of the checks."""
    faulthandler.dump_traceback_later(DUMP_SHARE * spec["start_s"])
    try:
        torch = frame.import_torch()
    except frame.NoTorch as error:
        yield {"event": "no_torch", "missing": error.missing, "message": str(error)}
        return
    torch.set_num_threads(THREADS)
    device = Device(torch, spec)
    faulthandler.cancel_dump_traceback_later()
    yield {"event": "ready", "torch": str(torch.__version__)}
    yield from checks(device)


def main() -> None:
    frame.run(work)
