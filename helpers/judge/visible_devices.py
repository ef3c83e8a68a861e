"""The line that leaves a program the AMD card and not the APU beside it."""

from __future__ import annotations

from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus
from helpers.look.kfd import nodes as kfd_nodes
from helpers.look.parts import APU, CARD, Listed, device_list


def visible_devices(bundle: Bundle | None = None, listing: str = "") -> str:
    """HIP_VISIBLE_DEVICES with the cards alone, by a captured or a posted list of devices.

    Empty where no list names both a card and a processor's GPU under an index: no index is
    guessed.
    """
    devices = list(device_list(listing)) if listing else []
    if bundle is not None and not devices:
        devices = _captured(bundle)
    amd = [device for device in devices if device.vendor == "AMD"]
    cards = [str(device.index) for device in amd if device.kind == CARD]
    if not cards or not any(device.kind == APU for device in amd):
        return ""
    return f"HIP_VISIBLE_DEVICES={','.join(cards)} COMMAND..."


def _captured(bundle: Bundle) -> list[Listed]:
    """The AMD GPUs of a box that have an index of HIP's, APUs and cards."""
    order = [node.pci for node in kfd_nodes(bundle) if node.pci]
    devices = []
    for gpu in gpus(bundle):
        index = _hip_index(gpu, order)
        if index.isdigit() and gpu.vendor == "AMD" and gpu.integrated is not None:
            kind = APU if gpu.integrated else CARD
            devices.append(Listed(int(index), gpu.name.show(), kind, gpu.vendor))
    return devices


def _hip_index(gpu: Gpu, order: list[str]) -> str:
    """The index by which HIP counts a GPU; empty where nothing shows it."""
    index = gpu.indices.get("torch") or gpu.indices.get("HIP") or ""
    if not index and gpu.pci in order:
        return str(order.index(gpu.pci))  # HIP counts in the order of KFD's GPU nodes
    return index
