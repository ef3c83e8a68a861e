"""Constructed boxes of the decision table: an APU whose layers are set one by one, written as a bundle."""

import json

from helpers.look.bundle import Bundle, BundleWriter

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10
PCI = "0000:c4:00.0"
INBOX = "amdgpu 20480000 12 - Live 0x0\nttm 126976 2 amdgpu,drm_ttm_helper, Live 0x0\n"
DKMS = (
    "amdgpu 21000000 12 - Live 0x0 (OE)\namdttm 131072 2 amdgpu,amddrm_ttm_helper, Live 0x0 (OE)\n"
    "ttm 118784 1 drm_ttm_helper, Live 0x0\n"
)
FEDORA = 'NAME="Fedora Linux"\nID=fedora\nPRETTY_NAME="Fedora Linux 43"\n'


def apu(
    *,
    ram: int = 96 * GIB,
    pages_limit: int | None = None,
    gtt: int | None = None,
    vram: int = 512 * MIB,
    kfd: int | None = None,
    hsa: int | None = None,
    torch: int | None = None,
    free: int | None = None,
    kernel: str = "6.18.2-generic",
    modules: str = INBOX,
    module: str = "ttm",
    cmdline: str = "ro quiet",
    page: int = 4096,
    files: dict[str, str] | None = None,
    tables: dict[str, list[dict]] | None = None,
    release: str = FEDORA,
    boot: str = "",
    leave_out: tuple[str, ...] = (),
    box: str = "made-up",
    at: str = "2026-03-01T00:00:00Z",
) -> Bundle:
    """An APU with ``ram`` left to Linux. A layer that is not given follows the one below it, as on a box without faults."""
    limit = ram // 2 // page * page if pages_limit is None else pages_limit
    gtt = limit if gtt is None else gtt
    kfd = limit if kfd is None else kfd
    hsa = kfd if hsa is None else hsa
    torch = hsa if torch is None else torch
    base = "/sys/class/drm/card0/device"
    node = "/sys/class/kfd/kfd/topology/nodes/1"
    content = {
        "/proc/meminfo": f"MemTotal: {ram // KIB} kB\nMemAvailable: {ram // KIB // 2} kB\nSwapTotal: 8388608 kB\n",
        "/proc/version": f"Linux version {kernel} (b@h) #1\n",
        "/proc/cmdline": cmdline + "\n",
        "/proc/modules": modules,
        "/etc/os-release": release,
        f"{base}/uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={PCI}\n",
        f"{base}/vendor": "0x1002\n",
        f"{base}/device": "0x1586\n",
        f"{base}/mem_info_vram_total": f"{vram}\n",
        f"{base}/mem_info_gtt_total": f"{gtt}\n",
        f"{node}/gpu_id": "777\n",
        f"{node}/properties": "simd_count 80\ngfx_target_version 110501\nlocation_id 50176\ndomain 0\n",
        f"{node}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {kfd}\n",
        f"/sys/module/{module}/parameters/pages_limit": f"{limit // page}\n",
        **(files or {}),
    }
    writer = BundleWriter(box, "constructed", "0", at)
    for source, text in content.items():
        if source not in leave_out:
            writer.add("file", source, text)
    rocminfo = (
        "HSA Agents\n==========\nAgent 2\n  Name: gfx1151\n  Device Type: GPU\n  BDFID: 50176\n"
        "  Memory Properties: APU\n"
        f"  Pool Info:\n    Pool 1\n      Segment: GLOBAL; FLAGS: COARSE GRAINED\n      Size: {hsa // KIB}(0x1) KB\n"
    )
    if "rocminfo" not in leave_out:
        writer.add("command", "rocminfo", rocminfo)
    device = {"index": 0, "pci": PCI, "name": "An APU", "gfx": "gfx1151", "integrated": 1}
    device.update({"total_bytes": torch}, **({} if free is None else {"free_bytes": free}))
    build = {"status": "ok", "torch": "2.11.0", "hip": "7.2", "devices_taken": True}
    display = {"pci": PCI, "class": "0x030000", "vendor": "0x1002", "device": "0x1586"}
    display.update(driver="amdgpu", path=f"/sys/devices/pci0000:00/{PCI}")
    tabled = {
        "host": [{"release": kernel, "page_size": page, "boot_id": boot}],
        "torch": [{**build, "devices": [device]}],
        "pci_devices": [display],
        **(tables or {}),
    }
    for name, rows in tabled.items():
        if name not in leave_out:
            writer.add("file", name, "".join(json.dumps(row) + "\n" for row in rows))
    return writer.bundle()
