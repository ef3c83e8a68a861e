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
from helpers.settings.table import OPTIONS, PARAMETERS

LARGEST = 1 << 60
MOST_SOURCES = 4
CHIP_WORDS = re.compile(
    r"AMD|NVIDIA|Intel|Ryzen|EPYC|Threadripper|Xeon|Core|Radeon|Instinct|GeForce|Quadro|Tesla"
    r"|Platinum|Gold|Silver|Graphics|Processor|CPU|GPU|GB|MI|RTX|GTX|RX|PRO|XTX?|Ti|SUPER|AI|MAX|Laptop"
    r"|SXM\d?|PCIe|NVL|HBM\d\w?|OAM|w|R|TM",
    re.IGNORECASE,
)
CHIP_NUMBER = re.compile(r"[A-Z]{0,2}\d{1,5}[A-Z]{0,3}\d?", re.IGNORECASE)
DISTRIBUTION = re.compile(
    r"(?:Ubuntu|Debian GNU/Linux|Fedora Linux|Arch Linux|AlmaLinux|Rocky Linux|CentOS Stream"
    r"|Red Hat Enterprise Linux|openSUSE Leap|openSUSE Tumbleweed)(?: \d+(?:\.\d+)*)?"
)
VERSION = re.compile(
    r"\d+(?:\.\d+)+(?:-\d+)?(?:(?:a|b|rc|\.dev)\d+)?(?:\+(?:rocm|cu)\d+(?:\.\d+)*|\+cpu)?"
)
PARAMETER_NAMES = frozenset(f"{row.module}.{row.name}" for row in PARAMETERS)
IOMMU = frozenset({"iommu=pt", "iommu=on", "iommu=off", "amd_iommu=on", "amd_iommu=off"})
SWITCHES = frozenset({"True", "False", "native", "cudaMallocAsync"})
WHOLE_NUMBER = re.compile(r"-?\d{1,18}")
NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?")
KERNEL_FILE = re.compile(
    r"/proc/(?:meminfo|cpuinfo|modules|swaps|version|driver/nvidia/version)"
    r"|/sys/class/drm/card\d+/device/mem_info_(?:vram|vis_vram|gtt|preempt)_(?:total|used)"
    r"|/sys/class/kfd/kfd/topology/nodes/\d+/(?:properties|mem_banks/\d+/properties)"
    r"|/sys/fs/cgroup/memory\.(?:max|high|current|peak)"
)
MODULE_FILE = re.compile(r"/sys/module/([a-z_]+)/parameters/([a-z0-9_]+)")
TOOLS = ("rocminfo", "rocm-smi", "amd-smi", "amd-ttm", "nvidia-smi", "torch")
OUR_SOURCES = ("error text", "the numbers of the error text", "the layers' totals", "snapshot")
SIZE = re.compile(r"\d+(?:\.\d+)? ?[KMGT]i?B")
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
BATCH_TIME = re.compile(r"\d{8}T\d{6}Z")


def chip(name: str) -> str:
    """The name of a processor or a card, where each word of it is one that chips have."""
    words = re.findall(r"[^\s/()+-]+", name)
    for word in words:
        if not CHIP_WORDS.fullmatch(word) and not CHIP_NUMBER.fullmatch(word):
            return ""
    return " ".join(name.split())


def version(text: str) -> str:
    """The digits that a release begins with, with torch's mark of its build."""
    return _start(VERSION, text)


def distribution(text: str) -> str:
    """The name of a well-known Linux distribution with its number."""
    return _start(DISTRIBUTION, text)


def _start(pattern: re.Pattern[str], text: str) -> str:
    """What a text begins with, where that fits the pattern."""
    match = pattern.match(text)
    if match is None:
        return ""
    return match[0]


def kernel_parameters(command_line: str) -> str:
    """The parameters of a kernel command line that concern a GPU's memory, with their numbers."""
    return " ".join(word for word in command_line.split() if _is_kernel_parameter(word))


def _is_kernel_parameter(word: str) -> bool:
    if word in IOMMU:
        return True
    name, _, value = word.partition("=")
    return name in PARAMETER_NAMES and WHOLE_NUMBER.fullmatch(value) is not None


def allocator_settings(value: str) -> str:
    """The settings of torch's allocator with their numbers and switches."""
    return ",".join(part for part in value.split(",") if _is_allocator_setting(part))


def _is_allocator_setting(part: str) -> bool:
    name, _, value = part.partition(":")
    if name not in OPTIONS:
        return False
    return value in SWITCHES or NUMBER.fullmatch(value) is not None


def source(text: str) -> str:
    """Where a number was read: files that the kernel names, tools without their arguments."""
    parts = re.split(r"; | [-+] ", text.removesuffix(" less the processes above"))
    named = [_one_source(part) for part in parts[:MOST_SOURCES]]
    return "; ".join(dict.fromkeys(filter(None, named)))


def _one_source(text: str) -> str:
    if text in OUR_SOURCES or KERNEL_FILE.fullmatch(text):
        return text
    module_file = MODULE_FILE.fullmatch(text)
    if module_file and ".".join(module_file.groups()) in PARAMETER_NAMES:
        return text
    program = text.partition(" ")[0]
    if program in TOOLS:
        return program
    return ""


def number(reading: Reading) -> str:
    """A reading that is a number, with its unit; empty where it is a text or was not read."""
    value = reading.value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    if abs(value) >= LARGEST:
        return ""
    return reading.show()


@cache
def notebooks() -> dict[str, Path]:
    """The workbook's own notebooks and told cases, by their names without the ending."""
    folder = CHECKOUT / "notebooks"
    return {path.stem: path for path in [*folder.glob("*.ipynb"), *folder.glob("cases/*.ipynb")]}


@cache
def presets() -> frozenset[str]:
    """The names of the workbook's own presets."""
    return frozenset(path.stem for path in (CHECKOUT / "env" / "presets").glob("*.env"))


def notebook(path: str) -> str:
    """The name of a notebook, where it is one of the workbook's own."""
    stem = Path(path).stem
    if stem in notebooks():
        return stem
    return ""


def box(name: str) -> str:
    """The name of a box: ``live``, or one that the workbook itself carries."""
    if name == "live" or name in recorded_names():
        return name
    return ""


def is_gfx(name: str) -> bool:
    """Whether it is the name of an instruction set of AMD GPUs, such as gfx1100."""
    return re.fullmatch("gfx[0-9a-f]{3,4}", name) is not None


def signal_name(name: str) -> str:
    """The name of a signal."""
    if name in signal.Signals.__members__:
        return name
    return ""


def parameter(value: object) -> str:
    """The value of a parameter: a number, a switch, a size, or a name of the workbook's own."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, (int, float)) and abs(value) < LARGEST:
        return str(value)
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        values = [parameter(item) for item in value]
        if all(values):
            return f"[{', '.join(values)}]"
    if isinstance(value, str) and _is_known_parameter_text(value):
        return value
    return ""


def _is_known_parameter_text(text: str) -> bool:
    if text in presets() or box(text):
        return True
    return bool(SIZE.fullmatch(text) or PCI_ADDRESS.fullmatch(text))


def batch_name(folder: str) -> str:
    """The name of a batch: the time at which it was started, without the name of its plan."""
    started = _start(BATCH_TIME, folder)
    if started:
        return started
    return "batch"
