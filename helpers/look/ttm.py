"""The memory parameters of the kernel modules TTM and amdgpu: which value is in force, which is
configured in which file, and which the next boot would bring.

ttm.pages_limit limits how much RAM all drivers together may take through TTM
(drivers/gpu/drm/ttm/ttm_tt.c); on an APU it is the pool that HIP sees. A driver that AMD ships
apart from the kernel has its own module, amdttm, and then only that one counts (ROCm#5595). Of
files with the same name modprobe takes the one in /etc, else in /run, /usr/local/lib, /usr/lib,
/lib; it sorts files by name, and takes the kernel command line last (kmod, libkmod-config.c;
modprobe.d(5)). In a container the files are the container's own.
"""

from __future__ import annotations

import itertools
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

TTM_MODULES = ("amdttm", "amd_ttm", "ttm")
MODULES = (*TTM_MODULES, "amdgpu")
_FOLDERS = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
_CONFIG = tuple(f"{folder}/modprobe.d" for folder in _FOLDERS)
"""The folders of modprobe's files, the one that wins first."""
_IMAGES = ("/boot/initr*", "/boot/EFI/Linux/*.efi", "/efi/EFI/Linux/*.efi")
"""Boot images, which contain a copy of modprobe's files."""
_PAGES = ("pages_limit", "page_pool_size", "dma32_pages_limit")
UNITS = {
    **dict.fromkeys(itertools.product(TTM_MODULES, _PAGES), "pages"),
    ("amdgpu", "gttsize"): "MiB",
    ("amdgpu", "gartsize"): "MiB",
    ("amdgpu", "vramlimit"): "MiB",
    ("amdgpu", "vis_vramlimit"): "MiB",
    ("amdgpu", "vm_size"): "GiB",
}
"""The unit of each (module, parameter), by the module's own descriptions. vm_size is address space
and limits no pool.
"""
_ALSO = (("amdgpu", "no_system_mem_limit"), ("amdgpu", "gpu_recovery"))
"""Parameters without a unit: the first lifts KFD's limit on RAM, the second lets a GPU that hangs
be reset.
"""


@dataclass(frozen=True)
class Setting:
    """One parameter as a file or the kernel command line sets it. ``line`` counts from 1."""

    module: str
    name: str
    value: str
    source: str
    line: int


