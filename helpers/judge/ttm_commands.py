"""What a person would run to set the TTM limit on each boot system, how to undo it, how to verify it. Printed, never run.

Every block may be run again without harm. Setting pages_limit alone is enough; the blocks also take away what earlier attempts
left: amdgpu.gttsize (deprecated, moves only graphics' GTT), amdgpu.vm_size (GiB of address space) and page_pool_size (a cache).
Our modprobe.d file is named so that it is read last; the kernel command line still wins over it (modprobe.d(5)).

The blocks are data: ttm.json. A row of a block is a line, or the name of a list and the lines that stand there once for each of
its items, ``{one}``; once where "any" stands before the list's name, and with "no" where the list is empty. A line that begins
with @ is one of ``parts``. ``{names!q}`` is quoted for a shell, ``{names: --add=}`` puts those words before each name.
"""

from __future__ import annotations

import re
import shlex
import string
from typing import Any

from helpers.judge import table
from helpers.look import ttm
from helpers.look.bundle import Bundle
from helpers.look.reading import GIB
from helpers.shapes import TtmCommand, TtmPlan

CONF = "/etc/modprobe.d/zz-ttm-limit.conf"
TTM_MODULES = ("ttm", "amdttm", "amd_ttm")
SYSTEMS: dict[str, dict[str, Any]] = table("ttm")["systems"]


def stale_settings(bundle: Bundle) -> list[tuple[str, str, str, str]]:
    """(name, value, where, why) of each setting that earlier advice leaves behind and that does not raise the pool."""
    stale = table("ttm")["stale"]
    return [
        (f"{s.module}.{s.name}", s.value, f"{s.source}:{s.line}", stale[s.name])
        for s in sum(ttm.settings(bundle), ())
        if s.name in stale and (s.name == "page_pool_size" or s.module == "amdgpu")
    ]


def change(bundle: Bundle, plan: TtmPlan, page_bytes: int) -> dict[str, Any]:
    """What the blocks can speak of, by the names that ttm.json has for it; empty where nothing needs doing.

    ``arguments`` of the kernel command line are to be there and ``before`` are there; ``old`` are only before, ``new`` only
    after. ``drop`` are the names that go, ``files`` the modprobe.d files with stale settings, ``lines`` those of our own.
    """
    configured, cmdline = ttm.settings(bundle)
    used = ttm.ttm_module(bundle)
    # Ubuntu's OEM kernels and DKMS have both modules: then both get the value, and only the one in use reads it.
    modules = [m for m in TTM_MODULES if m == used.value or _folder(bundle, m)] or ["ttm"]
    pages = plan.pages_limit if plan.action == "set" else None
    gone = {name for name, _, _, _ in stale_settings(bundle)}
    if plan.action != "leave":
        limits = [s for s in configured + cmdline if s.name == "pages_limit"]
        gone |= {f"{s.module}.{s.name}" for s in limits}
    if pages is None and not gone:
        return {}
    touched = {s.source for s in configured if f"{s.module}.{s.name}" in gone}
    files = [shlex.quote(f) for f in sorted(touched - {CONF}) if f.startswith("/etc/")]
    arguments = [f"{module}.pages_limit={pages}" for module in modules if pages]
    drop = sorted(gone | {argument.partition("=")[0] for argument in arguments})
    held = [f"{s.module}.{s.name}={s.value}" for s in cmdline if f"{s.module}.{s.name}" in drop]
    before = list(dict.fromkeys(held))
    old = [words for words in before if words not in arguments]
    resets = pages is None and any(name.endswith(".pages_limit") for name in drop)
    whole = (pages or 0) * page_bytes % GIB == 0
    return {
        "pages": pages,
        "gib": (pages or 0) * page_bytes // GIB,
        "rounded": "" if whole else ", so this is a little less",
        "module": str(used.value or "ttm"),
        "conf": CONF,
        "arguments": arguments,
        "before": before,
        "old": old,
        "new": [words for words in arguments if words not in before],
        "drop": drop,
        "files": files,
        "lines": "\n".join(f"options {module} pages_limit={pages}" for module in modules),
        "strings": " ".join(f'"{argument}"' for argument in arguments),
        "names": "|".join(sorted({name.partition(".")[2] for name in drop})),
        "patterns": "|".join(name.replace(".", r"\.") for name in drop),
        "left": old + files,
        "kernel argument": before + arguments,
        "reset": [""] if resets else [],
    }


