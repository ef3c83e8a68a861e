"""What of a record may leave the box: numbers, words of a list, names of a pattern.

Nothing here looks for what is secret. A function lets through what it knows and answers with an
empty text for everything else, so a text that nobody foresaw stays at home.
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
MOST_SOURCES = 4
CHIP_WORD = (
    r"(?:AMD|NVIDIA|Intel|Apple|Ampere|Ryzen|EPYC|Threadripper|Xeon|Core|Ultra|Altra|Neoverse|Radeon"
    r"|Instinct|GeForce|Quadro|Tesla|Arc|Platinum|Gold|Silver|Bronze|Celeron|Pentium|Graphics|Processor"
    r"|CPU|GPU|GB|MI|RTX|GTX|RX|PRO|XTX?|Ti|SUPER|AI|MAX|Laptop|Mobile|Gen|with|w|R|TM|@|Q|MIG|TITAN|VII"
    r"|Ada|Generation|Blackwell|Workstation|Server|Edition|SXM\d?|PCIe|NVL|HBM\d\w?|OAM|GRE|Cores"
    r"|\d\.\d\dGHz|\dg\.\d{1,3}gb|\d\dth|i[3579]|[A-Z]{0,2}(?:1[0-4])?\d{1,3}[A-Z]{0,3}\d?"
    r"|[A-Z]{0,2}[1-9]\d{3}(?:X3D|[A-Z]{0,3}\d?))\+?"
)
CHIP = re.compile(
    r"(?!.*\d{3} \d{3}|(?:\D*\d){13})(?:\d\dth Gen )?(?:AMD|NVIDIA|Intel|Apple|Ampere|Neoverse|Radeon|GeForce|Quadro|Tesla|RTX)\b"
    rf"(?:(?: |-| ?\(|\)|\) |(?<=[A-Za-z])/ ?){CHIP_WORD}){{0,9}}\)?",
    re.IGNORECASE,
)
DISTRIBUTION = re.compile(
    r"(?:Ubuntu|Debian GNU/Linux|Fedora Linux|Arch Linux|AlmaLinux|Rocky Linux|CentOS Stream"
    r"|Red Hat Enterprise Linux|openSUSE (?:Leap|Tumbleweed|MicroOS)|SUSE Linux Enterprise Server"
    r"|Linux Mint|Pop!_OS|NixOS|CachyOS|EndeavourOS|Garuda Linux|Manjaro Linux|Kali GNU/Linux"
    r"|Gentoo|Amazon Linux|SteamOS|Bazzite|Pardus GNU/Linux)\b(?: \d\d?(?:\.\d\d?){0,2}(?![.\d]))?"
)
VERSION = re.compile(
    r"(?!\d\d\.\d\d\.\d\d\b)(?:0|[1-9]\d{0,2})\.\d{1,3}(?:\.(?:\d{1,3}|\d{5}))?(?!\d)(?:\.\d{1,3}(?=-microsoft)|(?!\.\d))"
    r"(?:(?:a|b|rc)\d{1,3}|\.dev20\d\d[01]\d[0-3]\d)?(?!\d)"
    r"(?:\+(?:rocm\d\d?(?:\.\d\d?){1,2}|cu\d{2,3}|cpu|deb\d\d|(?:git)?…)(?!\d))?(?:\.nv\d\d\.\d\d\b)?"
    r"(?:-\d{1,5}(?:\.\d{1,3}){0,3}(?!\w|\.\d))?"
    r"(?:\.(?:el\d\d?(?:_\d\d?)?|fc\d\d|amzn20\d\d)(?:\.(?:x86_64|aarch64))?\b)?"
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
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
BATCH_TIME = re.compile(r"\d{8}T\d{6}Z")
PARAMETER_NAMES = frozenset(f"{row.module}.{row.name}" for row in PARAMETERS)
BARE_NAMES = frozenset(row.name for row in PARAMETERS)
SETTING_NAMES = PARAMETER_NAMES.union(VARIABLES, CONF_NAMES)
KERNEL_WORD = re.compile(
    rf"(?:{'|'.join(map(re.escape, PARAMETER_NAMES))})=(-?\d{{1,12}})"
)
IOMMU = frozenset(
    {"iommu=pt", "iommu=on", "iommu=off", "amd_iommu=on", "amd_iommu=off"}
)
SWITCH = r"True|False|native|cudaMallocAsync|\d{1,6}(?:\.\d{1,4})?|\[(?![^\]]*\d{6})[\d:,>]{1,80}\]"
ALLOCATOR_WORD = re.compile(
    rf"(?:(?<=,)|^)((?:{'|'.join(OPTIONS)}):(?:{SWITCH}))(?=,|$)"
)
VALUE = re.compile(
    r"-?\d{1,4}|True|False|native|cudaMallocAsync|default|\d{1,2}(?:,\d{1,2})*"
    rf"|\d{{1,3}}\.\d{{1,3}}|\d{{1,2}}\.\d\.\d{{1,2}}|{GFX.pattern}(?:[;,]{GFX.pattern})*"
)
KERNEL_FILE = re.compile(
    r"/proc/(?:meminfo|cpuinfo|modules|swaps|version|driver/nvidia/version)"
    r"|/sys/class/drm/card\d{1,3}/device/mem_info_(?:vram|vis_vram|gtt|preempt)_(?:total|used)"
    r"|/sys/class/kfd/kfd/topology/nodes/\d{1,3}/(?:properties|mem_banks/\d{1,2}/properties)"
    r"|/opt/rocm(?:-\d{1,2}(?:\.\d{1,2}){1,2})?/\.info/version(?:-dev)?|/sys/module/amdgpu/version"
    r"|/sys/fs/cgroup/memory\.(?:max|high|current|peak)"
    rf"|/sys/module/(?:{'|'.join(f'{row.module}/parameters/{row.name}' for row in PARAMETERS)})"
)
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
"""What a source is called whose own name is not known, by how it begins."""
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
"""What the texts of a class of columns, or of a field, are from start to end."""
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
"""Names of readings in words that are not ours elsewhere."""
GROUPS = frozenset(
    "root video render audio input kvm docker vboxsf users sudo wheel adm disk tty nogroup".split()
)
"""Groups that distributions and their packages make; any other is a name of its box's owner."""