@dataclass(frozen=True)
class ModuleParameter:
    """One module parameter: its ``live`` value in sysfs, in ``unit`` (pages, MiB, GiB or empty),
    and the same in bytes.

    ``settings`` are all settings of it in the order in which they take effect: the last one wins,
    so the command line wins over files. For a module that is built into the kernel, only the
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
        """The winning setting if it is not in force: the box has not been booted since, or the
        initramfs is older, or the module refused it. None if it is in force, or there is none.
        """
        if self.wanted is None or not self.live.ok:
            return None
        if _value(self.wanted.value) == _value(str(self.live.value)):
            return None
        return self.wanted


@dataclass(frozen=True)
class Unknown:
    """A setting of a parameter that its module does not have; the kernel logs and ignores it.
    ``meant`` is the name of a parameter that the module has, or empty.
    """

    setting: Setting
    meant: str


@dataclass(frozen=True)
class FileTime:
    """When a boot image or a file of modprobe.d was written, in seconds since 1970: an image that
    is older than a setting does not contain it.
    """

    path: str
    mtime_s: int
    is_image: bool


def parse_modprobe(text: str) -> list[tuple[int, str, str, str]]:
    """(line, module, name, value) of every parameter in a file of modprobe.d, whose lines are
    ``options MODULE NAME=VALUE ...``. A backslash continues a line.
    """
    options = []
    lines = text.split("\n")
    start = 1  # the number of the line in which ``joined`` began
    joined = ""
    for number, line in enumerate(lines, 1):
        joined += line.rstrip("\r")
        if joined.endswith("\\"):
            joined = joined[:-1]
            if number < len(lines):
                continue
        words = _words(joined)
        if len(words) > 2 and words[0] == "options" and not words[1].startswith("#"):
            module = _plain(words[1])
            for word in words[2:]:
                # For modprobe this is no comment: the kernel gets these words as parameters, and
                # ignores each as unknown.
                if word.startswith("#"):
                    break
                options.append((start, module, *_pair(word)))
        start = number + 1
        joined = ""
    return options


def parse_cmdline(text: str) -> list[tuple[str, str, str]]:
    """(module, name, value) of every ``module.name=value`` of a kernel command line. The words
    behind "--" are for init.
    """
    words = _words(text)
    if "--" in words:
        words = words[: words.index("--")]
    parameters = []
    for word in words:
        if re.match(r"[A-Za-z][\w-]*\.[A-Za-z_]", word):
            module, _, parameter = word.partition(".")
            parameters.append((_plain(module), *_pair(parameter)))
    return parameters


def parse_modules(text: str) -> dict[str, tuple[str, ...]]:
    """The modules that use each loaded module, from /proc/modules or from what lsmod prints: lines
    of name, size, number of users, and the users' names with commas between them.
    """
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
    """The name and the value of ``name=value``; a name alone sets 1."""
    name, equals, value = word.partition("=")
    if not equals:
        value = "1"
    return _plain(name), value


def _plain(name: str) -> str:
    """The name of a module or a parameter in one form: for the kernel "-" and "_" are the same."""
    return name.replace("-", "_")


def _value(word: str) -> int | str:
    """The value of a parameter as the kernel takes it, so that two ways to write it are equal."""
    if word.lower() == "y":
        return 1
    if word.lower() == "n":
        return 0
    # A number with a 0 before it would be octal, which Python writes in another way.
    if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,19})", word):
        return int(word, 0)
    return word


def ttm_module(bundle: Bundle) -> Reading:
    """Which TTM module amdgpu uses ("ttm", "amdttm"). Both can be loaded; the one in use lists
    amdgpu as its user. Without a value if none is loaded, or if that does not tell which of
    several.
    """
    modules = bundle.read("/proc/modules")
    loaded = parse_modules(modules.text)
    for module in TTM_MODULES:
        if "amdgpu" in loaded.get(module, ()):
            return modules.seen(module)
    # They may be built into the kernel, or /proc/modules hidden from a container: then sysfs tells,
    # if it has only one of them.
    present = []
    for module in TTM_MODULES:
        if bundle.sources(f"/sys/module/{module}/parameters/*"):
            present.append(module)
    if len(present) == 1:
        return modules.of(f"/sys/module/{present[0]}").seen(present[0])
    if not present:
        return modules.refused("", "no TTM module is loaded")
    names = ", ".join(present)
    return modules.refused("", f"amdgpu uses none of {names} by /proc/modules")


def settings(bundle: Bundle) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    """The settings of MODULES in files of modprobe.d, in the order in which modprobe takes them,
    and those on the kernel command line.
    """
    files: dict[str, str] = {}
    # The folder that wins comes last, and its files replace others with the same name.
    for folder in reversed(_CONFIG):
        for source in bundle.sources(f"{folder}/*.conf"):
            name = source.rpartition("/")[2]
            files[name] = source
    configured = []
    for _, source in sorted(files.items()):  # by name, as modprobe takes them
        for line, module, name, value in parse_modprobe(bundle.read(source).text):
            if module in MODULES:
                configured.append(Setting(module, name, value, source, line))
    on_cmdline = []
    for module, name, value in parse_cmdline(bundle.read("/proc/cmdline").text):
        if module in MODULES:
            on_cmdline.append(Setting(module, name, value, "/proc/cmdline", 1))
    return tuple(configured), tuple(on_cmdline)


def all_settings(bundle: Bundle) -> tuple[Setting, ...]:
    """All settings of MODULES in the order in which they take effect: those of the kernel command
    line come last and win.
    """
    configured, on_cmdline = settings(bundle)
    return configured + on_cmdline


def parameters(bundle: Bundle) -> tuple[ModuleParameter, ...]:
    """The parameters of UNITS and _ALSO that the box has, and every parameter of MODULES that is
    set somewhere, sorted by module and name.
    """
    settings_of: dict[tuple[str, str], list[Setting]] = {}
    for setting in all_settings(bundle):
        settings_of.setdefault((setting.module, setting.name), []).append(setting)
    present = []
    for module, name in sorted({*settings_of, *UNITS, *_ALSO}):
        source = f"/sys/module/{module}/parameters/{name}"
        if (module, name) not in settings_of and not bundle.sources(source):
            continue
        unit = UNITS.get((module, name), "")
        if unit == "pages":
            live = bundle.number(source, "pages")
        elif unit:
            live = bundle.number(source, "count")
        else:
            live = bundle.word(source)
        parameter = ModuleParameter(
            module=module,
            name=name,
            unit=unit,
            live=live,
            live_bytes=_bytes(live, unit, bundle),
            settings=tuple(settings_of.get((module, name), ())),
        )
        present.append(parameter)
    return tuple(present)


def _bytes(live: Reading, unit: str, bundle: Bundle) -> Reading:
    """A live value in bytes, or why it is no size."""
    if not live.ok:
        return live
    page = page_size(bundle)
    scales = {"": 0, "pages": page.bytes, "MiB": MIB, "GiB": GIB}
    if not unit:
        why = "not a size"
    elif live.bytes < 0:
        why = f"{live.bytes}: the driver chooses"
    elif not scales[unit]:
        why = f"page size {page.show()}"
    else:
        return seen(live.bytes * scales[unit], "bytes", live.source, live.item)
    return not_available(why, "bytes", live.source, live.item)


def unknown(bundle: Bundle) -> tuple[Unknown, ...]:
    """The settings of parameters for which the loaded module has no file in sysfs, such as
    amdgpu.gtt_size for gttsize.

    That is no proof: a parameter may be hidden from sysfs (mode 0). The line "unknown parameter" of
    the kernel's log is one.
    """
    unknown_settings = []
    for setting in all_settings(bundle):
        sources = bundle.sources(f"/sys/module/{setting.module}/parameters/*")
        names = [source.rpartition("/")[2] for source in sources]
        if not names or setting.name in map(_plain, names):
            continue
        bare = setting.name.replace("_", "")
        near = [name for name in names if name.replace("_", "") == bare]
        unknown_settings.append(Unknown(setting, meant=next(iter(near), "")))
    return tuple(unknown_settings)


def collect_initramfs(root: Path) -> list[JsonRow]:
    """The table ``initramfs``: path and mtime (seconds since 1970) of every boot image and every
    file of modprobe.d; those that this user may not examine are left out.
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
    """When the files of the table ``initramfs`` were written."""
    times = []
    for row in bundle.table("initramfs"):
        path = row.text("path")
        mtime = row.number("mtime")
        if path and mtime is not None:
            times.append(FileTime(path, mtime, is_image="/modprobe.d/" not in path))
    return tuple(times)
