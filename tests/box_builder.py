"""Boxes that nobody captured, put together from the parts of one: as a test needs them, in memory.

The recorded boxes themselves lie in env/boxes; their manifests say of each item what the case printed and what was filled in.
"""

import json

from helpers.look.boxes import open_box
from helpers.look.bundle import BundleWriter

BRIDGE = "0000:00:01.1"


class Box:
    """A bundle in the making; ``stated`` for what a case printed, ``filled`` for what had to be added."""

    def __init__(self, name="x", kind="recorded", captured_at="2026-01-01T00:00:00Z"):
        self.writer = BundleWriter(name, kind, "0", captured_at)

    def stated(self, source, text, kind="file"):
        self.writer.add(kind, source, text)

    def filled(self, source, text, why="", kind="file"):
        self.writer.add(kind, source, text, constructed=True, why=why)

    def rows(self, table, rows):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self.writer.add("file", table, text, constructed=True)


def copied(name, replaced=None, constructed=True):
    """A recorded box to add to, with the text of some sources replaced; what was filled in stays marked, unless told not to."""
    bundle = open_box(name)
    box = Box("changed")
    replaced = dict(replaced or {})
    for item in bundle.items:
        text = bundle.contents[item.path].decode() if item.path else None
        kept = {"status": item.status, "why": item.why}
        kept["constructed"] = item.constructed and constructed
        box.writer.add(item.kind, item.source, replaced.pop(item.source, text), **kept)
    for source, text in replaced.items():
        box.stated(source, text)
    return box


def host(
    box, *, ram_kib, available_kib, free_kib=None, swap_kib=0, cpu="", release="6.8.0", **more
):
    distribution = more.get("distribution", "Ubuntu|24.04|ubuntu")
    row = {"system": "Linux", "release": release, "version": "#1 SMP", "machine": "x86_64"}
    row.update(python="3.12.11", page_size=4096, clock_ticks=100, boot_id="made-up", now="")
    box.rows("host", [row])
    free = available_kib - (4 << 20) if free_kib is None else free_kib
    sizes = {"MemTotal": ram_kib, "MemFree": free, "MemAvailable": available_kib}
    sizes.update(Cached=max(0, available_kib - free), SwapTotal=swap_kib, SwapFree=swap_kib)
    meminfo = "".join(f"{key + ':':<16}{kib:>9} kB\n" for key, kib in sizes.items())
    box.filled("/proc/meminfo", meminfo + "HugePages_Total:        0\n")
    box.filled("/proc/cmdline", "ro quiet\n")
    name, version, ident = distribution.split("|")
    box.filled("/etc/os-release", f'NAME="{name}"\nVERSION_ID={version}\nID={ident}\n')
    box.filled("/proc/cpuinfo", f"processor\t: 0\nmodel name\t: {cpu}\n")


def identity(box, container="none", groups=((0, "root"),), uid=0):
    named = [{"gid": gid, "name": name} for gid, name in groups]
    row = {"uid": uid, "groups": named, "groups_in_database": [name for _, name in groups]}
    row.update(gid_map="0 0 4294967295", wsl=False, container=container, init_pid_ns=True)
    box.rows("identity", [row])


def access(box, paths, group="render", gid=992):
    rows = []
    for path in paths:
        mode, owner = ("0666", (0, "root")) if "nvidia" in path else ("0660", (gid, group))
        row = {"path": path, "status": "ok", "errno": "", "mode": mode, "uid": 0, "selinux": ""}
        rows.append({**row, "gid": owner[0], "group": owner[1]})
    box.rows("access", rows)


def process(pid, name, rss_bytes):
    row = {"pid": pid, "name": name, "state": "S", "uid": 1000, "start_ticks": 1000}
    return {**row, "rss_anon_bytes": rss_bytes // 2, "status": "ok", "why": ""}


def pci_rows(*cards):
    """The bus with (address, vendor, device, driver) a card; one of AMD's sits behind the switch it brings."""
    rows = []
    place = f"/sys/devices/pci0000:00/{BRIDGE}"
    port = {"class": "0x060400", "driver": "pcieport"}
    rows.append({"pci": BRIDGE, "vendor": "0x1022", "device": "0x14db", "path": place, **port})
    for pci, vendor, device, driver in cards:
        path = place
        if vendor == "0x1002" and device != "0x1586":
            switch = f"0000:{int(pci[5:7], 16) - 1:02x}:00.0"
            path = f"{place}/{switch}"
            rows.append({"pci": switch, "vendor": vendor, "device": "0x1479", "path": path, **port})
        row = {"pci": pci, "class": "0x030000", "vendor": vendor, "device": device, "boot_vga": "1"}
        row.update(driver=driver, path=f"{path}/{pci}", subsystem="")
        rows.append({**row, "with_security_processor": device == "0x1586"})
    return rows


def nvidia_xml(driver, cuda, gpu, processes=()):
    """What `nvidia-smi -q -x` prints of one card: its name and sizes in MiB, and (pid, type, name, MiB) a process."""
    names = ("total", "reserved", "used", "free")
    sizes = "".join(f"<{name}>{gpu[name]} MiB</{name}>" for name in names)
    rows = "".join(
        f"<process_info><pid>{pid}</pid><type>{kind}</type><process_name>{name}</process_name>"
        f"<used_memory>{mib} MiB</used_memory></process_info>"
        for pid, kind, name, mib in processes
    )
    return (
        f'<?xml version="1.0" ?>\n<nvidia_smi_log><driver_version>{driver}</driver_version>'
        f"<cuda_version>{cuda}</cuda_version><attached_gpus>1</attached_gpus>"
        f'<gpu id="00000000:01:00.0"><product_name>{gpu["name"]}</product_name>'
        "<pci><pci_bus_id>00000000:01:00.0</pci_bus_id></pci>"
        f"<fb_memory_usage>{sizes}</fb_memory_usage><compute_mode>Default</compute_mode>"
        f"<processes>{rows}</processes></gpu></nvidia_smi_log>\n"
    )
