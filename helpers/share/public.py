"""Which texts of a record may be shared: numbers, words of a list, and names of a known pattern.

Nothing here looks for secrets. A function returns a text that it knows, and an empty text for
everything else, so an unforeseen text is not shared.
"""

from __future__ import annotations

import re
import signal
from functools import cache
from pathlib import Path

from helpers.ground.child import CHECKOUT
from helpers.ground.shapes import Reading
from helpers.look.boxes import recorded_names
from helpers.settings.table import CONF_NAMES, PARAMETERS, VARIABLES
from helpers.settings.table import OPTIONS as OPTIONS

LARGEST = 1 << 60
"""An exbibyte: no box has a larger number. Identifiers, such as serial numbers of 64 bits, are
larger.
"""
MOST_SOURCES = 4
"""Sources that are named for one number."""
# A word of a chip's name: vendors, series, words of editions, clock ("3.70GHz"), MIG slice
# ("1g.10gb"), generation ("13th"), "i7", and model numbers such as 7900, H100, MI300X or 7950X3D.
CHIP_WORD = (
    r"(?:AMD|NVIDIA|Intel|Apple|Ampere|Ryzen|EPYC|Threadripper|Xeon|Core|Ultra|Altra|Neoverse|Radeon"
    r"|Instinct|GeForce|Quadro|Tesla|Arc|Platinum|Gold|Silver|Bronze|Celeron|Pentium|Graphics|Processor"
    r"|CPU|GPU|GB|MI|RTX|GTX|RX|PRO|XTX?|Ti|SUPER|AI|MAX|Laptop|Mobile|Gen|with|w|R|TM|@|Q|MIG|TITAN|VII"
    r"|Ada|Generation|Blackwell|Workstation|Server|Edition|SXM\d?|PCIe|NVL|HBM\d\w?|OAM|GRE|Cores"
    r"|\d\.\d\dGHz|\dg\.\d{1,3}gb|\d\dth|i[3579]|[A-Z]{0,2}(?:1[0-4])?\d{1,3}[A-Z]{0,3}\d?"
    r"|[A-Z]{0,2}[1-9]\d{3}(?:X3D|[A-Z]{0,3}\d?))\+?"
)
CHIP = re.compile(
    # No groups of digits, such as telephone numbers have, and at most 12 digits in all.
    r"(?!.*\d{3} \d{3}|(?:\D*\d){13})"
    r"(?:\d\dth Gen )?"
    r"(?:AMD|NVIDIA|Intel|Apple|Ampere|Neoverse|Radeon|GeForce|Quadro|Tesla|RTX)\b"
    # Up to nine further words, after a blank, a hyphen, brackets, or a slash ("CPU w/ Radeon").
    rf"(?:(?: |-| ?\(|\)|\) |(?<=[A-Za-z])/ ?){CHIP_WORD}){{0,9}}\)?",
    re.IGNORECASE,
)
# NAME and VERSION_ID of os-release, the version with at most three numbers.
DISTRIBUTION = re.compile(
    r"(?:Ubuntu|Debian GNU/Linux|Fedora Linux|Arch Linux|AlmaLinux|Rocky Linux|CentOS Stream"
    r"|Red Hat Enterprise Linux|openSUSE (?:Leap|Tumbleweed|MicroOS)|SUSE Linux Enterprise Server"
    r"|Linux Mint|Pop!_OS|NixOS|CachyOS|EndeavourOS|Garuda Linux|Manjaro Linux|Kali GNU/Linux"
    r"|Gentoo|Amazon Linux|SteamOS|Bazzite|Pardus GNU/Linux)\b(?: \d\d?(?:\.\d\d?){0,2}(?![.\d]))?"
)
VERSION = re.compile(
    # 6.17 or 2.9.1, and HIP's 6.4.43484; no date such as 24.12.31.
    r"(?!\d\d\.\d\d\.\d\d\b)(?:0|[1-9]\d{0,2})\.\d{1,3}(?:\.(?:\d{1,3}|\d{5}))?(?!\d)"
    # A fourth number, as an IP address has, only in a kernel of WSL.
    r"(?:\.\d{1,3}(?=-microsoft)|(?!\.\d))"
    # A pre-release, or the day of a nightly build.
    r"(?:(?:a|b|rc)\d{1,3}|\.dev20\d\d[01]\d[0-3]\d)?(?!\d)"
    # The build of torch; … stands for a commit. NVIDIA's containers add .nv25.03.
    r"(?:\+(?:rocm\d\d?(?:\.\d\d?){1,2}|cu\d{2,3}|cpu|deb\d\d|(?:git)?…)(?!\d))?"
    r"(?:\.nv\d\d\.\d\d\b)?"
    # The package of a distribution's kernel: -45, -570.12.1.el9_6.x86_64, .fc43.
    r"(?:-\d{1,5}(?:\.\d{1,3}){0,3}(?!\w|\.\d))?"
    r"(?:\.(?:el\d\d?(?:_\d\d?)?|fc\d\d|amzn20\d\d)(?:\.(?:x86_64|aarch64))?\b)?"
    # The flavours of distributions' kernels.
    r"(?:-(?:generic|lowlatency|aws|azure|gcp|oem|nvidia|64k|cloud|amd64|arm64|rt|lts|hardened"
    r"|zen\d?|arch\d\d?|\d\d?|cachyos|MANJARO|pve|default|microsoft|standard|WSL2|tegra|raspi"
    r"|liquorix|xanmod\d)\b){0,4}"
)
RELEASE = re.compile(
    r"[1-9]\d{0,2}\.(?:0|[1-9]\d{0,2})\.(?:0|[1-9]\d{0,2})(?:\.post\d)?|[3-9]\d\d\.\d{2,3}\.\d\d"
)
"""The digits of a release, and those of NVIDIA's drivers; a date has a year or a leading zero."""
COMMIT = re.compile(r"(?<=[+t])[0-9a-f]{7,40}\b")
"""The hash of a commit, which a build without a release has: any number may look like one."""
GFX = re.compile(
    r"gfx(?:[678]0\d|810|90[0-9ac]|94[0-2]|950|10[13][0-6]|11[057][0-3]|12[05][01])"
)
"""The instruction sets of AMD GPUs that LLVM knows (AMDGPUUsage)."""
SIZE = re.compile(r"\d+(?:\.\d+)? ?[KMGT]i?B")
"""A size with its unit, as our tables print it."""
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
BATCH_TIME = re.compile(r"\d{8}T\d{6}Z")
"""How the folder of a batch begins: 20260301T210000Z."""
PARAMETER_NAMES = frozenset(f"{row.module}.{row.name}" for row in PARAMETERS)
BARE_NAMES = frozenset(row.name for row in PARAMETERS)
SETTING_NAMES = PARAMETER_NAMES.union(VARIABLES, CONF_NAMES)
KERNEL_WORD = re.compile(
    rf"(?:{'|'.join(map(re.escape, PARAMETER_NAMES))})=(-?\d{{1,12}})"
)
IOMMU = frozenset(
    {"iommu=pt", "iommu=on", "iommu=off", "amd_iommu=on", "amd_iommu=off"}
)
"""Words of a kernel command line (admin-guide/kernel-parameters.txt)."""
# A value of an option of torch's allocator (c10/cuda/CUDAAllocatorConfig.h): a switch, a backend, a
# number, or a list such as [256:1,512:2,>:4]. Six digits in a row are no size of it.
SWITCH = r"True|False|native|cudaMallocAsync|\d{1,6}(?:\.\d{1,4})?|\[(?![^\]]*\d{6})[\d:,>]{1,80}\]"
ALLOCATOR_WORD = re.compile(
    rf"(?:(?<=,)|^)((?:{'|'.join(OPTIONS)}):(?:{SWITCH}))(?=,|$)"
)
# A value of another setting: a small number, a switch, a list of indices, a share, the version of
# HSA_OVERRIDE_GFX_VERSION (10.3.0), or a list of chips.
VALUE = re.compile(
    r"-?\d{1,4}|True|False|native|cudaMallocAsync|default|\d{1,2}(?:,\d{1,2})*"
    rf"|\d{{1,3}}\.\d{{1,3}}|\d{{1,2}}\.\d\.\d{{1,2}}|{GFX.pattern}(?:[;,]{GFX.pattern})*"
)
# Files whose names are the same on every box: procfs, amdgpu and KFD in sysfs, cgroups, ROCm.
KERNEL_FILE = re.compile(
    r"/proc/(?:meminfo|cpuinfo|modules|swaps|version|driver/nvidia/version)"
    r"|/sys/class/drm/card\d{1,3}/device/mem_info_(?:vram|vis_vram|gtt|preempt)_(?:total|used)"
    r"|/sys/class/kfd/kfd/topology/nodes/\d{1,3}/(?:properties|mem_banks/\d{1,2}/properties)"
    r"|/opt/rocm(?:-\d{1,2}(?:\.\d{1,2}){1,2})?/\.info/version(?:-dev)?|/sys/module/amdgpu/version"
    r"|/sys/fs/cgroup/memory\.(?:max|high|current|peak)"
    rf"|/sys/module/(?:{'|'.join(f'{row.module}/parameters/{row.name}' for row in PARAMETERS)})"
)
# Sources that are no file and no tool, as helpers/look and helpers/judge name them.
OUR_SOURCES = (
    "error text",
    "the numbers of the error text",
    "the error message",
    "the error message: capacity less what is free",
    "the layers' totals",
    "snapshot",
    "DRM fdinfo",
    "DRM fdinfo (VRAM and GTT)",
    "KFD",
)
TOOLS = ("rocminfo", "rocm-smi", "amd-smi", "amd-ttm", "nvidia-smi", "torch")
KINDS_OF_SOURCE = {
    "/sys/": "sysfs",
    "/proc/": "procfs",
    "ulimit": "ulimit",
    "computed": "computed",
    "recording of ": "a recording",
    "repeat with": "a repeat",
    "measured here": "measured",
    "memory model of ": "a model",
}
"""Names for sources that may not be named themselves, by the beginning of the source."""
GRAMMARS = {
    "pci": rf"{PCI_ADDRESS.pattern}|host|not told",
    "driver": r"amdgpu|radeon|nvidia|nouveau|nova|i915|xe|vfio-pci|dxg",
    "index": rf"\d{{1,5}}|card\d{{1,3}}|renderD\d{{3}}|{GFX.pattern}",
    "native": r"-?(?:0|[1-9]\d{0,11})(?: (?:pages|[KMGT]i?B))?|[YN]|-",
    "ends": r"operation \d{1,3}(?:,\d{3})*|passes",
    "size": SIZE.pattern,
    "setting": "|".join(map(re.escape, SETTING_NAMES)),
    "container": "none|docker|podman|lxc|lxc-libvirt|systemd-nspawn|apptainer|singularity|kubernetes|oci|wsl",
    # Letters of the kernel (fs/proc/array.c).
    "state": "[RSDTtXxZKWPI]|zombie",
    # In octal digits or in letters.
    "mode": r"0?[0-7]{3,4}|[-bcdlps](?:[r-][w-][xsStT-]){3}",
}
"""The form of a whole text, by the class of its column (tell.values.Column) or its field."""
READINGS = frozenset(
    (
        "committed",
        "huge pages",
        "zram used",
        "cgroup used",
        "cgroup limit",
        "cgroup oom kills",
        "zfs cache",
        "overcommit",
        "core soft",
        "memlock soft",
        "nofile soft",
        "nproc soft",
        "stack soft",
    )
)
"""Names of readings that are in no sentence of the workbook."""
GROUPS = frozenset(
    "root video render audio input kvm docker vboxsf users sudo wheel adm disk tty nogroup".split()
)
"""Groups of users that distributions and their packages make; any other name is private."""


