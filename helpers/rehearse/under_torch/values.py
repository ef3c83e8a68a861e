"""In a rehearsed program: small tensors are computed for real, on the processor, in the
device's own memory.

What a program decides by the values of its device hangs on small tensors: masks, counts,
lengths, whether all sequences have ended. Their memory can be touched by the host, so each
operator whose tensors are all small runs once more over it. Products and convolutions are left
out, and so is what is random: their results are unknown, taken as 0 (an index: as the middle of
its range, `all`: as true), and what is made of them is unknown, too. How large a result of
unknown values is: at a stated bound.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from .witness import SIZES, Witness

SMALL = 1 << 16
SMALL_WHOLE = 1 << 20  # elements; of whole numbers: masks of long inputs, lengths
MOVED = 1 << 20  # bytes: what the device moves at all (FAKE_COPY_MAX)
LEFT_OUT = re.compile(
    r"(add|b|add?b|spars\w*)?(mm|mv)(_|$)|addm[mv]|baddbmm|conv|cudnn|scaled_dot|attention|_rnn|lstm|gru|grid_sampler"
    r"|linalg_|_linalg|fft|ctc_loss|_foreach|_fused|_amp_foreach|histc|native_\w*norm|embedding_bag|record_stream"
)
INDEX = ("argmax", "argmin", "multinomial", "topk", "max", "min", "sort", "kthvalue", "median")
NAMED = {
    "allocates": "lift_fresh empty new_empty empty_like empty_strided new_empty_strided resize_",
    "fills": "ones_like zeros_like full_like new_ones new_zeros new_full",
    "masks": "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put",
    "reads": "_local_scalar_dense equal _to_copy copy_ is_nonzero",
    "scatters": "masked_scatter masked_scatter_",
    "sizes": " ".join(SIZES),
}
KINDS = {name: kind for kind, names in NAMED.items() for name in names.split()}
# Of so many elements, how many a result of unknown values has. Typical is tried with the zeros
# that stand for them first.
BOUNDS = {"least": lambda n: 0, "typical": lambda n: (n + 1) // 2, "most": lambda n: n}


def start(torch: Any, witness: Witness) -> None:
    """Compute along in this thread from now on.

    Raises nothing: a torch without dispatch modes is left as it is.
    """
    try:
        from torch.utils import checkpoint as again
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return
    bound = os.environ.get("CASEBOOK_VALUES", "typical")
    if bound not in BOUNDS:
        return
    along = _Along(torch, witness, bound)

    class Values(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        # Else torch's compiler is imported, and stands in every stack.
        _should_skip_dynamo = classmethod(lambda cls: False)

        def __torch_dispatch__(self, func: Any, of: Any, args: Any = (), kwargs: Any = None) -> Any:
            # What stands for other tensors (DTensor, quantised weights): its operators on those
            # come next.
            if any(hasattr(kind, "__tensor_flatten__") for kind in of):
                return NotImplemented
            if torch.is_inference_mode_enabled():  # where compounds arrive whole
                with mode:
                    out = func.decompose(*args, **kwargs or {})
                if out is not NotImplemented:
                    return out
            return along(func, args, kwargs or {})

    os.register_at_fork(after_in_child=lambda: setattr(along, "live", False))
    mode = Values()
    mode.__enter__()
    # A backward pass that finds a mode gives up what it does in place (isTensorSubclassLike in
    # ATen): it gets none.
    top = torch.utils._python_dispatch._get_current_dispatch_mode
    for name, then in {"backward": None, "grad": along.made_unknown}.items():
        setattr(torch.autograd, name, _without(mode, top, getattr(torch.autograd, name), then))
    # So do these, with a mode, and what they give is unknown in any case.
    functional = torch.nn.functional
    for name in ("linear", "scaled_dot_product_attention"):
        builtin = getattr(functional, name)
        found = _without(mode, top, builtin, along.made_unknown)
        setattr(functional, name, found)
        torch.jit._builtins._register_builtin(found, f"aten::{name}")
    # What it computes anew, it computes as before; and what is Python's own of it is like any
    # other code of the program.
    checkpoint = again.checkpoint
    python = torch.autograd.function.BackwardCFunction
    again.checkpoint = functools.wraps(checkpoint)(
        lambda function, *args, **kwargs: checkpoint(_within(mode, top, function), *args, **kwargs)
    )
    python.apply = _within(mode, top, python.apply)


def _without(mode: Any, top: Any, call: Any, then: Any = None) -> Any:
    @functools.wraps(call)
    def alone(*args: Any, **kwargs: Any) -> Any:
        if top() is not mode:
            return call(*args, **kwargs)
        mode.__exit__(None, None, None)
        try:
            out = call(*args, **kwargs)
        finally:
            mode.__enter__()
        return then(out, *args, *kwargs.values()) if then else out

    return alone


def _within(mode: Any, top: Any, function: Any) -> Any:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if top() is mode:
            return function(*args, **kwargs)
        with mode:
            return function(*args, **kwargs)

    return run


class _Along:
    """One operator after another: on the device, where nothing is computed, and over its
    memory, where that is small.
    """

    def __init__(self, torch: Any, witness: Witness, bound: str):
        self.torch = torch
        self.witness = witness
        self.bound = bound
        self.many = BOUNDS[bound]
        self.live = True
        self.unknown = set[int]()
        self.plain = torch.Tensor.__torch_dispatch__
        self.kinds: dict[Any, str] = {}

    def kind(self, func: Any) -> str:
        """What is done about an operator, once for each."""
        name = func.overloadpacket.__name__
        tags = self.torch.Tag
        schema = func._schema
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        views = any(r.alias_info is not None for r in schema.returns) and not writes
        if "c10d" in schema.name:
            found = "views"  # the device moves what ranks exchange
        elif name in KINDS:
            found = KINDS[name]
        elif getattr(tags, "dynamic_output_shape", None) in func.tags:
            found = "sizes"
        elif views:
            found = "views"
        elif LEFT_OUT.match(name) or tags.nondeterministic_seeded in func.tags:
            found = "unknown"
        else:
            found = "writes" if writes else "computes"
        self.kinds[func] = found
        return found

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        kind = self.kinds.get(func) or self.kind(func) if self.live else "views"
        if kind == "views":
            return func(*args, **kwargs)
        given = [one for one in _flat((*args, *kwargs.values())) if self.on_device(one)]
        call = func, kind, args, kwargs, given
        answer = None
        unknown = True
        # What goes wrong beside the program must not reach it: then nothing is known.
        with self.beside(func):
            unknown = kind != "fills" and any(_place(one) in self.unknown for one in given)
            answer, unknown = self.before(call, unknown)
        try:
            out = func(*args, **kwargs)
        finally:
            self.witness.coming.clear()
        with self.beside(func):
            self.after(call, out, answer, unknown)
        return out

    @contextlib.contextmanager
    def beside(self, func: Any) -> Iterator[None]:
        """On one thread, since several wait for each other where others use the cores; what
        goes wrong is told at the end.
        """
        threads = self.torch.get_num_threads()
        self.torch.set_num_threads(1)
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- any operator of any release may come
            self.witness.beside = self.witness.beside or f"{func}: {error!r}"[:200]
        finally:
            self.torch.set_num_threads(threads)

    def before(self, call: Any, unknown: bool) -> tuple[Any, bool]:
        """Tells the witness what the reads to come are to be answered; what the processor
        found, and whether it is unknown.
        """
        func, kind, args, kwargs, given = call
        coming = self.witness.coming
        later = self.witness.later
        differentiates = self.torch.is_grad_enabled()
        if kind == "sizes" and given:
            at_bound = unknown and self.bound != "typical"
            answer = None if at_bound else self.again(func, "computes", args, kwargs, None)
            empty = answer is not None and not _flat((answer,))[0].numel()
            answer, unknown = None if unknown and empty else answer, unknown or answer is None
            coming.append((self.size(func, given[0], answer), not unknown))
            if "repeat" in func.overloadpacket.__name__:
                coming.append((1, not unknown))  # that none is negative
            return answer, unknown
        if kind == "reads":
            coming.append((-1, not unknown))
        elif kind == "scatters" and differentiates and args[2].requires_grad:
            later.append(self.count(args[1].expand_as(args[0])))
        elif kind == "masks":
            coming += map(self.count, filter(None.__ne__, args[1]))
            back = args[0] if len(args) < 3 else args[2]
            # A number at one mask is put there without counting (canDispatchToMaskedFill in ATen).
            fills = len(args) > 2 and back.numel() == 1 and not back.is_cuda and len(coming) == 1
            coming[:] = [] if fills else [one for one in coming if one[0] >= 0]
            later += coming if differentiates and back.requires_grad else []
        return None, unknown

    def after(self, call: Any, out: Any, answer: Any, unknown: bool) -> None:
        """What stands in the results, and what is known of them."""
        func, kind, args, kwargs, given = call
        made = [one for one in _flat((out,)) if self.on_device(one)]
        if kind == "allocates":
            self.mark(made, False)
        elif kind == "reads" and made:
            how, source = ("writes", args[1]) if made[0] is args[0] else ("computes", args[0])
            moved = made[0].nbytes <= MOVED and made[0].dtype == source.dtype
            found = self.again(func, how, args, kwargs, made)
            self.mark(made, unknown or (found is None and not moved))
            if found is None and not moved and made[0] is not args[0]:
                self.blank(made[0])
        elif kind == "reads" and isinstance(out, self.torch.Tensor):
            # What is no single stretch of memory is gathered by a kernel first; in what nobody
            # computed lies what lay there before.
            found = self.again(func, "writes" if out is args[0] else "computes", args, kwargs, None)
            if found is None and given and (unknown or not given[0].is_contiguous()):
                out.zero_()
            elif found is not None and found is not out:
                out.copy_(found)
        elif made:
            kind = "writes" if kind == "scatters" and func._schema.is_mutable else kind
            if answer is None:
                answer = self.again(func, kind, args, kwargs, made)
            else:
                answer = self.put(made, answer)
            if answer is None and not (kind == "masks" and func._schema.is_mutable):
                self.assume(func, made, given, kind, args)
            self.mark(made, unknown or answer is None)

    def size(self, func: Any, given: Any, answer: Any) -> int:
        """How many elements or rows a result has whose size values decide."""
        name = func.overloadpacket.__name__
        if answer is not None:
            first = _flat((answer,))[0]
            return int(first._nnz() if first.is_sparse else first.shape[0])
        return max(self.many(given.numel()), int("unique" in name and given.numel() > 0))

    def count(self, mask: Any) -> tuple[int, bool]:
        """How many places a mask names, and whether that is known; -1 for an index that is no
        mask.
        """
        if mask.dtype not in (self.torch.bool, self.torch.uint8):
            return -1, True
        times = 1
        for at, (length, stride) in enumerate(zip(mask.shape, mask.stride())):  # noqa: B905 -- Python 3.9
            if length > 1 and not stride:  # the same again and again
                times = times * length
                mask = mask.narrow(at, 0, 1)
        small = mask.numel() <= SMALL_WHOLE
        known = small and not (self.on_device(mask) and _place(mask) in self.unknown)
        there = known or (small and self.bound == "typical")
        found = int(self.host(mask).count_nonzero()) if there else 0
        return times * (found if found or known else self.many(mask.numel())), known

    def put(self, made: Any, found: Any) -> Any:
        """What the processor found, put into the device's memory; None where it has no place
        there.
        """
        try:
            for to, one in zip(made, _flat((found,))):  # noqa: B905 -- Python 3.9
                self.host(to).copy_(one)
        except (ValueError, RuntimeError):
            return None
        return found

    def again(self, func: Any, kind: str, args: Any, kwargs: Any, made: Any) -> Any:
        """The same over the memory itself, by the processor; None where that is not done."""
        if kind in ("unknown", "sizes") or (kind == "fills" and args[0].numel() > SMALL_WHOLE):
            return None
        try:
            with_device = {k: self.host(v) if k != "device" else "cpu" for k, v in kwargs.items()}
            if kind == "fills":  # of the first, its shape alone counts
                like = self.torch.zeros((), dtype=args[0].dtype).expand(args[0].shape)
                found = func(like, *self.host(args[1:]), **with_device)
            else:
                found = func(*self.host(args), **with_device)
        except Exception:  # noqa: BLE001 -- too large, or an operator that the processor does not have: unknown
            return None
        return found if made is None or kind == "writes" else self.put(made, found)

    def host(self, one: Any) -> Any:
        """A value for the processor: a tensor of the device as its own memory.

        Raises ValueError for a large one.
        """
        if isinstance(one, (list, tuple)):
            return type(one)(map(self.host, one))
        if not isinstance(one, self.torch.Tensor):
            return one
        most = SMALL if one.is_floating_point() or one.is_complex() else SMALL_WHOLE
        if one.numel() > most or type(one) not in (self.torch.Tensor, self.torch.nn.Parameter):
            raise ValueError("large")
        if not self.on_device(one):
            return one
        storage = one.untyped_storage()
        if not storage.nbytes():
            return self.torch.empty(one.shape, dtype=one.dtype)
        memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        flat = self.torch.frombuffer(memory, dtype=self.torch.uint8)
        of = self.torch.empty(0, dtype=one.dtype)
        return of.set_(flat.untyped_storage(), one.storage_offset(), one.shape, one.stride())

    def assume(self, func: Any, made: Any, given: Any, kind: str, args: Any) -> None:
        """What stands in a result that nobody computed: zeros, an index in the middle, true for
        ``all``, the ``low`` of a range.
        """
        if kind in ("writes", "reads"):
            return
        name = func.overloadpacket.__name__
        named = [one.name for one in func._schema.arguments]
        places = {_place(one) for one in given}
        for at, one in enumerate(made):
            if _place(one) in places:
                continue
            self.blank(one)
            index = name in INDEX and one.dtype == self.torch.int64 and given
            first = given[0].shape[-1] // 2 if index and given[0].dim() else 0
            value = 1 if name == "all" else first if at or name[0] in "am" else 0
            value = args[named.index("low")] if "low" in named[: len(args)] else value
            if value and one.is_contiguous():
                with contextlib.suppress(ValueError):
                    self.host(one).fill_(value)

    def blank(self, one: Any) -> None:
        """Zeros in place of what lay in that memory before."""
        storage = one.untyped_storage()
        self.witness.device.fake_zero(storage.data_ptr(), storage.nbytes())

    def made_unknown(self, out: Any, *given: Any) -> Any:
        """Nobody computed it: zeros, but where it is what was given."""
        places = {_place(one) for one in _flat(given) if self.on_device(one)}
        for one in _flat((out,)):
            if hasattr(one, "__tensor_flatten__"):  # it stands for others
                self.made_unknown([getattr(one, name) for name in one.__tensor_flatten__()[0]])
            elif self.live and self.on_device(one) and _place(one) not in places:
                self.unknown.add(_place(one))
                self.blank(one)
        return out

    def mark(self, made: Any, unknown: bool) -> None:
        change = self.unknown.add if unknown else self.unknown.discard
        for one in made:
            change(_place(one))

    def on_device(self, one: Any) -> bool:
        """Whether it has memory of the device itself: what dispatches anew stands for other
        tensors, or for none.
        """
        own = isinstance(one, self.torch.Tensor) and type(one).__torch_dispatch__ == self.plain
        return own and one.is_cuda and one.layout is self.torch.strided


def _flat(values: Any) -> list[Any]:
    found: list[Any] = []
    for one in values:
        found += _flat(one) if isinstance(one, (list, tuple)) else [one]
    return found


def _place(one: Any) -> int:
    try:
        return int(one.untyped_storage().data_ptr())
    except RuntimeError:  # a sparse or wrapped tensor has no memory of its own
        return -1