def commands(
    bundle: Bundle, plan: TtmPlan, page_bytes: int, every: bool = False
) -> list[TtmCommand]:
    """The blocks for this box's boot system first, then AMD's own tools; ``every`` gives all systems.

    Empty where nothing needs doing. An unknown distribution gets every block.
    """
    given = change(bundle, plan, page_bytes)
    names = list(SYSTEMS) if every else systems(bundle)
    if given and not every and is_built_in(bundle, given["module"]):
        names = [name for name in names if not name.startswith(("modprobe.d", "amd-"))]
    found = []
    for name in names if given else ():
        kind = {**table("ttm")["kinds"].get(SYSTEMS[name].get("like"), {}), **SYSTEMS[name]}
        words = {**given, "path": [kind.get("path")], "rebuild": kind.get("rebuild")}
        rows = (kind["run"], kind["undo"], table("ttm")["check"])
        found.append(TtmCommand(name, *("\n".join(_lines(part, words)) for part in rows)))
    return [block for block in found if block.run]


def _folder(bundle: Bundle, module: str) -> bool:
    return bool(bundle.sources(f"/sys/module/{module}/parameters/*"))


def is_built_in(bundle: Bundle, module: str) -> bool:
    """Whether the kernel was built with the module: then modprobe.d is not read, only the kernel command line."""
    loaded = ttm.parse_modules(bundle.read("/proc/modules").text)
    return bool(loaded) and module not in loaded and _folder(bundle, module)


def systems(bundle: Bundle) -> list[str]:
    """Names of the blocks that fit the distribution, the one to prefer first, by os-release and the kernel command line."""
    text = bundle.read("/etc/os-release").text
    fields = dict(re.findall(r"(?m)^(\w{1,40})=\"?([^\"\n]{0,200})\"?$", text))
    ids = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    if "OSTREE_VERSION" in fields or re.search(r"(^|\s)ostree=", bundle.read("/proc/cmdline").text):
        ids.add("ostree")
    rows = (row["systems"] for row in table("ttm")["distributions"] if ids & set(row["ids"]))
    return next(rows, list(SYSTEMS))


class _Shell(string.Formatter):
    """Fills lines in: lists with blanks between, ``!q`` quoted for a shell, or each item behind the words of its format."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion != "q":
            return value
        return shlex.quote(value if isinstance(value, str) else " ".join(value))

    def format_field(self, value: Any, spec: str) -> str:
        if not isinstance(value, list):
            return str(value)
        return "".join(spec + shlex.quote(one) for one in value) if spec else " ".join(value)


def _items(name: str, given: dict[str, Any]) -> list[str]:
    """What the lines of a row stand there for: each item of its list, or once where the list has any or no item."""
    how, _, rest = name.partition(" ")
    if how not in ("any", "no"):
        return list(given[name])
    return [""] if bool(given[rest]) is (how == "any") else []


def _lines(rows: list[Any], given: dict[str, Any]) -> list[str]:
    """The lines of a block, its lists unrolled and its names filled in."""
    found, parts = [], table("ttm")["parts"]
    for row in rows:
        items, lines = ([""], [row]) if isinstance(row, str) else (_items(row[0], given), row[1:])
        for one in items:
            words = {**given, "one": one}
            found += [_Shell().vformat(parts.get(line, line), (), words) for line in lines]
    return found
