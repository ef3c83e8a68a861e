"""Every number that was read on a box, layer by layer, before anything was worked out from it.

``columns`` takes headings with the rules by which cells may leave this machine: ``GPU:pci``.
"""

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
    """Every number that was read on a box, as it was read, with its source."""
    facts_of_layer: dict[str, Iterable[DataclassInstance]] = {
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
    for layer, facts in facts_of_layer.items():
        for fact in facts:
            rows += [[layer, *row] for row in _numbers_of(fact)]
    head = columns("layer:word, GPU:pci, reading:reading, value:number, source:source")
    return Shown("Readings, as they were read", head, rows, none="No number was read.")


def _numbers_of(fact: DataclassInstance) -> Iterator[list[object]]:
    """A row for each field of a fact that is a reading of a number, or an id of a device, which is
    a number kept as text: the GPU's PCI address (empty for none), what was read, the value, its
    source.
    """
    address = getattr(fact, "pci", "")
    if isinstance(address, Reading):
        address = address.value
    name = getattr(fact, "name", None)
    for field in fields(fact):
        reading = getattr(fact, field.name)
        label = field.name.replace("_", " ")
        # The name of a limit or a parameter is text; that of a card is a reading.
        if isinstance(name, str):
            label = f"{name} {label}"
        if isinstance(reading, Reading) and isinstance(reading.value, (int, float)):
            yield [address, label, reading, reading.source]
        elif field.name.endswith("_id") and isinstance(reading, str):
            yield [address, label, reading, ""]
