"""Copies of recorded boxes in which some sources say something else, and a made-up box of NVIDIA's shared memory."""

import box_builder as build


def changed(box, **replaced):
    """A copy of a recorded box, all of it as if the case had printed it, with some sources replaced or added."""
    return build.copied(box, replaced, constructed=False).writer.bundle()


def gb10(available_kib, free_kib, message=""):
    """A machine whose GPU shares the RAM with the CPU: nvidia-smi prints N/A for its sizes, torch MemFree as free."""
    box = build.Box("gb10", "recorded", "2026-01-01T00:00:00Z")
    kib = {"ram_kib": 119 << 20, "available_kib": available_kib, "free_kib": free_kib}
    build.host(box, **kib, release="6.14.0", cpu="Cortex-X925")
    sizes = {"total": 1, "reserved": 0, "used": 0, "free": 0}
    xml = build.nvidia_xml("580.1", "13.0", {"name": "NVIDIA GB10", **sizes}, [])
    for name, size in sizes.items():
        xml = xml.replace(f"<{name}>{size} MiB", f"<{name}>N/A")
    box.stated("nvidia-smi -q -x", xml, kind="command")
    box.rows("pci_devices", build.pci_rows(("0000:01:00.0", "0x10de", "0x2e12", "nvidia")))
    device = {"index": 0, "pci": "0000:01:00.0", "name": "NVIDIA GB10", "integrated": 1}
    device.update(total_bytes=119 << 30, free_bytes=free_kib << 10)
    torch = {"status": "ok", "torch": "2.9.0+cu130", "cuda": "13.0", "hip": None}
    torch["devices_taken"] = True
    box.rows("torch", [{**torch, "devices": [device]}])
    build.identity(box, container="none", groups=[(0, "root")], uid=0)
    if message:
        box.stated("message", message)
    return box.writer.bundle()


def oom(request, total, free, allocated, rest, more="", backend="CUDA"):
    """torch's message about a refused request, with these sizes as it prints them."""
    return (
        f"torch.OutOfMemoryError: {backend} out of memory. Tried to allocate {request}. GPU 0 has a total capacity of "
        f"{total} of which {free} is free.{more} Of the allocated memory {allocated} is allocated by PyTorch, and {rest} is "
        "reserved by PyTorch but unallocated."
    )
