"""Bundles made of a few files and tables, for tests of the readers of the kernel's own files."""

import json

from helpers.look.bundle import Bundle, BundleWriter

REFUSED = object()
MISSING = object()


def box(files: dict[str, object] = {}, **tables: list[dict]) -> Bundle:  # noqa: B006 - never changed
    """A bundle of ``files`` (a text, REFUSED or MISSING by path or command) and of tables given as lists of rows."""
    writer = BundleWriter("made-up", "constructed", "0", "2026-01-02T03:04:05Z")
    for source, content in files.items():
        kind = "file" if source.startswith("/") else "command"
        if content is REFUSED:
            writer.add(kind, source, None, status="not_allowed", why="permission denied")
        elif content is MISSING:
            writer.add(kind, source, None, status="not_available", why="no such file")
        else:
            writer.add(kind, source, str(content))
    for name, rows in tables.items():
        writer.add("file", name, "".join(json.dumps(row) + "\n" for row in rows))
    return writer.bundle()


def folder(base: str, **files: object) -> dict[str, object]:
    """Files of one folder by their names."""
    return {f"{base}/{name}": content for name, content in files.items()}


PCI = "0000:03:00.0"


def amd_box(*, used: int = 4 << 30, fdinfo=(), kfd=(), identity=None, refused=()) -> Bundle:
    """A card of 20 GiB: ``fdinfo`` are (pid, client, KiB) of DRM clients, ``kfd`` (pid, bytes), ``refused`` unreadable pids."""
    card = "/sys/class/drm/card1/device"
    node = "/sys/class/kfd/kfd/topology/nodes/1"
    pools = {"vram_total": 20 << 30, "vram_used": used, "gtt_total": 32 << 30, "gtt_used": 0}
    files = {
        f"{card}/uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={PCI}\n",
        f"{card}/vendor": "0x1002\n",
        f"{card}/device": "0x744c\n",
        **{f"{card}/mem_info_{name}": f"{size}\n" for name, size in pools.items()},
        f"{node}/gpu_id": "777\n",
        f"{node}/properties": "simd_count 168\ngfx_target_version 110000\nlocation_id 768\ndomain 0\n",
        f"{node}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {20 << 30}\n",
        **{f"/sys/class/kfd/kfd/proc/{pid}/vram_777": f"{size}\n" for pid, size in kfd},
    }
    text = f"drm-driver:\tamdgpu\ndrm-client-id:\t{{}}\ndrm-pdev:\t{PCI}\ndrm-resident-vram:\t{{}} KiB\n"
    opened = {"fd": 5, "target": "/dev/dri/renderD128", "status": "ok"}
    rows = [
        {**opened, "pid": pid, "fdinfo": text.format(client, kib)} for pid, client, kib in fdinfo
    ]
    rows += [{"pid": pid, "status": "not_allowed", "why": "EACCES"} for pid in refused]
    there = {"state": "S", "uid": 1000, "status": "ok"}
    pids = {row[0] for row in fdinfo} | {4242}
    processes = [{**there, "pid": pid, "name": f"job{pid}"} for pid in pids]
    tables = {"identity": [identity]} if identity else {}
    return box(files, device_files=rows, processes=processes, **tables)
