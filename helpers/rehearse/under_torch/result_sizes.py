"""Computes small tensors of a rehearsed program on the CPU, in the memory of the simulated card.

What a program decides by values on its card depends on small tensors: masks, counts, lengths,
whether all sequences have ended. The host can touch their memory, so each operator whose tensors
are all small runs once more over it. Products, convolutions and random operators are left out:
their results are unknown and taken as 0 (an index: as the middle of its range, `all`: as true), and
what is computed from them is unknown, too. Where unknown values decide how large a result is, its
size is taken at a bound (BOUNDS).

All is in one class, and so in one file, since each step asks in which memory values are unknown.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .operators import Operator, Torch, kind_of, name_of
from .witness import AS_IN_MEMORY, Witness

Tensor = Any
Value = Any  # a tensor, a number, or a list of them
SMALL = 1 << 16
"""The most elements that a tensor may have to be computed along on the CPU. Our choice: elementwise
work on so few takes well below a millisecond.
"""
SMALL_WHOLE = 1 << 20
"""The same for whole numbers, which more often decide something: masks of long inputs, lengths."""
MOVED = 1 << 20
"""The most bytes that the simulated card copies at all (FAKE_COPY_MAX in device.c)."""
MOST_OF_ERROR = 200
"""Characters of an error that are reported, in a line among others."""
INDEX_FIRST = ("argmax", "argmin", "multinomial", "max", "min", "median")
"""Operators whose results of int64 are indices."""
INDEX_SECOND = ("topk", "sort", "kthvalue")
"""Operators of whose results all but the first are."""
BOUNDS: dict[str, Callable[[int], int]] = {
    "least": lambda _elements: 0,
    "typical": lambda elements: (elements + 1) // 2,
    "most": lambda elements: elements,
}
"""How many of so many elements a result of unknown values has, by the name of --values. For typical
the size is first computed from the zeros that stand for the values.
"""


@dataclass
class Call:
    """A call of an operator: its ``kind`` (kind_of), its arguments, and as ``inputs`` the tensors
    of the card among them.
    """

    operator: Operator
    kind: str
    args: Sequence[Value]
    kwargs: dict[str, Value]
    inputs: list[Tensor]

    @property
    def name(self) -> str:
        return name_of(self.operator)

    @property
    def in_place(self) -> bool:
        """Whether it writes to one of its arguments."""
        return bool(self.operator._schema.is_mutable)

    def argument(self, name: str) -> Value:
        """The positional argument of that name; None where it is not given."""
        for argument, value in zip(self.operator._schema.arguments, self.args):  # noqa: B905 -- Python 3.9
            if argument.name == name:
                return value
        return None


class ShadowComputation:
    """Runs each operator on the simulated card, which computes nothing, and once more on the CPU
    over the card's memory where that is small. ``bound_name``: a key of BOUNDS.
    """

    def __init__(self, torch: Torch, witness: Witness, bound_name: str):
        self.torch = torch
        self.witness = witness
        self.bound_name = bound_name
        self.bound = BOUNDS[bound_name]
        self.live = True
        """False in a forked process, where the card's memory is another's."""
        self.unknown = set[int]()
        """The addresses (place_of) of memory with unknown values."""
        self.received: dict[int, str] = {}
        """By the address of what a rank without the others would receive, and of what is computed
        from it, the collective.
        """
        self.plain = torch.Tensor.__torch_dispatch__
        self.kind = functools.cache(functools.partial(kind_of, torch))
        """kind_of, which keeps its answers."""
        self.is_alone = "CASEBOOK_WORLD" in os.environ
        """Whether this is one rank of a job without the others."""

    def run(
        self, operator: Operator, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value:
        """Run an operator on the card, and compute it along where that can be done. Returns its
        result of the card.
        """
        kind = self.kind(operator)
        if not self.live or kind == "views":
            return operator(*args, **kwargs)
        if kind == "exchanges":
            return self.exchange(operator, args, kwargs)
        arguments = (*args, *kwargs.values())
        inputs = self.device_tensors(arguments)
        call = Call(operator, kind, args, kwargs, inputs)
        result = None
        unknown = True
        # An error in what is computed beside the program must not reach it: then nothing is known.
        with self.unseen(operator):
            unknown = kind != "fills" and self.any_unknown(inputs)
            result, unknown = self.before(call, unknown)
        try:
            out = operator(*args, **kwargs)
        finally:
            self.witness.coming.clear()
            self.witness.collective = ""
        with self.unseen(operator):
            self.after(call, out, result, unknown)
        return out

    def exchange(
        self, operator: Operator, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value:
        """Run a collective. The device moves what ranks exchange; what a rank without the others
        would receive is unknown, and taken as what it sends.
        """
        out = operator(*args, **kwargs)
        if not self.is_alone:
            return out
        self.witness.exchanges += 1
        if name_of(operator) == "send":
            return out
        with self.unseen(operator):
            # Functional collectives return what they receive and send their first argument; those
            # of c10d receive into the first, and send it or the second.
            if "functional" in operator._schema.name:
                received = self.device_tensors(out)
                sent = self.device_tensors(args[:1])
            else:
                received = self.device_tensors(args[:1])
                sent = self.device_tensors(args[1:2])
            for number, tensor in enumerate(received):
                if sent:
                    self.fill_from(tensor, sent[number % len(sent)])
                elif "recv" in name_of(operator):
                    self.zero(tensor)
            self.mark(received, unknown=True)
            collective = name_of(operator).rstrip("_")
            self.received.update(dict.fromkeys(map(place_of, received), collective))
        return out

    @contextlib.contextmanager
    def unseen(self, operator: Operator) -> Iterator[None]:
        """A context for work that the program does not see: its first error is reported at the end.

        It runs on one thread: several would wait for each other where other programs use the cores.
        """
        threads = self.torch.get_num_threads()
        self.torch.set_num_threads(1)
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- any operator of any release may come
            if not self.witness.beside:
                says = f"{operator}: {error!r}"
                self.witness.beside = says[:MOST_OF_ERROR]
        finally:
            self.torch.set_num_threads(threads)

    def before(self, call: Call, unknown: bool) -> tuple[Value, bool]:
        """Before the operator runs: tell the witness how to answer the reads to come.

        ``unknown``: whether values of its inputs are unknown. Returns two things: the result of the
        operator where it had to be computed for its size, else None; and whether the values of the
        result are unknown.
        """
        if call.kind == "sizes" and call.inputs:
            return self.before_sizes(call, unknown)
        if call.kind == "reads":
            self.witness.coming.append((AS_IN_MEMORY, not unknown))
            self.witness.collective = self.collective_behind(call)
        elif call.kind == "masks":
            self.before_masks(call)
        # Only in a backward pass is it read how many elements of the mask are true.
        elif call.kind == "scatters" and self.torch.is_grad_enabled():
            target, mask, source = call.args[:3]
            if source.requires_grad:
                self.witness.later.append(self.count(mask.expand_as(target)))
        return None, unknown

    def before_sizes(self, call: Call, unknown: bool) -> tuple[Value, bool]:
        """Announce the size of a result that values decide: as computed, else at the bound. Returns
        the result if it was computed (else None), and whether it is unknown.
        """
        result = None
        if not unknown or self.bound_name == "typical":
            result = self.recompute_on_cpu(call, "computes", None)
        size_is_unknown = unknown or result is None
        # Of the zeros that stand for unknown values often nothing is left: then the bound counts.
        if unknown and result is not None and not flattened((result,))[0].numel():
            result = None
        coming = self.witness.coming
        coming.append((self.size(call, result), not size_is_unknown))
        # repeat_interleave reads once more, whether no repeat is negative: true.
        if "repeat" in call.name:
            coming.append((1, not size_is_unknown))
        return result, size_is_unknown

    def before_masks(self, call: Call) -> None:
        """Announce how many elements the masks of an index select, which is read now and once more
        in a backward pass: in that of ``x[mask]`` through x, in that of ``x[mask] = y`` through y.
        """
        counts = [self.count(index) for index in call.args[1] if index is not None]
        needs_gradient = call.args[0].requires_grad
        if len(call.args) > 2:
            put = call.args[2]
            needs_gradient = put.requires_grad
            is_number = put.numel() == 1 and not put.is_cuda
            if is_number and len(counts) == 1:
                return  # it is put without counting (canDispatchToMaskedFill in ATen)
        masks = [count for count in counts if count[0] >= 0]
        self.witness.coming += masks
        if self.torch.is_grad_enabled() and needs_gradient:
            self.witness.later += masks

    def after(self, call: Call, out: Value, result: Value, unknown: bool) -> None:
        """After the operator ran: fill in its results, and note whether their values are unknown."""
        outputs = self.device_tensors(out)
        if call.kind == "allocates":
            self.mark(outputs, unknown=False)
        elif call.kind == "reads" and outputs:
            self.after_move(call, outputs, unknown)
        elif call.kind == "reads":
            if isinstance(out, self.torch.Tensor):
                self.after_read(call, out, unknown)
        elif outputs:
            self.after_computing(call, outputs, result, unknown)

    def after_move(self, call: Call, outputs: list[Tensor], unknown: bool) -> None:
        """After a copy to the card or on it: fill in what the card did not move."""
        output = outputs[0]
        in_place = output is call.args[0]
        if in_place:
            source = call.args[1]
            result = self.recompute_on_cpu(call, "writes", outputs)
        else:
            source = call.args[0]
            result = self.recompute_on_cpu(call, "computes", outputs)
        moved = output.nbytes <= MOVED and output.dtype == source.dtype
        lost = result is None and not moved
        self.mark(outputs, unknown or lost)
        if lost and not in_place:
            self.zero(output)

    def after_read(self, call: Call, out: Tensor, unknown: bool) -> None:
        """After a copy to the host: fill in what the card did not compute.

        A tensor that is no single stretch of memory is gathered by a kernel first, which does not
        run. Unknown values become zeros, in place of whatever was in the memory.
        """
        kind = "computes"
        if out is call.args[0]:
            kind = "writes"
        result = self.recompute_on_cpu(call, kind, None)
        if result is None:
            if call.inputs and (unknown or not call.inputs[0].is_contiguous()):
                out.zero_()
        elif result is not out:
            out.copy_(result)

    def after_computing(
        self, call: Call, outputs: list[Tensor], result: Value, unknown: bool
    ) -> None:
        """After any other operator: write its results to the card, or assume them where they were
        not computed.
        """
        kind = call.kind
        if kind == "scatters" and call.in_place:
            kind = "writes"
        # Computed before the operator ran only where values decide the size of its result.
        if result is None:
            result = self.recompute_on_cpu(call, kind, outputs)
        else:
            result = self.write_result(outputs, result)
        keeps_rest = kind == "writes" or (kind == "masks" and call.in_place)
        if result is None and not keeps_rest:
            self.fill_unknown(call, outputs)
        collective = self.collective_behind(call)
        self.mark(outputs, unknown or result is None)
        if collective:
            self.received.update(dict.fromkeys(map(place_of, outputs), collective))

    def collective_behind(self, call: Call) -> str:
        """The collective by which a rank without the others got one of the inputs; empty for none."""
        names = (self.received.get(place_of(tensor), "") for tensor in call.inputs)
        return next(filter(None, names), "")

    def size(self, call: Call, result: Value) -> int:
        """How many elements or rows a result has whose size values decide."""
        if result is not None:
            first = flattened((result,))[0]
            if first.is_sparse:
                return int(first._nnz())
            return int(first.shape[0])
        elements = call.inputs[0].numel()
        size = self.bound(elements)
        if "unique" in call.name and elements > 0:
            size = max(size, 1)  # one value is there in any case
        return size

    def count(self, mask: Tensor) -> tuple[int, bool]:
        """How many elements a mask selects, and whether that is known; -1 for an index that is no
        mask.
        """
        # torch still takes uint8 as a mask, which bool replaced.
        if mask.dtype not in (self.torch.bool, self.torch.uint8):
            return -1, True
        times = 1
        for dimension, (length, stride) in enumerate(zip(mask.shape, mask.stride())):  # noqa: B905 -- Python 3.9
            if length > 1 and not stride:  # expanded: the same elements again and again
                times *= length
                mask = mask.narrow(dimension, 0, 1)
        if mask.numel() > SMALL_WHOLE:
            return times * self.bound(mask.numel()), False
        is_known = not self.any_unknown(self.device_tensors(mask))
        count = 0
        if is_known or self.bound_name == "typical":
            count = int(self.as_host(mask).count_nonzero())
        if not count and not is_known:
            count = self.bound(mask.numel())
        return times * count, is_known

    def recompute_on_cpu(
        self, call: Call, kind: str, outputs: list[Tensor] | None
    ) -> Value:
        """Run the operator on the CPU, over the card's memory. Returns its result; None where that
        is not possible.

        With ``outputs`` the result is written there, unless the operator wrote it in place.
        """
        if kind in ("unknown", "sizes"):
            return None
        if kind == "fills" and call.args[0].numel() > SMALL_WHOLE:
            return None
        try:
            kwargs = {name: self.as_host(value) for name, value in call.kwargs.items()}
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            args = call.args
            if kind == "fills":  # only the shape and the type of the first count
                like = self.torch.zeros((), dtype=args[0].dtype).expand(args[0].shape)
                result = call.operator(like, *self.as_host(args[1:]), **kwargs)
            else:
                result = call.operator(*self.as_host(args), **kwargs)
        except Exception:  # noqa: BLE001 -- too large, or an operator that the processor does not have: unknown
            return None
        if outputs is None or kind == "writes":
            return result
        return self.write_result(outputs, result)

    def write_result(self, outputs: list[Tensor], result: Value) -> Value:
        """Write what the CPU computed to the card's memory. Returns it; None where it does not fit
        there.
        """
        try:
            for output, computed in zip(outputs, flattened((result,))):  # noqa: B905 -- Python 3.9
                self.as_host(output).copy_(computed)
        except (ValueError, RuntimeError):
            return None
        return result

    def as_host(self, value: Value) -> Value:
        """A value for the CPU: a tensor of the card as one of the host over the same memory. Raises
        ValueError for a large one.
        """
        torch = self.torch
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.as_host, value))
        if not isinstance(value, torch.Tensor):
            return value
        most = SMALL_WHOLE
        if value.is_floating_point() or value.is_complex():
            most = SMALL
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        if value.numel() > most or not is_plain:
            raise ValueError("large")
        if not self.on_device(value):
            return value
        storage = value.untyped_storage()
        if not storage.nbytes():
            return torch.empty(value.shape, dtype=value.dtype)
        memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        view = torch.empty(0, dtype=value.dtype)
        offset = value.storage_offset()
        return view.set_(flat.untyped_storage(), offset, value.shape, value.stride())

    def fill_from(self, tensor: Tensor, source: Tensor) -> None:
        """Put the elements of another tensor into a small one, again and again until it is full."""
        with contextlib.suppress(ValueError):  # large
            elements = self.as_host(source).flatten()
            times = -(-tensor.numel() // max(1, elements.numel()))  # rounded up
            repeated = elements.repeat(times)[: tensor.numel()]
            self.as_host(tensor).copy_(repeated.view(tensor.shape))

    def fill_unknown(self, call: Call, outputs: list[Tensor]) -> None:
        """Fill results that were not computed with zeros, or with ``assumed_value``."""
        places = {place_of(value) for value in call.inputs}
        for position, output in enumerate(outputs):
            if place_of(output) in places:
                continue
            self.zero(output)
            value = self.assumed_value(call, position, output)
            if value and output.is_contiguous():
                with contextlib.suppress(ValueError):
                    self.as_host(output).fill_(value)

    def assumed_value(self, call: Call, position: int, output: Tensor) -> Value:
        """What every element of a result that was not computed is taken to be: the middle of the
        range of an index, true for ``all``, the argument ``low`` of a random number; else 0.
        ``position``: of the result among several.
        """
        low = call.argument("low")
        if low is not None:
            return low
        if call.name == "all":
            return 1
        is_second_index = position > 0 and call.name in INDEX_SECOND
        can_be_index = call.name in INDEX_FIRST or is_second_index
        if not can_be_index or output.dtype != self.torch.int64:
            return 0
        if not call.inputs or not call.inputs[0].dim():
            return 0
        return call.inputs[0].shape[-1] // 2

    def zero(self, tensor: Tensor) -> None:
        """Write zeros to the whole memory of a tensor."""
        storage = tensor.untyped_storage()
        self.witness.device.fake_zero(storage.data_ptr(), storage.nbytes())

    def made_unknown(self, out: Value, *arguments: Value) -> Value:
        """Make a result unknown, which is zeros then; where it shares the memory of an argument,
        that stays as it is. Returns the result.
        """
        places = {
            place_of(value) for value in flattened(arguments) if self.on_device(value)
        }
        for value in flattened((out,)):
            if hasattr(value, "__tensor_flatten__"):  # it stands for other tensors
                names = value.__tensor_flatten__()[0]
                self.made_unknown([getattr(value, name) for name in names])
            elif self.live and self.on_device(value) and place_of(value) not in places:
                self.unknown.add(place_of(value))
                self.zero(value)
        return out

    def gradients_unknown(self, arguments: Sequence[Value]) -> None:
        """Make unknown what a hook of a backward pass gets: gradients, or a parameter that has one."""
        for tensor in self.device_tensors(arguments):
            is_parameter = tensor.is_leaf and tensor.requires_grad
            if is_parameter:
                tensor = tensor.grad
            self.made_unknown(tensor)

    def any_unknown(self, tensors: Sequence[Tensor]) -> bool:
        """Whether one of them has unknown values."""
        return any(place_of(tensor) in self.unknown for tensor in tensors)

    def mark(self, tensors: Sequence[Tensor], unknown: bool) -> None:
        """Note whether these have unknown values."""
        for tensor in tensors:
            place = place_of(tensor)
            self.unknown.discard(place)
            if unknown:
                self.unknown.add(place)
            self.received.pop(place, None)

    def device_tensors(self, values: Value) -> list[Tensor]:
        """The tensors of the card among these values, which may be lists of others."""
        return [value for value in flattened((values,)) if self.on_device(value)]

    def on_device(self, value: Value) -> bool:
        """Whether a value is a tensor with memory of the card: no sparse one, and none that stands
        for other tensors.
        """
        if not isinstance(value, self.torch.Tensor) or not self.are_plain((value,)):
            return False
        return bool(value.is_cuda and value.layout is self.torch.strided)

    def are_plain(self, values: Sequence[Value]) -> bool:
        """Whether no tensor among them stands for others, or for none, as in a trace: such classes
        dispatch operators by themselves.
        """
        for value in flattened(values):
            is_tensor = isinstance(value, self.torch.Tensor)
            if is_tensor and type(value).__torch_dispatch__ != self.plain:
                return False
        return True


def flattened(values: Sequence[Value]) -> list[Value]:
    """All values, and those in lists and tuples one by one."""
    flat: list[Value] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            flat += flattened(value)
        else:
            flat.append(value)
    return flat


def place_of(tensor: Tensor) -> int:
    """The address at which a tensor's memory begins; -1 for a sparse or wrapped tensor, which has
    none of its own.
    """
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return -1