def chip(name: str) -> str:
    """The name of a processor or a card, if each of its words is in names of chips; else empty."""
    name = " ".join(name.split())
    return if_known(name, CHIP.fullmatch(name))


def if_known(text: str, is_known: object) -> str:
    """The text if ``is_known`` is true, else an empty one. No known name has characters beyond
    ASCII.
    """
    if is_known and text.isascii():
        return text
    return ""


def typed(kind: str, text: str) -> str:
    """The text if it has the form of its kind, a key of GRAMMARS; else an empty one."""
    return if_known(text, re.fullmatch(GRAMMARS[kind], text))


def start(pattern: re.Pattern[str], text: str) -> str:
    """The beginning of a text that matches the pattern; empty where none does."""
    match = pattern.match(text)
    if match is None:
        return ""
    return match[0]


def version(text: str) -> str:
    """The beginning of a release that has a known form (VERSION), with … in place of a commit."""
    return start(VERSION, COMMIT.sub("…", text))


def distribution(text: str) -> str:
    """The name of a well-known Linux distribution with its version; empty for another."""
    return start(DISTRIBUTION, text)


def kernel_parameters(command_line: str) -> str:
    """The parameters of a kernel command line that concern a GPU's memory, with their numbers."""
    words = []
    for word in command_line.split():
        match = KERNEL_WORD.fullmatch(word)
        is_parameter = match and is_switch_or_size(match[1])
        if is_parameter or word in IOMMU:
            words.append(word)
    return " ".join(words)


