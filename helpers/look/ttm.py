"""The memory parameters of TTM and amdgpu: what is live, what is configured where, and what
only a reboot would bring.

Facts: ttm.pages_limit caps what all drivers together may take of RAM through TTM
(drivers/gpu/drm/ttm/ttm_tt.c); on an APU it is the pool that HIP sees. An out-of-tree driver
brings its own module, amdttm, and then only that one counts (ROCm#5595). Of files with one name
modprobe takes that in /etc, else /run, /usr/local/lib, /usr/lib, /lib; it sorts files by name,
and takes the kernel command line last (kmod, libkmod-config.c; modprobe.d(5)). In a container
the files are the container's own.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.units import GIB, MIB
from helpers.look.bundle import Bundle, JsonRow

from .files import find
from .machine import page_size

MODULES = ("amdttm", "amd_ttm", "ttm", "amdgpu")
_CONFIG = tuple(
    f"{top}/modprobe.d" for top in "/etc /run /usr/local/lib /usr/lib /lib".split()
)
_IMAGES = ("/boot/initr*", "/boot/EFI/Linux/*.efi", "/efi/EFI/Linux/*.efi")
_PAGES = ("pages_limit", "page_pool_size", "dma32_pages_limit")
UNITS = {
    **{(module, name): "pages" for module in MODULES[:3] for name in _PAGES},
    **{
        ("amdgpu", name): "MiB"
        for name in "gttsize gartsize vramlimit vis_vramlimit".split()
    },
    ("amdgpu", "vm_size"): "GiB",
}
"""Units by the module's own parameter descriptions. vm_size is GiB of address space and sizes
no pool.
"""
_ALSO = (("amdgpu", "no_system_mem_limit"), ("amdgpu", "gpu_recovery"))


@dataclass(frozen=True)
class Setting:
    """One parameter as it is written in a file or on the kernel command line.

    ``line`` counts from 1.
    """

    module: str
    name: str
    value: str
    source: str
    line: int


@dataclass(frozen=True)
class ModuleParameter:
    """One module parameter: ``live`` as sysfs shows it, in ``unit`` (pages, MiB, GiB or empty),
    and ``live_bytes`` in bytes.

    ``settings`` are those of it, in the order in which they take effect: the last one wins,
    and the command line wins over files. For a module that the kernel was built with, only the
    command line counts.
    """

    module: str
    name: str
    unit: str
    live: Reading
    live_bytes: Reading
    settings: tuple[Setting, ...]

    @property
    def wanted(self) -> Setting | None:
        """The setting that wins when the module is loaded next."""
        if not self.settings:
            return None
        return self.settings[-1]

    @property
    def pending(self) -> Setting | None:
        """The winning setting where it is not what is live: not yet rebooted, or the initramfs
        is stale, or it was refused.
        """
        if self.wanted is None or not self.live.ok:
            return None
        if _value(self.wanted.value) == _value(str(self.live.value)):
            return None
        return self.wanted


@dataclass(frozen=True)
class Unknown:
    """A setting the module has no such parameter for; the kernel logs and ignores it.

    ``meant`` is a near name, or empty.
    """

    setting: Setting
    meant: str


@dataclass(frozen=True)
class FileTime:
    """When a boot image or a modprobe.d file was written, in seconds since 1970; an image older
    than a setting lacks it.
    """

    path: str
    mtime_s: int
    is_image: bool


def parse_modprobe(text: str) -> list[tuple[int, str, str, str]]:
    """(line, module, name, value) of every ``options`` line.

    A backslash continues a line; "-" and "_" are one in names.
    """
    options = []
    first = 1
    joined = ""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        joined += line.rstrip("\r")
        if joined.endswith("\\"):
            joined = joined[:-1]
            if number < len(lines):
                continue
        words = _words(joined)
        begun = first
        first = number + 1
        joined = ""
        if len(words) > 2 and words[0] == "options" and not words[1].startswith("#"):
            # modprobe knows no comment behind options: the kernel gets the words and ignores
            # each as unknown.
            for word in words[2:]:
                if word.startswith("#"):
                    break
                options.append((begun, _plain(words[1]), *_pair(word)))
    return options


def parse_cmdline(text: str) -> list[tuple[str, str, str]]:
    """(module, name, value) of every ``module.name=value`` of a kernel command line; what
    follows "--" is for init.
    """
    words = _words(text)
    if "--" in words:
        words = words[: words.index("--")]
    dotted = [
        word.split(".", 1)
        for word in words
        if re.match(r"[A-Za-z][\w-]*\.[A-Za-z_]", word)
    ]
    return [(_plain(module), *_pair(rest)) for module, rest in dotted]


def parse_modules(text: str) -> dict[str, tuple[str, ...]]:
    """Loaded modules and who uses each, from /proc/modules or from what lsmod prints."""
    loaded = {}
    for words in map(str.split, text.splitlines()):
        if len(words) >= 3 and words[1].isdigit() and words[2].lstrip("-").isdigit():
            users = "".join(words[3:4]).replace("[permanent]", "").split(",")
            named = [user for user in users if user not in ("", "-")]
            loaded[_plain(words[0])] = tuple(map(_plain, named))
    return loaded


def _words(text: str) -> list[str]:
    """Split at blanks outside double quotes and drop the quotes, as the kernel does
    (lib/cmdline.c, next_arg).
    """
    return [word.replace('"', "") for word in re.findall(r'(?:"[^"]*"?|[^\s"])+', text)]


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    return _plain(name), value if equals else "1"


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _value(word: str) -> int | str:
    if word.lower() in ("y", "n"):
        return int(word.lower() == "y")
    number = re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,19})", word)
    if number:
        return int(word, 0)
    return word


def ttm_module(bundle: Bundle) -> Reading:
    """Which TTM module amdgpu works with ("ttm", "amdttm").

    Both can be loaded; the one in use lists amdgpu as its user.
    """
    got = bundle.read("/proc/modules")
    loaded = parse_modules(got.text)
    for module in MODULES[:3]:
        if "amdgpu" in loaded.get(module, ()):
            return got.seen(module)
    # Built into the kernel, or in a container where /proc/modules is hidden: then one folder
    # alone still tells.
    present = [
        m for m in MODULES[:3] if bundle.sources(f"/sys/module/{m}/parameters/*")
    ]
    if len(present) == 1:
        return got.of(f"/sys/module/{present[0]}").seen(present[0])
    if not present:
        return got.refused("", "no TTM module is loaded")
    return got.refused("", f"amdgpu uses none of {', '.join(present)} by /proc/modules")


def settings(bundle: Bundle) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    """Settings of MODULES in modprobe.d files, in the order in which modprobe takes them, and
    on the kernel command line.
    """
    files: dict[str, str] = {}
    for folder in reversed(_CONFIG):
        sources = bundle.sources(f"{folder}/*.conf")
        files.update({source.rsplit("/", 1)[-1]: source for source in sources})
    configured = []
    for _, source in sorted(files.items()):
        for line, module, name, value in parse_modprobe(bundle.read(source).text):
            if module in MODULES:
                configured.append(Setting(module, name, value, source, line))
    on_cmdline = []
    for module, name, value in parse_cmdline(bundle.read("/proc/cmdline").text):
        if module in MODULES:
            on_cmdline.append(Setting(module, name, value, "/proc/cmdline", 1))
    return tuple(configured), tuple(on_cmdline)


def all_settings(bundle: Bundle) -> tuple[Setting, ...]:
    """The same in one row: the kernel command line's come last and win."""
    configured, on_cmdline = settings(bundle)
    return configured + on_cmdline


