"""What of a record may leave the box: numbers, words of a list, names of a pattern.

Nothing here looks for what is secret. A function lets through what it knows and answers with an
empty text for everything else, so a text that nobody foresaw stays at home.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from helpers.ground.child import CHECKOUT
from helpers.ground.shapes import NOT_AVAILABLE, Reading
from helpers.look.boxes import recorded_names
from helpers.settings.table import CONF_NAMES, OPTIONS, PARAMETERS, VARIABLES
from helpers.tell.tables import NOBODY
from helpers.tell.values import Rule

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
FILE_LINE = re.compile(r"(.+):(\d{1,7})")
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
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
NATIVE = re.compile(r"-?\d{1,20}(?:\.\d{1,9})?(?: (?:pages|bytes|MiB|GiB|of the total))?")
HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
FORMS = {
    "pci": "host|" + PCI_ADDRESS.pattern,
    "driver": "amdgpu|nvidia|nouveau|radeon|i915|xe",
    "state": "[RSDZTtXI]",
    "index": r"(?:card|renderD)?\d{1,9}|gfx[0-9a-f]{3,4}",
    "native": NATIVE.pattern,
    "ends": r"passes|operation [\d,]{1,20}",
    "size": r"\d{1,9}(?:\.\d{1,2})? [KMGT]?i?B(?: to \d{1,9}(?:\.\d{1,2})? [KMGT]?i?B)?",
}
"""The form of each class of cell that has one."""
NOT_READ = "no value was read"
NOT_SHOWN = "it is not shown on this page"
SIZE = re.compile(r"\d+(?:\.\d+)? ?[KMGT]i?B")
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


def is_number(value: object) -> bool:
    """Whether it is a number that a box can have."""
    is_plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_plain and abs(value) < LARGEST  # type: ignore[arg-type]


def number(reading: Reading) -> str:
    """A reading that is a number, with its unit; empty where it is a text or was not read."""
    if is_number(reading.value):
        return reading.show()
    return ""


def reading(of_box: Reading) -> Reading:
    """A reading with its number and the public part of its source; what it says is left out."""
    where = source(of_box.source)
    if is_number(of_box.value):
        return replace(of_box, source=where, item="")
    if of_box.ok:
        return Reading(None, of_box.unit, NOT_AVAILABLE, NOT_SHOWN, where, "")
    return Reading(None, of_box.unit, of_box.status, NOT_READ, where, "")


class Names:
    """What stands for the names of a page: ``process-1``, ``your file 1``, each its own number."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[object, int]] = {}
        self._given = {NOBODY}

    def of(self, kind: str, name: object, between: str = "-") -> str:
        """The number of a name among those of its kind; nothing for no name."""
        if name is None or name == "":
            return ""
        if name in self._given:
            return str(name)
        numbers = self._numbers.setdefault(kind, {})
        given = f"{kind}{between}{numbers.setdefault(name, len(numbers) + 1)}"
        self._given.add(given)
        return given

    def line(self, place: str) -> str:
        """A line of a program: ``your file 1, line 82``."""
        match = FILE_LINE.fullmatch(place)
        if match is None:
            return ""
        return f"{self.of('your file', match[1], ' ')}, line {match[2]}"


def rules(names: Names) -> Mapping[str, Rule]:
    """What each class of column lets through; ``word`` is for words of the code alone."""
    return {
        **{name: partial(fitting, form) for name, form in FORMS.items()},
        "word": str,
        "holder": str,
        "number": _number_cell,
        "chip": partial(_text_cell, chip),
        "version": partial(_text_cell, version),
        "source": partial(_text_cell, source),
        "setting": setting,
        "value": setting_value,
        "process": partial(names.of, "process"),
        "line": names.line,
    }


def fitting(form: str, value: object) -> str:
    """A text that has a form from its beginning to its end."""
    text = str(value)
    if re.fullmatch(form, text) is None:
        return ""
    return text


def _number_cell(value: object) -> object:
    if isinstance(value, Reading):
        return reading(value)
    if is_number(value):
        return value
    return ""


def _text_cell(rule: Callable[[str], str], cell: object) -> str:
    """What a rule lets through of a cell, which may be a reading."""
    if isinstance(cell, Reading):
        cell = cell.value
    return rule(str(cell or ""))


def setting(name: str) -> str:
    """The name of a setting that the tables know."""
    if name in VARIABLES or name in CONF_NAMES or name in PARAMETER_NAMES:
        return name
    return ""


def setting_value(value: str) -> str:
    """The value of a setting: a number, a switch, or the allocator's text."""
    if NATIVE.fullmatch(value) or value in SWITCHES or value == "default":
        return value
    return allocator_settings(value)


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
    if name == "live" or name in _recorded():
        return name
    return ""


@cache
def _recorded() -> frozenset[str]:
    """The recorded boxes, looked up once for all runs of a batch."""
    return frozenset(recorded_names())


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
    if is_number(value):
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
