"""The memory parameters of TTM and amdgpu: what is live, what is configured where, and what only a reboot would bring.

Facts: ttm.pages_limit caps what all drivers together may take of RAM through TTM (drivers/gpu/drm/ttm/ttm_tt.c); on an APU it
is the pool that HIP sees. An out-of-tree driver brings its own module, amdttm, and then only that one counts (ROCm#5595).
Of files with one name modprobe takes that in /etc, else /run, /usr/local/lib, /usr/lib, /lib; it sorts files by name, and takes
the kernel command line last (kmod, libkmod-config.c; modprobe.d(5)). In a container the files are the container's own.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bundle import Bundle
from .files import fault, find
from .machine import page_size
from .reading import MIB, Reading, not_available, seen

MODULES = ("amdttm", "amd_ttm", "ttm", "amdgpu")
_CONFIG = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_IMAGES = ("/boot/initr*", "/boot/EFI/Linux/*.efi", "/efi/EFI/Linux/*.efi")
FILES: tuple[str, ...] = (
    *(f"/sys/module/{module}/parameters/*" for module in MODULES), *(f"{folder}/*.conf" for folder in _CONFIG),
    "/proc/cmdline", "/proc/modules", "/etc/dracut.conf", "/etc/dracut.conf.d/*.conf", "/etc/initramfs-tools/modules",
    "/etc/mkinitcpio.conf", "/etc/mkinitcpio.conf.d/*.conf",
)
COMMANDS: tuple[tuple[str, ...], ...] = ()
UNITS = {
    **{(module, name): "pages" for module in MODULES[:3] for name in ("pages_limit", "page_pool_size", "dma32_pages_limit")},
    **{("amdgpu", name): "MiB" for name in ("gttsize", "gartsize", "vramlimit", "vis_vramlimit")}, ("amdgpu", "vm_size"): "GiB",
}
"""Units by the module's own parameter descriptions. vm_size is GiB of address space and sizes no pool."""
_ALSO = tuple(("amdgpu", name) for name in ("no_system_mem_limit", "gpu_recovery"))


@dataclass(frozen=True)
class Setting:
    """One parameter as it is written in a file or on the kernel command line. ``line`` counts from 1."""

    module: str
    name: str
    value: str
    source: str
    line: int
    item: str


@dataclass(frozen=True)
class Parameter:
    """One module parameter: ``live`` as sysfs shows it, in ``unit`` (pages, MiB, GiB or empty), and ``live_bytes`` in bytes.

    ``configured`` and ``cmdline`` are the settings found, in the order in which they take effect: the last one wins, and the
    command line wins over files. For a module that the kernel was built with, only the command line counts.
    """

    module: str
    name: str
    unit: str
    live: Reading
    live_bytes: Reading
    configured: tuple[Setting, ...]
    cmdline: tuple[Setting, ...]

    @property
    def wanted(self) -> Setting | None:
        """The setting that wins when the module is loaded next."""
        found = self.configured + self.cmdline
        return found[-1] if found else None

    @property
    def pending(self) -> Setting | None:
        """The winning setting where it is not what is live: not yet rebooted, or the initramfs is stale, or it was refused."""
        if self.wanted is None or not self.live.ok or _same(self.wanted.value, str(self.live.value)):
            return None
        return self.wanted


@dataclass(frozen=True)
class Unknown:
    """A setting the module has no such parameter for; the kernel logs and ignores it. ``meant`` is a near name, or empty."""

    setting: Setting
    meant: str


@dataclass(frozen=True)
class FileTime:
    """When a boot image or a modprobe.d file was written, in seconds since 1970; an image older than a setting lacks it."""

    path: str
    mtime_s: int
    size_bytes: int
    is_image: bool


def parse_modprobe(text: str) -> list[tuple[int, str, str, str]]:
    """(line, module, name, value) of every ``options`` line. A backslash continues a line; "-" and "_" are one in names."""
    found = []
    first, joined, lines = 1, "", text.split("\n")
    for number, line in enumerate(lines, 1):
        joined += line.rstrip("\r")
        if joined.endswith("\\"):
            joined = joined[:-1]
            if number < len(lines):
                continue
        words, begun = _words(joined), first
        first, joined = number + 1, ""
        if len(words) > 2 and words[0] == "options":
            # modprobe knows no comment behind options: the kernel gets the words and ignores each as unknown.
            words = words[:next((i for i, word in enumerate(words) if word.startswith("#")), None)]
            found += [(begun, _plain(words[1]), *_pair(word)) for word in words[2:]]
    return found


def parse_cmdline(text: str) -> list[tuple[str, str, str]]:
    """(module, name, value) of every ``module.name=value`` of a kernel command line; what follows "--" is for init."""
    words = _words(text)
    words = words[:words.index("--")] if "--" in words else words
    dotted = [word.split(".", 1) for word in words if re.match(r"[A-Za-z][\w-]*\.[A-Za-z_]", word)]
    return [(_plain(module), *_pair(rest)) for module, rest in dotted]


def parse_modules(text: str) -> dict[str, tuple[str, ...]]:
    """Loaded modules and who uses each, from /proc/modules or from what lsmod prints."""
    loaded = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1].isdigit() and words[2].lstrip("-").isdigit():
            users = words[3] if len(words) > 3 and words[3] != "-" else ""
            loaded[_plain(words[0])] = tuple(_plain(user) for user in users.split(",") if user and user != "[permanent]")
    return loaded


def _words(text: str) -> list[str]:
    """Split at blanks outside double quotes and drop the quotes, as the kernel does (lib/cmdline.c, next_arg)."""
    return [word.replace('"', "") for word in re.findall(r'(?:"[^"]*"?|[^\s"])+', text)]


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    return _plain(name), value if equals else "1"


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _same(left: str, right: str) -> bool:
    return _value(left) == _value(right)