def is_switch_or_size(digits: str) -> bool:
    """Whether a setting can have the number: up to five digits, or whole MiB in pages of 4 KiB (256
    pages are a MiB). Any other number may be an identifier.
    """
    return len(digits) < 6 or int(digits) % 256 == 0


def allocator_settings(value: str) -> str:
    """The known settings in a text such as PYTORCH_CUDA_ALLOC_CONF, with their values."""
    return ",".join(ALLOCATOR_WORD.findall(value))


def setting_value(value: str) -> str:
    """The value of a setting: a number, a switch, or the known part of the allocator's settings."""
    is_size = re.fullmatch(r"\d{6,12}", value) and is_switch_or_size(value)
    if is_size or VALUE.fullmatch(value):
        return if_known(value, True)
    return allocator_settings(value)


def source(text: str) -> str:
    """The sources of a number that may be named: files of the kernel, and tools without
    arguments.
    """
    # Sources are joined by "; ", and those of a sum or difference by their sign.
    parts = re.split(r"; | [-+] ", text.removesuffix(" less the processes above"))
    sources = [_one_source(part) for part in parts[:MOST_SOURCES]]
    return "; ".join(dict.fromkeys(filter(None, sources)))


def _one_source(text: str) -> str:
    """A single source if it may be named, of a command only the tool; else empty."""
    if text in OUR_SOURCES or KERNEL_FILE.fullmatch(text):
        return text
    tool, _, _ = text.partition(" ")
    return if_known(tool, tool in TOOLS)


