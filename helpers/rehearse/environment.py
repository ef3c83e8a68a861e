"""The environment of a rehearsed program: the simulated card, its limits, and settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.allocator.record import INJECT
from helpers.ground.units import MIB
from helpers.look.cards import GpuCard
from helpers.rehearse.rehearsal import UNLIMITED, RehearsalLimits
from helpers.rehearse.torches import NEEDS, Torch
from helpers.rehearse.words import PROGRAMS, WORDS

COMPILED = "compiled"
"""The folder in the record of a run for what torch.compile makes. Each run compiles anew: the peak
of a run that finds compiled code in a cache is another one.
"""


def environment(
    torch: Torch,
    preload: Sequence[Path],
    device: GpuCard,
    folder: Path,
    conf: str | None,
    extra: Mapping[str, str] | None = None,
    limits: RehearsalLimits = UNLIMITED,
) -> dict[str, str]:
    """The variables that a rehearsed program gets beside its own.

    ``preload``: the libraries of the simulated card (build.py); ``folder``: of the run's record;
    ``conf``: settings of the allocator (None: the program's own); ``extra``: more variables. FAKE_
    variables are read by device.c, CASEBOOK_ variables in the program's Python.
    """
    torch_folder = ""
    if not torch.is_users:
        torch_folder = str(torch.folder)
    paths = [str(INJECT), torch_folder, os.environ.get("PYTHONPATH", "")]
    libraries = [*map(str, preload), os.environ.get("LD_PRELOAD", "")]
    variables: dict[str, object] = {
        "LD_PRELOAD": " ".join(filter(None, libraries)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(limits.gpus))),
        "FAKE_DEVICES": limits.gpus,
        "CASEBOOK_REHEARSE": folder,
        "CASEBOOK_PROGRAMS": PROGRAMS,
        "CASEBOOK_NEEDS": torch.folder / NEEDS,
        # Else the order of sets of strings changes from run to run (see also same_addresses in
        # run.py).
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        **WORDS["constant"],
        **{name: getattr(device, field) for name, field in WORDS["card"].items()},
        "FAKE_PEAKS": folder,
        "FAKE_SM_SMEM": device.shared_kib << 10,  # bytes
        "FAKE_L2": int(device.l2_mib * MIB),
        "FAKE_CUDNN_WS": limits.cudnn_bytes,
        "CASEBOOK_STEPS": limits.steps,
        "CASEBOOK_SECONDS": limits.seconds,
        "CASEBOOK_VALUES": limits.values,
        "TORCHDYNAMO_DISABLE": "1",
        "TRITON_LIBCUDA_PATH": "",
    }
    if preload:
        variables["TRITON_LIBCUDA_PATH"] = preload[0].parent
    if limits.world:
        variables |= _of_rank(limits)
    if extra is not None:
        variables |= extra
    if limits.compiles:
        variables |= _of_compiling(folder / COMPILED)
    if conf is not None:
        variables["PYTORCH_CUDA_ALLOC_CONF"] = conf
    return {name: str(value) for name, value in variables.items()}


def _of_compiling(folder: Path) -> dict[str, object]:
    """The variables with which torch.compile compiles, into caches below ``folder``. It chooses
    kernels by the times that they take; on the simulated card these mean nothing, so the choices
    must not come into the user's own caches.
    """
    return {
        "TORCHDYNAMO_DISABLE": "",
        "CASEBOOK_VALUES": "none",
        "TORCHINDUCTOR_CACHE_DIR": folder / "inductor",
        "TRITON_CACHE_DIR": folder / "triton",
    }


def _of_rank(limits: RehearsalLimits) -> dict[str, object]:
    """The variables that torchrun gives one rank, on nodes of ``limits.gpus`` GPUs each
    (torch/distributed/elastic/agent/server/local_elastic_agent.py).
    """
    node, place_on_node = divmod(limits.rank, limits.gpus)
    nodes = -(-limits.world // limits.gpus)  # rounded up
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,  # torchrun's default; nothing listens there
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": limits.rank,
        "LOCAL_RANK": place_on_node,
        "GROUP_RANK": node,
        "ROLE_RANK": limits.rank,
        "WORLD_SIZE": limits.world,
        "LOCAL_WORLD_SIZE": limits.gpus,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_WORLD_SIZE": limits.world,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "OMP_NUM_THREADS": 1,
        "CASEBOOK_WORLD": limits.world,
        "CASEBOOK_HOLDS_BUCKETS": int(limits.holds_buckets),
    }
