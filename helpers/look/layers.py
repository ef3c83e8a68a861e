"""What each layer of the system says about one GPU, brought together by its PCI address."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.look.bundle import Bundle

from . import drm, framework, kfd, nvidia, pci, rocm
from .archive import BundleHostile

VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA"}
"""By the PCI vendor id, as sysfs writes it."""
MOST_GPUS = 256
"""More than any box has; a bundle that somebody made may name millions, which would take hours."""


@dataclass(frozen=True)
class Layers:
    """One GPU as each layer knows it: the PCI bus, DRM, KFD, ROCm's runtime (``agent``), the
    vendors' tools, torch. None if a layer does not know it.
    """

    device: pci.PciDevice | None
    card: drm.DrmCard | None
    node: kfd.KfdNode | None
    agent: rocm.Agent | None
    rocm_smi: rocm.SmiCard | None
    amd_smi: rocm.SmiCard | None
    nvidia: nvidia.NvidiaGpu | None
    torch: framework.TorchDevice | None

    @property
    def ids(self) -> pci.PciDevice | drm.DrmCard | None:
        """The layer that has read its PCI ids; None if none has."""
        if self.device is None:
            return self.card
        return self.device

    @property
    def vendor(self) -> str:
        """AMD or NVIDIA; empty for another vendor, such as that of a server's display chip."""
        if self.nvidia:
            return "NVIDIA"
        if self.node or self.agent or self.rocm_smi or self.amd_smi:
            return "AMD"
        if self.ids is None:
            return ""
        return VENDORS.get(self.ids.vendor_id, "")


def layers_by_address(bundle: Bundle) -> dict[str, Layers]:
    """Every GPU that any layer knows, by its PCI address, sorted by it. A GPU of which a layer does
    not know the address is left out.

    Raises BundleHostile for more GPUs than a box has.
    """
    devices = {d.pci: d for d in pci.pci_devices(bundle) if d.is_gpu}
    cards = {c.pci: c for c in drm.cards(bundle)}
    nodes = {n.pci: n for n in kfd.nodes(bundle)}
    agents = {_address(a): a for a in rocm.agents(bundle) if a.kind == "gpu"}
    rocm_smi = {_address(c): c for c in rocm.cards(bundle)}
    amd_smi = {_address(g): g for g in rocm.gpus(bundle)}
    nvidia_gpus = {g.pci: g for g in nvidia.gpus(bundle)}
    torch_devices = {d.pci: d for d in framework.framework(bundle).devices}
    addresses = {*devices, *cards, *nodes, *agents}
    addresses.update(rocm_smi, amd_smi, nvidia_gpus, torch_devices)
    addresses.discard("")
    if len(addresses) > MOST_GPUS:
        raise BundleHostile(
            f"{bundle.box}: {len(addresses)} GPUs, more than a box has; do not use it"
        )
    gpus = {}
    for address in sorted(addresses):
        gpus[address] = Layers(
            device=devices.get(address),
            card=cards.get(address),
            node=nodes.get(address),
            agent=agents.get(address),
            rocm_smi=rocm_smi.get(address),
            amd_smi=amd_smi.get(address),
            nvidia=nvidia_gpus.get(address),
            torch=torch_devices.get(address),
        )
    return gpus


def _address(device: rocm.Agent | rocm.SmiCard) -> str:
    """The PCI address of a device, or an empty text."""
    if not device.pci.ok:
        return ""
    return str(device.pci.value)