def source_or_kind(text: str) -> str:
    """The sources of a number that may be named, else their kind."""
    if text in KINDS_OF_SOURCE.values():  # a copy of a copy
        return text
    sources = source(text)
    if sources:
        return sources
    for beginning, kind in KINDS_OF_SOURCE.items():
        if text.startswith(beginning):
            return kind
    return ""


def is_number(value: object) -> bool:
    """Whether a value is a number below LARGEST. True and False are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < LARGEST


def number(reading: Reading) -> str:
    """A reading that is a number, with its unit; empty where it is a text or was not read."""
    return if_known(reading.show(), is_number(reading.value))


@cache
def notebooks() -> dict[str, Path]:
    """The workbook's own notebooks and case studies, by their names without the ending."""
    folder = CHECKOUT / "notebooks"
    paths = [*folder.glob("*.ipynb"), *folder.glob("cases/*.ipynb")]
    return {path.stem: path for path in paths}


@cache
def own_names() -> frozenset[str]:
    """The names of the workbook's own presets and of the boxes that it carries."""
    presets = (path.stem for path in (CHECKOUT / "env" / "presets").glob("*.env"))
    return frozenset(["live", *recorded_names(), *presets])


def notebook(path: str) -> str:
    """The name of a notebook of the workbook, without the ending; empty for any other path."""
    stem = Path(path).stem
    return if_known(stem, stem in notebooks())


def box(name: str) -> str:
    """The name of a box that the workbook carries, or ``live``; empty for any other name."""
    return if_known(name, name in own_names())


def signal_name(name: str) -> str:
    """A name such as SIGKILL; empty for a text that is no signal."""
    return if_known(name, name in signal.Signals.__members__)


def parameter(value: object) -> str:
    """The value of a notebook's parameter as text: a number, a switch, a size, an address, a name
    of the workbook's own, or a list of these; empty for any other value.
    """
    if value is None or isinstance(value, bool) or is_number(value):
        return str(value)
    # A list in a list is not looked into, so that a deep one ends.
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        values = [parameter(item) for item in value]
        if all(values):
            return f"[{', '.join(values)}]"
    if not isinstance(value, str):
        return ""
    has_form = SIZE.fullmatch(value) or PCI_ADDRESS.fullmatch(value)
    return if_known(value, has_form or value in own_names())


def batch_name(folder: str) -> str:
    """The name of a batch: the time at which it was started, without the name of its plan."""
    time = start(BATCH_TIME, folder)
    if not time:
        return "batch"
    return time
