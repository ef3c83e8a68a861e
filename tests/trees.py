"""Synthetic /proc and /sys trees of boxes that never existed, for tests and for the capture benchmark.

Same arguments, same tree. The forms are those of Linux 6.8 with amdgpu and of the NVIDIA driver 550; the values are invented.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
FIRST_PID = 100
TEXTS = json.loads(Path(__file__).with_name("data").joinpath("tree.json").read_text())


@dataclass(frozen=True)
class Tree:
    """What was put into a tree. ``held`` maps a PID to its bytes of VRAM on its one card; ``fds`` counts GPU device files."""

    root: Path
    pids: tuple[int, ...]
    held: dict[int, int]
    amd: tuple[str, ...]
    nvidia: tuple[str, ...]
    fds: int


def make_tree(
    root: Path,
    processes: int = 20,
    device_files: int = 40,
    amd: int = 1,
    nvidia: int = 0,
    seed: int = 0,
) -> Tree:
    """Write a tree under ``root``: a tenth of the processes hold GPU files, the others hold none."""
    dice = random.Random(seed)
    amd_pci = tuple(f"0000:{3 + 0x10 * number:02x}:00.0" for number in range(amd))
    nvidia_pci = tuple(f"0000:{0x81 + 0x10 * number:02x}:00.0" for number in range(nvidia))
    cards = [("amd", *card) for card in enumerate(amd_pci)]
    cards += [("nvidia", *card) for card in enumerate(nvidia_pci)]
    pids = tuple(range(FIRST_PID, FIRST_PID + processes))
    holders = pids[: max(1, processes // 10)] if device_files and cards else ()
    held: dict[int, int] = {}
    used = dict.fromkeys(amd_pci, 0)
    by_kfd: dict[int, tuple[str, int]] = {}
    for number, pid in enumerate(pids):
        _process(root, pid, pid in holders, dice)
        if pid in holders:
            kind, index, pci = cards[number % len(cards)]
            held[pid] = dice.randrange(1, 512) << 20
            count = device_files // len(holders) + (number < device_files % len(holders))
            _device_files(root, pid, count, kind, index, pci, held[pid])
            if kind == "amd":
                used[pci] += held[pid]
                by_kfd[pid] = (pci, held[pid])
    write_all(root, "", TEXTS["machine"])
    for index, pci in enumerate(amd_pci):
        _amd_card(root, index, pci, used[pci])
    for index, pci in enumerate(nvidia_pci):
        _nvidia_card(root, index, pci)
    _kfd(root, amd_pci, by_kfd)
    return Tree(root, pids, held, amd_pci, nvidia_pci, device_files if holders else 0)


def write(root: Path, path: str, text: str) -> None:
    """One file of the tree, its folders included."""
    full = f"{root}{path}"
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as file:
        file.write(text)


def write_all(root: Path, folder: str, texts: dict[str, object]) -> None:
    """Files of one folder by their names, each with a line break at its end."""
    for name, text in texts.items():
        write(root, f"{folder}/{name}", f"{text}\n")


def link(root: Path, path: str, target: str) -> None:
    """One link of the tree; ``target`` as the link itself says it."""
    full = f"{root}{path}"
    os.makedirs(os.path.dirname(full), exist_ok=True)
    os.symlink(target, full)


def _process(root: Path, pid: int, holds: bool, dice: random.Random) -> None:
    folder = f"/proc/{pid}"
    anon = dice.randrange(100, 500_000)
    shared = dice.randrange(100, 20_000)
    state = {7: "Z (zombie)", 8: "D (disk sleep)"}.get(0 if holds else pid % 10, "S (sleeping)")
    memory = f"VmRSS:\t{anon + shared} kB\nRssAnon:\t{anon} kB\nRssFile:\t{shared} kB\n"
    memory = "" if state.startswith("Z") else memory
    uid = dice.choice([0, 1000, 1001])
    name = dice.choice(["trainer", "shell (1)", "render server", "python3"])
    words = {"name": name, "state": state, "pid": pid, "uid": uid, "memory": memory}
    write(root, f"{folder}/status", TEXTS["status"].format(inner=pid - 90, **words))
    write(root, f"{folder}/stat", TEXTS["stat"].format(letter=state[0], ticks=1000 + pid, **words))
    write(root, f"{folder}/cmdline", f"{name}\0--pid\0{pid}\0")
    link(root, f"{folder}/fd/0", f"socket:[{pid * 10}]")
    write(root, f"{folder}/fdinfo/0", "pos:\t0\nflags:\t02\nmnt_id:\t9\nino:\t77\n")


def _device_files(
    root: Path, pid: int, count: int, kind: str, index: int, pci: str, size: int
) -> None:
    for number in range(count):
        fd = 3 + number
        text = TEXTS["file"]
        target = "/dev/nvidiactl" if number == 0 else f"/dev/nvidia{index}"
        if kind == "amd":
            target = "/dev/kfd" if number == 0 and count > 1 else f"/dev/dri/renderD{128 + index}"
            if target != "/dev/kfd":
                own = {"pid": pid, "pci": pci, "pasid": 32768 + pid, "kib": size >> 10}
                text += TEXTS["client"].format(**own)
        link(root, f"/proc/{pid}/fd/{fd}", target)
        write(root, f"/proc/{pid}/fdinfo/{fd}", text)


def _pci(root: Path, pci: str, vendor: str, device: str, driver: str) -> str:
    bridge = f"0000:00:{int(pci[5:7], 16) % 32:02x}.0"
    above = f"/sys/devices/pci0000:00/{bridge}"
    folder = f"{above}/{pci}"
    write_all(root, above, {"class": "0x060400", "vendor": "0x1022", "device": "0x14ed"})
    ids = f"{vendor[2:].upper()}:{device[2:].upper()}"
    files: dict[str, object] = {
        "class": "0x030000",
        "vendor": vendor,
        "device": device,
        "uevent": f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_ID={ids}\nPCI_SLOT_NAME={pci}",
    }
    write_all(root, folder, files)
    os.makedirs(f"{root}/sys/bus/pci/drivers/{driver}", exist_ok=True)
    link(root, f"{folder}/driver", f"../../../../bus/pci/drivers/{driver}")
    for name, place in ((bridge, f"pci0000:00/{bridge}"), (pci, f"pci0000:00/{bridge}/{pci}")):
        link(root, f"/sys/bus/pci/devices/{name}", f"../../../devices/{place}")
    return folder


def _amd_card(root: Path, index: int, pci: str, used: int) -> None:
    folder = _pci(root, pci, "0x1002", "0x744c", "amdgpu")
    pools = {"vram_total": 20 * GIB, "vram_used": used + (256 << 20), "vis_vram_total": 20 * GIB}
    pools.update(vis_vram_used=used, gtt_total=31 * GIB, gtt_used=64 << 20)
    write_all(root, folder, {f"mem_info_{name}": size for name, size in pools.items()})
    for node in (f"card{index}", f"renderD{128 + index}"):
        write(root, f"{folder}/drm/{node}/dev", "226:0\n")
        link(root, f"{folder}/drm/{node}/device", f"../../../{pci}")
        link(root, f"/sys/class/drm/{node}", "../../" + folder[len("/sys/") :] + f"/drm/{node}")


def _nvidia_card(root: Path, index: int, pci: str) -> None:
    _pci(root, pci, "0x10de", "0x2684", "nvidia")
    lines = TEXTS["nvidia information"].format(irq=100 + index, pci=pci, index=index)
    files = {"version": TEXTS["nvidia version"], f"gpus/{pci}/information": lines}
    write_all(root, "/proc/driver/nvidia", files)


def _kfd(root: Path, amd: tuple[str, ...], held: dict[int, tuple[str, int]]) -> None:
    if not amd:
        return
    top = "/sys/devices/virtual/kfd/kfd"
    write_all(root, f"{top}/topology", {"generation_id": 2, "nodes/0/gpu_id": 0})
    write_all(root, f"{top}/topology/nodes/0", {"properties": TEXTS["cpu node"]})
    ids = {pci: 41_000 + number for number, pci in enumerate(amd)}
    for number, pci in enumerate(amd):
        places = {"location": int(pci[5:7], 16) << 8, "minor": 128 + number}
        properties = TEXTS["gpu node"].format(**places)
        bank = f"heap_type 1\nsize_in_bytes {20 * GIB}\nwidth 320"
        files = {"gpu_id": ids[pci], "name": "ip discovery", "properties": properties}
        node = f"{top}/topology/nodes/{number + 1}"
        write_all(root, node, {**files, "mem_banks/0/properties": bank})
    for pid, (pci, size) in held.items():
        own = {f"vram_{ids[pci]}": size, f"sdma_{ids[pci]}": 0, "pasid": 32768 + pid}
        write_all(root, f"{top}/proc/{pid}", own)
    link(root, "/sys/class/kfd/kfd", "../../devices/virtual/kfd/kfd")
