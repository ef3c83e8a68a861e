"""What each layer of the system says of one GPU, side by side under its PCI address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from helpers.look.bundle import Bundle

from . import drm, framework, kfd, nvidia, pci, rocm
from .archive import BundleHostile

VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA"}
MOST_GPUS = 256


@dataclass(frozen=True)
class Layers:
    """One GPU as each layer knows it; None where a layer does not."""

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
        """Who has read its PCI ids."""
        return self.device or self.card

    @property
    def vendor(self) -> str:
        """AMD or NVIDIA; empty for another, such as a server's display chip."""
        if self.nvidia:
            return "NVIDIA"
        if self.node or self.agent or self.rocm_smi or self.amd_smi:
            return "AMD"
        if self.ids is None:
            return ""
        return VENDORS.get(self.ids.vendor_id, "")


def layers_by_address(bundle: Bundle) -> dict[str, Layers]:
    """The GPUs that any layer knows, by PCI address, in its order.

    Raises BundleHostile for more than a box has.
    """
    by_layer: dict[str, dict[str, Any]] = {
        "device": {d.pci: d for d in pci.pci_devices(bundle) if d.is_gpu},
        "card": {c.pci: c for c in drm.cards(bundle)},
        "node": {n.pci: n for n in kfd.nodes(bundle)},
        "agent": {_address(a): a for a in rocm.agents(bundle) if a.kind == "gpu"},
        "rocm_smi": {_address(c): c for c in rocm.cards(bundle)},
        "amd_smi": {_address(g): g for g in rocm.gpus(bundle)},
        "nvidia": {g.pci: g for g in nvidia.gpus(bundle)},
        "torch": {d.pci: d for d in framework.framework(bundle).devices},
    }
    addresses = sorted(filter(None, set().union(*by_layer.values())))
    if len(addresses) > MOST_GPUS:
        raise BundleHostile(
            f"{bundle.box}: {len(addresses)} GPUs, more than a box has; do not use it"
        )
    return {
        address: Layers(
            **{name: by_pci.get(address) for name, by_pci in by_layer.items()}
        )
        for address in addresses
    }


def _address(device: rocm.Agent | rocm.SmiCard) -> str:
    return str(device.pci.value) if device.pci.ok else ""
