"""Each number that was read of a box, layer by layer, as it was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from helpers.ground.shapes import Reading
from helpers.look import drm, framework, kfd, nvidia, pci, rocm, ttm
from helpers.look.bundle import Bundle
from helpers.look.environment import limits
from helpers.look.machine import machine
from helpers.tell.shown import Shown
from helpers.tell.values import columns

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def readings_table(bundle: Bundle) -> Shown:
    """Each number that was read of a box, as it was read, with where it stood."""
    read: dict[str, Iterable[DataclassInstance]] = {
        "the machine": [machine(bundle)],
        "PCI": [device for device in pci.pci_devices(bundle) if device.is_gpu],
        "limit of a process": limits(bundle),
        "kernel parameter": ttm.parameters(bundle),
        "sysfs": drm.cards(bundle),
        "KFD": kfd.nodes(bundle),
        "HSA agent": rocm.agents(bundle),
        "rocm-smi": rocm.cards(bundle),
        "amd-smi": rocm.gpus(bundle),
        "nvidia-smi": nvidia.gpus(bundle),
        "torch": framework.framework(bundle).devices,
    }
    rows = []
    for layer, facts in read.items():
        for fact in facts:
            rows += [[layer, *row] for row in _numbers_of(fact)]
    head = columns("layer:word, GPU:pci, reading:reading, value:number, source:source")
    return Shown("Readings, as they were read", head, rows, none="No number was read.")


def _numbers_of(fact: DataclassInstance) -> Iterator[list[object]]:
    """The readings of a fact that are numbers: its GPU, what it is, the reading, its source."""
    of_gpu = getattr(fact, "pci", "")
    if isinstance(of_gpu, Reading):
        of_gpu = of_gpu.value
    name = getattr(fact, "name", None)
    prefix = f"{name} " if isinstance(name, str) else ""
    for field in fields(fact):
        reading = getattr(fact, field.name)
        label = f"{prefix}{field.name.replace('_', ' ')}"
        if isinstance(reading, Reading) and isinstance(reading.value, (int, float)):
            yield [of_gpu, label, reading, reading.source]
        elif field.name.endswith("_id") and isinstance(reading, str):
            yield [of_gpu, label, reading, ""]