def chip(name: str) -> str:
    """The name of a processor or a card, where each word of it is one that chips have."""
    name = " ".join(name.split())
    return if_known(name, CHIP.fullmatch(name))


def if_known(text: str, is_known: object) -> str:
    """The text where it is known, else nothing. No known name has signs beyond ASCII."""
    if is_known and text.isascii():
        return text
    return ""


def typed(kind: str, text: str) -> str:
    """The text where it is one of its kind, of GRAMMARS."""
    return if_known(text, re.fullmatch(GRAMMARS[kind], text))


def start(pattern: re.Pattern[str], text: str) -> str:
    """What a text begins with, where that fits the pattern."""
    match = pattern.match(text)
    if match is None:
        return ""
    return match[0]


def version(text: str) -> str:
    """The digits that a release begins with, with torch's mark of its build."""
    return start(VERSION, COMMIT.sub("…", text))


def distribution(text: str) -> str:
    """The name of a well-known Linux distribution with its number."""
    return start(DISTRIBUTION, text)


def kernel_parameters(command_line: str) -> str:
    """The parameters of a kernel command line that concern a GPU's memory, with their numbers."""
    words = []
    for word in command_line.split():
        match = KERNEL_WORD.fullmatch(word)
        if word in IOMMU or (match and is_switch_or_size(match[1])):
            words.append(word)
    return " ".join(words)


def is_switch_or_size(digits: str) -> bool:
    """Whether a setting can have the number: a small one, or a size in pages of 256 to a MiB."""
    return len(digits) < 6 or int(digits) % 256 == 0


def allocator_settings(value: str) -> str:
    """The settings of torch's allocator with their numbers and switches."""
    return ",".join(ALLOCATOR_WORD.findall(value))


def setting_value(value: str) -> str:
    """The value of a setting: a number, a switch, or the allocator's text."""
    is_size = re.fullmatch(r"\d{6,12}", value) and is_switch_or_size(value)
    return if_known(value, is_size or VALUE.fullmatch(value)) or allocator_settings(
        value
    )


def source(text: str) -> str:
    """Where a number was read: files that the kernel names, tools without their arguments."""
    parts = re.split(r"; | [-+] ", text.removesuffix(" less the processes above"))
    named = [_one_source(part) for part in parts[:MOST_SOURCES]]
    return "; ".join(dict.fromkeys(filter(None, named)))


def _one_source(text: str) -> str:
    if text in OUR_SOURCES or KERNEL_FILE.fullmatch(text):
        return text
    program = text.partition(" ")[0]
    return if_known(program, program in TOOLS)


def source_or_kind(text: str) -> str:
    """Where a number was read, else of what kind that place is."""
    if text in KINDS_OF_SOURCE.values():
        return text
    kind = next(
        (kind for begins, kind in KINDS_OF_SOURCE.items() if text.startswith(begins)),
        "",
    )
    return source(text) or kind


def is_number(value: object) -> bool:
    """Whether it is a number that a box can have."""
    is_plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_plain and abs(value) < LARGEST  # type: ignore[arg-type]


def number(reading: Reading) -> str:
    """A reading that is a number, with its unit; empty where it is a text or was not read."""
    return if_known(reading.show(), is_number(reading.value))


@cache
def notebooks() -> dict[str, Path]:
    """The workbook's own notebooks and told cases, by their names without the ending."""
    folder = CHECKOUT / "notebooks"
    return {
        path.stem: path
        for path in [*folder.glob("*.ipynb"), *folder.glob("cases/*.ipynb")]
    }


@cache
def own_names() -> frozenset[str]:
    """The names of the workbook's own presets and of the boxes that it carries."""
    presets = (path.stem for path in (CHECKOUT / "env" / "presets").glob("*.env"))
    return frozenset(["live", *recorded_names(), *presets])


def notebook(path: str) -> str:
    """The name of a notebook, where it is one of the workbook's own."""
    stem = Path(path).stem
    return if_known(stem, stem in notebooks())


def box(name: str) -> str:
    """The name of a box: ``live``, or one that the workbook itself carries."""
    return if_known(name, name in own_names())


def signal_name(name: str) -> str:
    """The name of a signal."""
    return if_known(name, name in signal.Signals.__members__)


def parameter(value: object) -> str:
    """The value of a parameter: a number, a switch, a size, or a name of the workbook's own."""
    if value is None or isinstance(value, bool) or is_number(value):
        return str(value)
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
    return start(BATCH_TIME, folder) or "batch"