def _value(word: str) -> int | str:
    if word.lower() in ("y", "n"):
        return int(word.lower() == "y")
    return int(word, 0) if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,19})", word) else word


def ttm_module(bundle: Bundle) -> Reading:
    """Which TTM module amdgpu works with ("ttm", "amdttm"). Both can be loaded; the one in use lists amdgpu as its user."""
    got = bundle.read("/proc/modules")
    loaded = parse_modules(got.text)
    users = [module for module in MODULES[:3] if "amdgpu" in loaded.get(module, ())]
    if users:
        return seen(users[0], "text", got.source, got.item)
    # Built into the kernel, or in a container where /proc/modules is hidden: then one folder alone still tells.
    present = [module for module in MODULES[:3] if bundle.sources(f"/sys/module/{module}/parameters/*")]
    if len(present) == 1:
        return seen(present[0], "text", f"/sys/module/{present[0]}", got.item)
    why = "no TTM module is loaded" if not present else f"amdgpu uses none of {', '.join(present)} by /proc/modules"
    return not_available(why, "text", got.source, got.item)


def settings(bundle: Bundle) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    """Settings of MODULES in modprobe.d files, in the order in which modprobe takes them, and on the kernel command line."""
    files: dict[str, str] = {}
    for folder in reversed(_CONFIG):
        files.update({source.rsplit("/", 1)[-1]: source for source in bundle.sources(f"{folder}/*.conf")})
    configured = [Setting(module, name, value, source, line, bundle.read(source).item)
                  for _, source in sorted(files.items())
                  for line, module, name, value in parse_modprobe(bundle.read(source).text) if module in MODULES]
    got = bundle.read("/proc/cmdline")
    cmdline = [Setting(module, name, value, got.source, 1, got.item)
               for module, name, value in parse_cmdline(got.text) if module in MODULES]
    return tuple(configured), tuple(cmdline)


def parameters(bundle: Bundle) -> tuple[Parameter, ...]:
    """The memory parameters of every module that is there, and every parameter of MODULES that is set somewhere."""
    configured, cmdline = settings(bundle)
    names = {(s.module, s.name) for s in configured + cmdline}
    names.update(pair for pair in (*UNITS, *_ALSO) if bundle.sources(f"/sys/module/{pair[0]}/parameters/{pair[1]}"))
    return tuple(_parameter(bundle, module, name, configured, cmdline) for module, name in sorted(names))


def _parameter(bundle: Bundle, module: str, name: str, configured: tuple[Setting, ...],
               cmdline: tuple[Setting, ...]) -> Parameter:
    source = f"/sys/module/{module}/parameters/{name}"
    unit = UNITS.get((module, name), "")
    live = bundle.number(source, "pages" if unit == "pages" else "count") if unit else bundle.word(source)
    return Parameter(module, name, unit, live, _bytes(live, unit, bundle),
                     tuple(s for s in configured if (s.module, s.name) == (module, name)),
                     tuple(s for s in cmdline if (s.module, s.name) == (module, name)))


def _bytes(live: Reading, unit: str, bundle: Bundle) -> Reading:
    if not live.ok or not unit:
        return live if not live.ok else not_available("not a size", "bytes", live.source, live.item)
    count = int(live.value or 0)
    if count < 0:
        return not_available(f"{count}: the driver chooses", "bytes", live.source, live.item)
    size = page_size(bundle) if unit == "pages" else seen(MIB if unit == "MiB" else MIB << 10, "bytes", live.source)
    if not size.ok:
        return not_available(f"page size {size.show()}", "bytes", live.source, live.item)
    return seen(count * int(size.value or 0), "bytes", live.source, live.item)


def unknown(bundle: Bundle) -> tuple[Unknown, ...]:
    """Settings for which the loaded module shows no file in sysfs, such as amdgpu.gtt_size for gttsize.

    A parameter may be hidden from sysfs (mode 0); the kernel log line "unknown parameter" is the proof.
    """
    odd = []
    for setting in sum(settings(bundle), ()):
        names = [s.rsplit("/", 1)[-1] for s in bundle.sources(f"/sys/module/{setting.module}/parameters/*")]
        if names and setting.name not in map(_plain, names):
            near = [name for name in names if name.replace("_", "") == setting.name.replace("_", "")]
            odd.append(Unknown(setting, near[0] if near else ""))
    return tuple(odd)


def collect_initramfs(root: Path) -> list[dict[str, Any]]:
    """Rows of the table initramfs: path, mtime (seconds since 1970) and size (bytes) of boot images and modprobe.d files."""
    rows = []
    for pattern in (*_IMAGES, *(f"{folder}/*.conf" for folder in _CONFIG)):
        for found in find(str(root), pattern):
            row: dict[str, Any] = {"path": found.source, "status": found.status, "why": found.why}
            if found.status == "ok":
                try:
                    state = os.lstat(str(root).rstrip("/") + found.source)
                except OSError as error:
                    row["status"], row["why"] = fault(error)
                else:
                    # /boot/initrd.img is a link to the image of one kernel, which is listed by its own name.
                    if not stat.S_ISREG(state.st_mode):
                        continue
                    row.update(mtime=int(state.st_mtime), size=state.st_size)
            if row["status"] != "not_available":
                rows.append(row)
    return rows


def file_times(bundle: Bundle) -> tuple[FileTime, ...]:
    """The rows of the table initramfs that could be looked at."""
    rows = [row for row in bundle.table("initramfs") if isinstance(row.get("mtime"), int) and isinstance(row.get("path"), str)]
    return tuple(FileTime(row["path"], row["mtime"], row["size"] if isinstance(row.get("size"), int) else 0,
                          "/modprobe.d/" not in row["path"]) for row in rows)
