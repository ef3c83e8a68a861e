"""How many GPUs does a visibility variable leave to a process?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from helpers.look.bundle import Bundle
from helpers.look.environment import variables
from helpers.look.gpus import gpus
from helpers.look.nvidia import XML

COUNTED_BY = {"NVIDIA": "nvidia-smi", "AMD": "kfd node"}
"""The tool that numbers GPUs as the runtime of each vendor does (Gpu.indices)."""


def gpus_there(bundle: Bundle, vendor: str) -> tuple[str, ...]:
    """The UUID of each GPU that the runtime of a vendor can see, "" for one that is not known. It
    is known for NVIDIA alone, where nvidia-smi lists as many as it counts.
    """
    cards = [gpu for gpu in gpus(bundle) if gpu.vendor == vendor]
    counted = [gpu for gpu in cards if COUNTED_BY[vendor] in gpu.indices]
    uuids = re.findall(r"<uuid>(GPU-[0-9a-f-]{30,40})</uuid>", bundle.read(XML).text)
    if vendor == "NVIDIA" and len(uuids) == len(counted):
        return tuple(uuids)
    if not counted:
        counted = cards
    return ("",) * len(counted)


def left_by_rocr(bundle: Bundle, uuids: Sequence[str]) -> tuple[str, ...]:
    """The GPUs of these UUIDs that ROCR_VISIBLE_DEVICES leaves; HIP counts them from 0, without
    UUIDs (ROCm documentation, GPU isolation techniques).
    """
    environ = {variable.name: variable.value for variable in variables(bundle)}
    value = environ.get("ROCR_VISIBLE_DEVICES", "")
    if not value:
        return tuple(uuids)
    count = visible_count(value, uuids, repeats_hide_all=False)
    if count is None:
        return tuple(uuids)
    return ("",) * count


def visible_count(
    value: str, uuids: Sequence[str], repeats_hide_all: bool, mig: Sequence[str] = ()
) -> int | None:
    """How many GPUs the ``value`` of a visibility variable leaves, of those with these ``uuids``;
    None where it names one whose UUID is not known.

    ``mig``: the UUIDs of the MIG devices, of which a process gets one. The list ends at the first
    number or UUID that no GPU has; one that stands twice hides all (``repeats_hide_all``: CUDA)
    or ends the list. Sources: torch/cuda/__init__.py, _parse_visible_devices, and ROCR-Runtime
    core/runtime/amd_filter_device.cpp.
    """
    if value.startswith("MIG-") and mig:  # a process gets the first one alone
        word = value.split(",")[0].strip()
        return int(any(uuid.startswith(word) for uuid in mig))
    if "MIG-" in value or ("GPU-" in value and not all(uuids)):
        return None
    chosen: list[int] = []
    for word in value.split(","):
        index = _index(word.strip(), uuids)
        if index in chosen and repeats_hide_all:
            return 0
        # The GPUs before a repeat or an unknown one stay visible.
        if index in chosen or not 0 <= index < len(uuids):
            break
        chosen.append(index)
    return len(chosen)


def _index(word: str, uuids: Sequence[str]) -> int:
    """The index of the GPU that one word of a list names; -1 where it names none."""
    if word.startswith("GPU-"):
        for index, uuid in enumerate(uuids):
            if uuid.startswith(word):
                return index
        return -1
    number = re.match("[0-9]{1,9}", word)
    if number is None:
        return -1
    return int(number[0])
