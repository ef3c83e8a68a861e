"""Small tensors of a rehearsed program, computed for real by the processor in the device's own
memory.

What a program decides by values on its device depends on small tensors: masks, counts, lengths,
whether all sequences have ended. The host can touch their memory, so each operator whose tensors
are all small runs once more over it. Products, convolutions and random operators are left out:
their results are unknown, taken as 0 (an index: as the middle of its range, `all`: as true), and
what is computed from them is unknown, too. How large a result of unknown values is: at a stated
bound.

All in one class, and so in one file, since each step asks what is known of which memory.
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
from .witness import Witness

Tensor = Any
Value = Any  # a tensor, a number, or a list of them
SMALL = 1 << 16
SMALL_WHOLE = 1 << 20  # elements; of whole numbers: masks of long inputs, lengths
MOVED = 1 << 20  # bytes: what the device moves at all (FAKE_COPY_MAX)
INDEX_FIRST = ("argmax", "argmin", "multinomial", "max", "min", "median")
INDEX_SECOND = ("topk", "sort", "kthvalue")
BOUNDS: dict[str, Callable[[int], int]] = {
    "least": lambda _elements: 0,
    "typical": lambda elements: (elements + 1) // 2,
    "most": lambda elements: elements,
}
"""Of so many elements, how many a result of unknown values has. Typical is tried with the zeros
that stand for them first.
"""


@dataclass
class Call:
    """One operator on its way: its kind, its arguments, and those of them on the device."""

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
        return bool(self.operator._schema.is_mutable)

    def argument(self, name: str) -> Value:
        """The positional argument of that name; None where it is not given."""
        for argument, value in zip(self.operator._schema.arguments, self.args):  # noqa: B905 -- Python 3.9
            if argument.name == name:
                return value
        return None


class ShadowComputation:
    """One operator after another: on the device, where nothing is computed, and over its
    memory, where that is small.

    ``bound_name`` is a name of BOUNDS.
    """

    def __init__(self, torch: Torch, witness: Witness, bound_name: str):
        self.torch = torch
        self.witness = witness
        self.bound_name = bound_name
        self.bound = BOUNDS[bound_name]
        self.live = True
        self.unknown = set[int]()
        self.received: dict[int, str] = {}
        """Of what a rank that is alone would receive, and of what is computed from it: the
        collective.
        """
        self.plain = torch.Tensor.__torch_dispatch__
        self.kind = functools.cache(functools.partial(kind_of, torch))
        """What is done about an operator, found out once for each."""
        self.is_alone = "CASEBOOK_WORLD" in os.environ

    def run(
        self, operator: Operator, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value:
        """The operator's own result, once on the device and once over its memory."""
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
        # What goes wrong in the shadow must not reach the program: then nothing is known.
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
        """A collective. The device moves what ranks exchange; what a rank that is alone would
        receive is unknown, and taken as what it sends.
        """
        out = operator(*args, **kwargs)
        if not self.is_alone:
            return out
        self.witness.exchanges += 1
        if name_of(operator) == "send":
            return out
        with self.unseen(operator):
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
        """Work that the program does not see; what goes wrong in it is reported at the end.

        On one thread, since several wait for each other where others use the cores.
        """
        threads = self.torch.get_num_threads()
        self.torch.set_num_threads(1)
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- any operator of any release may come
            if not self.witness.beside:
                self.witness.beside = f"{operator}: {error!r}"[:200]
        finally:
            self.torch.set_num_threads(threads)

    def before(self, call: Call, unknown: bool) -> tuple[Value, bool]:
        """Tell the witness how to answer the reads to come.

        Returns what the processor computed (None: nothing yet), and whether it is unknown.
        """
        if call.kind == "sizes" and call.inputs:
            return self.before_sizes(call, unknown)
        if call.kind == "reads":
            self.witness.coming.append((-1, not unknown))
            self.witness.collective = self.collective_behind(call)
        elif call.kind == "masks":
            self.before_masks(call)
        elif call.kind == "scatters" and self.torch.is_grad_enabled():
            target, mask, source = call.args[:3]
            if source.requires_grad:
                self.witness.later.append(self.count(mask.expand_as(target)))
        return None, unknown

    def before_sizes(self, call: Call, unknown: bool) -> tuple[Value, bool]:
        """The size of a result that values decide, as computed or at the bound."""
        result = None
        if not unknown or self.bound_name == "typical":
            result = self.recompute_on_cpu(call, "computes", None)
        size_is_unknown = unknown or result is None
        if unknown and result is not None and not flattened((result,))[0].numel():
            result = None
        coming = self.witness.coming
        coming.append((self.size(call, result), not size_is_unknown))
        if "repeat" in call.name:
            coming.append((1, not size_is_unknown))  # that none is negative
        return result, size_is_unknown

    def before_masks(self, call: Call) -> None:
        """The counts of an index's masks, now and once more in a backward pass."""
        counts = [self.count(index) for index in call.args[1] if index is not None]
        differentiated = call.args[0]
        if len(call.args) > 2:
            differentiated = call.args[2]
            is_number = differentiated.numel() == 1 and not differentiated.is_cuda
            if is_number and len(counts) == 1:
                return  # put there without counting (canDispatchToMaskedFill in ATen)
        masks = [count for count in counts if count[0] >= 0]
        self.witness.coming += masks
        if self.torch.is_grad_enabled() and differentiated.requires_grad:
            self.witness.later += masks

    def after(self, call: Call, out: Value, result: Value, unknown: bool) -> None:
        """Fill in what stands in the results, and note what is known of them."""
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
        """A copy that ends on the device."""
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
        """A copy that ends on the host.

        What is no single stretch of memory is gathered by a kernel first; in what nobody
        computed lies what lay there before.
        """
        kind = "writes" if out is call.args[0] else "computes"
        result = self.recompute_on_cpu(call, kind, None)
        if result is None:
            if call.inputs and (unknown or not call.inputs[0].is_contiguous()):
                out.zero_()
        elif result is not out:
            out.copy_(result)

    def after_computing(
        self, call: Call, outputs: list[Tensor], result: Value, unknown: bool
    ) -> None:
        """Results on the device: written, or assumed where nobody computed them."""
        kind = call.kind
        if kind == "scatters" and call.in_place:
            kind = "writes"
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
        """The collective that gave one of its inputs; empty for none."""
        names = (self.received.get(place_of(tensor), "") for tensor in call.inputs)
        return next(filter(None, names), "")

    def size(self, call: Call, result: Value) -> int:
        """How many elements or rows a result has whose size values decide."""
        if result is not None:
            first = flattened((result,))[0]
            return int(first._nnz() if first.is_sparse else first.shape[0])
        elements = call.inputs[0].numel()
        size = self.bound(elements)
        if "unique" in call.name and elements > 0:
            size = max(size, 1)
        return size

    def count(self, mask: Tensor) -> tuple[int, bool]:
        """How many places a mask names, and whether that is known; -1 for an index that is no
        mask.
        """
        if mask.dtype not in (self.torch.bool, self.torch.uint8):
            return -1, True
        times = 1
        for dimension, (length, stride) in enumerate(zip(mask.shape, mask.stride())):  # noqa: B905 -- Python 3.9
            if length > 1 and not stride:  # the same again and again
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
        """The same operator over the memory itself, by the processor.

        With ``outputs`` the result is written there, unless the operator wrote it in place. None
        where that is not done.
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
            if kind == "fills":  # of the first, its shape alone counts
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
        """Put what the processor computed into the device's memory; None where it has no place
        there.
        """
        try:
            for output, computed in zip(outputs, flattened((result,))):  # noqa: B905 -- Python 3.9
                self.as_host(output).copy_(computed)
        except (ValueError, RuntimeError):
            return None
        return result

    def as_host(self, value: Value) -> Value:
        """A value for the processor: a tensor of the device as its own memory.

        Raises ValueError for a large one.
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
            times = -(-tensor.numel() // max(1, elements.numel()))
            repeated = elements.repeat(times)[: tensor.numel()]
            self.as_host(tensor).copy_(repeated.view(tensor.shape))

    def fill_unknown(self, call: Call, outputs: list[Tensor]) -> None:
        """Put something into results that nobody computed: zeros, or ``assumed_value``."""
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
        """An index in the middle, true for ``all``, the ``low`` of a range; else 0."""
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
        """Zeros in place of what lay in that memory before."""
        storage = tensor.untyped_storage()
        self.witness.device.fake_zero(storage.data_ptr(), storage.nbytes())

    def made_unknown(self, out: Value, *arguments: Value) -> Value:
        """A result that nobody computed: zeros, but where it is an argument itself."""
        places = {
            place_of(value) for value in flattened(arguments) if self.on_device(value)
        }
        for value in flattened((out,)):
            if hasattr(value, "__tensor_flatten__"):  # it stands for others
                names = value.__tensor_flatten__()[0]
                self.made_unknown([getattr(value, name) for name in names])
            elif self.live and self.on_device(value) and place_of(value) not in places:
                self.unknown.add(place_of(value))
                self.zero(value)
        return out

    def gradients_unknown(self, arguments: Sequence[Value]) -> None:
        """What a hook of a backward pass gets: gradients, or a parameter that has one."""
        for tensor in self.device_tensors(arguments):
            is_parameter = tensor.is_leaf and tensor.requires_grad
            self.made_unknown(tensor.grad if is_parameter else tensor)

    def any_unknown(self, tensors: Sequence[Tensor]) -> bool:
        """Whether what lies in one of them is not known."""
        return any(place_of(tensor) in self.unknown for tensor in tensors)

    def mark(self, tensors: Sequence[Tensor], unknown: bool) -> None:
        """Note whether what lies in these is unknown."""
        change = self.unknown.add if unknown else self.unknown.discard
        for tensor in tensors:
            change(place_of(tensor))
            self.received.pop(place_of(tensor), None)

    def device_tensors(self, values: Value) -> list[Tensor]:
        """The tensors of the device among these values."""
        return [value for value in flattened((values,)) if self.on_device(value)]

    def on_device(self, value: Value) -> bool:
        """Whether it has memory of the device itself: what dispatches anew stands for other
        tensors, or for none.
        """
        if not isinstance(value, self.torch.Tensor) or not self.are_plain((value,)):
            return False
        return bool(value.is_cuda and value.layout is self.torch.strided)

    def are_plain(self, values: Sequence[Value]) -> bool:
        """Whether no tensor among them stands for others, or for none."""
        tensors = [
            value for value in flattened(values) if isinstance(value, self.torch.Tensor)
        ]
        return all(type(tensor).__torch_dispatch__ == self.plain for tensor in tensors)


def flattened(values: Sequence[Value]) -> list[Value]:
    """All values, those in lists and tuples one by one."""
    flat: list[Value] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            flat += flattened(value)
        else:
            flat.append(value)
    return flat


def place_of(tensor: Tensor) -> int:
    """Where its memory begins; -1 for a sparse or wrapped tensor, which has none of its own."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return -1
