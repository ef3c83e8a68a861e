"""One rank of a job without the others: torch's fake process group stands in for the real one.

Torch has it since release 2.1 (torch/testing/_internal/distributed/fake_pg.py). It sends nothing,
so a rehearsal takes each other rank to hold what this one holds.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from .capturing import Function, Value
from .operators import Torch

Witness = Any  # witness.py, which imports this module
FAKE = "torch.testing._internal.distributed.fake_pg"


def start(torch: Torch, witness: Witness) -> None:
    """Make the program's process groups fake ones, of the job that RANK and WORLD_SIZE name.

    The witness notes whether gradients were exchanged in buckets. Raises SystemExit where this
    release of torch has no fake process group.
    """
    try:
        importlib.import_module(FAKE)
    except ImportError as error:
        raise SystemExit(
            "--world needs torch 2.1 or later, built with torch.distributed"
        ) from error
    groups: Any = importlib.import_module("torch.distributed.distributed_c10d")
    create = groups._new_process_group_helper
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])

    @functools.wraps(create)
    def create_fake(
        size: int,
        rank: Value,
        ranks: Value,
        backend: str,
        *args: Value,
        **kwargs: Value,
    ) -> Value:
        """torch's function that makes a process group, with the backend ``fake``."""
        # Options of NCCL or Gloo, which the fake group does not take.
        options = [name for name in kwargs if name.endswith("_options")]
        for name in options:
            del kwargs[name]
        return create(size, rank, ranks, "fake", *args, **kwargs)

    def meet_nobody(*args: Value, **kwargs: Value) -> Iterator[Value]:
        """The rendezvous of a job, without waiting for its other ranks."""
        yield torch.distributed.HashStore(), rank, world

    groups._new_process_group_helper = create_fake
    groups.rendezvous = meet_nobody
    for exchange in (
        all_gather_object,
        gather_object,
        broadcast_object_list,
        scatter_object_list,
        keeping_tensor(groups.isend),
        keeping_tensor(groups.irecv),
    ):
        setattr(torch.distributed, exchange.__name__, exchange)
        setattr(groups, exchange.__name__, exchange)
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel.__init__ = reducing_by_hook(torch, witness, parallel.__init__)


class KeptWork:
    """The work of a send or a receive. It keeps the tensor, as NCCL's does (outputs_ in
    ProcessGroupNCCL.cpp), and a pipeline keeps the work until the next step.
    """

    def __init__(self, work: Value, tensor: Value):
        self.work = work
        self.tensor = tensor

    def __getattr__(self, name: str) -> Value:
        return getattr(self.work, name)


def keeping_tensor(exchange: Function) -> Function:
    """torch.distributed.isend or irecv, whose work keeps the tensor."""

    @functools.wraps(exchange)
    def exchange_and_keep(tensor: Value, *args: Value, **kwargs: Value) -> Value:
        work = exchange(tensor, *args, **kwargs)
        if work is None:  # this rank is not in the group
            return None
        return KeptWork(work, tensor)

    return exchange_and_keep


class FirstBuckets:
    """Holds the buckets of DistributedDataParallel's first step for another step, where
    CASEBOOK_HOLDS_BUCKETS says so. For the second step it makes new ones.

    NCCL's watchdog looks every 0.1 s (kWatchdogThreadSleepMillis in ProcessGroupNCCL.cpp) for what
    was exchanged, and holds the old buckets until then: where steps are short, for another step.
    """

    def __init__(self) -> None:
        self.are_held = os.environ.get("CASEBOOK_HOLDS_BUCKETS") == "1"
        self.steps = 0
        self.buffers: list[Value] = []

    def see(self, bucket: Value) -> None:
        """Hold a bucket that is about to be exchanged in the first step; let go of all in the
        third.
        """
        if self.are_held and not self.steps:
            self.buffers.append(bucket.buffer())
        if bucket.is_last():
            self.steps += 1
        if self.steps > 1:
            self.buffers.clear()


def reducing_by_hook(torch: Torch, witness: Witness, init: Function) -> Function:
    """DistributedDataParallel's constructor, after which a hook returns each bucket as it is: its
    reducer cannot use the results of the fake group (comm.cpp).
    """

    def hand_back(first: FirstBuckets, bucket: Value) -> Value:
        """A communication hook that has exchanged a bucket at once: it returns what it got."""
        witness.has_buckets = True
        first.see(bucket)
        reduced = torch.futures.Future()
        reduced.set_result(bucket.buffer())
        return reduced

    @functools.wraps(init)
    def init_with_hook(model: Value, *args: Value, **kwargs: Value) -> None:
        init(model, *args, **kwargs)
        torch.distributed._register_comm_hook(model.reducer, FirstBuckets(), hand_back)
        model.register_comm_hook = refuse_hook

    return init_with_hook


def seeing_buckets(witness: Witness, init: Function) -> Function:
    """DistributedDataParallel's constructor where all ranks run. The witness notes the bytes of the
    first buckets if new ones will take their place, which happens unless parameters may go unused
    (reducer.hpp).
    """

    @functools.wraps(init)
    def init_and_see(model: Value, *args: Value, **kwargs: Value) -> None:
        init(model, *args, **kwargs)
        if not model.find_unused_parameters:
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            witness.bucket_bytes = sum(weight.nbytes for weight in trained)

    return init_and_see


def refuse_hook(*args: Value, **kwargs: Value) -> None:
    """Stands in for register_comm_hook, as the rehearsal's own hook takes its place."""
    why = (
        "a communication hook of DistributedDataParallel is not rehearsed with --world"
    )
    raise NotImplementedError(
        f"{why}; rehearse it with --gpus 2 -- torchrun --nproc_per_node 2"
    )


def all_gather_object(
    object_list: list[Value], obj: Value, *args: Value, **kwargs: Value
) -> None:
    """Each rank has this one's object."""
    object_list[:] = [obj] * len(object_list)


def gather_object(
    obj: Value,
    object_gather_list: list[Value] | None = None,
    *args: Value,
    **kwargs: Value,
) -> None:
    """Each rank sends this one's object."""
    if object_gather_list is not None:
        all_gather_object(object_gather_list, obj)


def broadcast_object_list(
    object_list: list[Value], *args: Value, **kwargs: Value
) -> None:
    """The list stays as it is: nobody else sends one."""


def scatter_object_list(
    scatter_object_output_list: list[Value],
    scatter_object_input_list: Sequence[Value] | None = None,
    *args: Value,
    **kwargs: Value,
) -> None:
    """The first of the objects where this rank has them, as the others would get one each. Without
    them the list stays as it is: nobody else sends one.
    """
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[0]