def parameters(bundle: Bundle) -> tuple[ModuleParameter, ...]:
    """The memory parameters of every module that is there, and every parameter of MODULES that
    is set somewhere.
    """
    written: dict[tuple[str, str], list[Setting]] = {}
    for setting in all_settings(bundle):
        written.setdefault((setting.module, setting.name), []).append(setting)
    present = []
    for module, name in sorted({*written, *UNITS, *_ALSO}):
        source = f"/sys/module/{module}/parameters/{name}"
        unit = UNITS.get((module, name), "")
        if (module, name) in written or bundle.sources(source):
            live = bundle.word(source)
            if unit:
                live = bundle.number(source, "pages" if unit == "pages" else "count")
            parameter = ModuleParameter(
                module=module,
                name=name,
                unit=unit,
                live=live,
                live_bytes=_bytes(live, unit, bundle),
                settings=tuple(written.get((module, name), ())),
            )
            present.append(parameter)
    return tuple(present)


def _bytes(live: Reading, unit: str, bundle: Bundle) -> Reading:
    if not live.ok:
        return live
    page = page_size(bundle)
    scale = {"pages": page.bytes, "MiB": MIB, "GiB": GIB}.get(unit, 0)
    if not unit:
        why = "not a size"
    elif live.bytes < 0:
        why = f"{live.bytes}: the driver chooses"
    elif not scale:
        why = f"page size {page.show()}"
    else:
        return seen(live.bytes * scale, "bytes", live.source, live.item)
    return not_available(why, "bytes", live.source, live.item)


def unknown(bundle: Bundle) -> tuple[Unknown, ...]:
    """Settings for which the loaded module shows no file in sysfs, such as amdgpu.gtt_size for
    gttsize.

    A parameter may be hidden from sysfs (mode 0); the kernel log line "unknown parameter" is
    the proof.
    """
    odd = []
    for setting in all_settings(bundle):
        sources = bundle.sources(f"/sys/module/{setting.module}/parameters/*")
        names = [source.rsplit("/", 1)[-1] for source in sources]
        if names and setting.name not in map(_plain, names):
            bare = setting.name.replace("_", "")
            near = [name for name in names if name.replace("_", "") == bare]
            odd.append(Unknown(setting, near[0] if near else ""))
    return tuple(odd)


def collect_initramfs(root: Path) -> list[JsonRow]:
    """Rows of the table initramfs: path and mtime (seconds since 1970) of boot images and
    modprobe.d files; those that may not be looked at are left out.
    """
    rows = []
    top = str(root).rstrip("/")
    for pattern in (*_IMAGES, *(f"{folder}/*.conf" for folder in _CONFIG)):
        for match in find(str(root), pattern):
            try:
                state = os.lstat(top + match.source)
            except OSError:
                continue
            # /boot/initrd.img is a link to the image of one kernel, which is listed by its own
            # name.
            if match.status == "ok" and stat.S_ISREG(state.st_mode):
                rows.append({"path": match.source, "mtime": int(state.st_mtime)})
    return rows


def file_times(bundle: Bundle) -> tuple[FileTime, ...]:
    """The rows of the table initramfs that could be looked at."""
    rows = [
        (row.text("path"), row.number("mtime")) for row in bundle.table("initramfs")
    ]
    return tuple(
        FileTime(path, mtime, "/modprobe.d/" not in path)
        for path, mtime in rows
        if path and mtime is not None
    )
