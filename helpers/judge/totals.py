"""The sizes that different layers and tools state, read out of posted text, and what they say of each other as signals.

Units follow the tools: sysfs and rocm-smi bytes, rocminfo KB = KiB, gttsize MiB, pages of 4 KiB, GB in these prints = GiB.
Comparisons allow for printed digits and for that reading of GB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers.look import nvidia_smi, rocm, rocminfo
from helpers.look.bundle import Text
from helpers.look.reading import Reading, seen, show_bytes

from .signals import GIB, MIB, CaseEvidence, Signal, texts

_POWERS = {"k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = r"(?P<n>\d[\d,]{0,20}(?:\.\d{1,6})?) ?(?P<u>[KMGT]i?B?|bytes|B)?\b"
_MOST = 8
INTEGRATED = re.compile(r"gfx(?:115\d|1103|1103|1035|1036|1033|90c|902)|\b(?:8[04]\d0S|[678][0-9]0M|Radeon (?:\d{3}M|"
    r"Graphics))\b|Strix|Phoenix|"
                        r"Hawk Point|Ryzen (?:AI|7|9|5)|\biGPU\b|\bAPU\b|is_integrated: ?(?:1|True)|type=iGPU|MI300A|GB10\b|"
                        r"DGX Spark|Jetson|Orin\b|"
                        r"integrated (?:gpu|graphics)", re.IGNORECASE)


@dataclass(frozen=True)
class Total:
    """A size that one layer or tool states."""

    kind: str
    bytes: int
    reading: Reading
    origin: str


def _pattern(kind: str, before: str, unit: str = "", after: str = "") -> tuple[str, re.Pattern[str], str]:
    return kind, re.compile(before + _SIZE + after, re.IGNORECASE), unit


PATTERNS = (
    _pattern("ram", r"(?:MemTotal|host RAM|ram_gib|system RAM|total RAM|\bMem:)\D{0,16}?", "G"),
    _pattern("vram_total", r"mem_info_vram_total\D{0,20}?"),
    _pattern("vram_total", r"\] ?:? {0,6}VRAM +Total Memory \(B\)\D{0,6}?"),
    _pattern("vram_total", r"", "M", r" of VRAM memory ready"),
    _pattern("vram_total", r"amdgpu: VRAM: ", "M"),
    _pattern("vram_total", r"(?:UMA[^\n]{0,20}frame ?buffer[^\n]{0,12}?|carve-?out[^\n]{0,16}?)", "G"),
    _pattern("vram_used", r"mem_info_vram_used\D{0,20}?"),
    _pattern("gtt_total", r"mem_info_gtt_total\D{0,20}?"),
    _pattern("gtt_total", r"\bGTT +Total Memory \(B\)\D{0,6}?"),
    _pattern("gtt_total", r"", "M", r" of GTT memory ready"),
    _pattern("gtt_total", r"GTT size has been set as "),
    _pattern("ttm", r"TTM size has been set as "),
    _pattern("ttm", r"/sys/module/(?:amd)?ttm/parameters/pages_limit\D{0,12}?", "pages"),
    _pattern("ttm_wanted", r"\b(?:amd)?ttm[. ]pages_limit=", "pages"),
    _pattern("gtt_wanted", r"amdgpu[. ]gttsize=", "M"),
    _pattern("runtime_total", r"(?:total_memory|totalGlobalMem|total_mem|mem_get_info total|hipMemGetInfo total|Total "
             r"VRAM)[:= ]{1,4}"),
    _pattern("runtime_total", r"\bVRAM: (?=[\d.]{1,12} [MG]iB)"),
    _pattern("runtime_total", r"\btotal=\"?"),
    _pattern("runtime_total", r"(?:hip|torch|cuda|runtime|program|build)[^\n]{0,60}?(?:shows?|reports?|sees|total|"
             r"build:?)[: ]{1,3}"),
    _pattern("runtime_total", r"\bROCm\d[^\n]{0,60}?\(", "", r", \d+ MiB free"),
    _pattern("runtime_free", r"(?:mem_get_info free|hipMemGetInfo free)[:= ]{1,4}"),
    _pattern("runtime_free", r"\bavailable=\"?\[?"),
    _pattern("runtime_free", r"Free memory on device \S{1,12} \(", "G", r"/"),
    _pattern("other_free", r"", "", r" free"),
    _pattern("required", r"required\.(?:allocations|full|partial)=\"?\[?"),
)
_USED_OF = re.compile(r"\b(\d{1,7}) ?(?:MiB|MB|M)? ?/ ?(\d{3,7}) ?(?:MiB|MB|M)\b")
_TABLE_ROW = re.compile(r"(?:^|\|) {1,8}(\d{1,3}) +(?:\S+ +\S+ +)?(\d{1,9}) +(?:C|G|C\+G|M\+C) +(\S[^|\n]{0,80}?) +(\d{1,8}) "
    r"?MiB", re.MULTILINE)
_GPUSTAT = re.compile(r"\b([A-Za-z_][\w.-]{0,31})(?::\w{1,32}(?:/\d+)?)?\((\d{2,7})M\)")


def _amount(number: str, unit: str) -> int:
    value = float(number.replace(",", ""))
    if unit == "pages":
        return int(value * 4096)
    return int(value * (1 << _POWERS.get(unit[:1].lower(), 0)))


def totals(evidence: CaseEvidence) -> tuple[Total, ...]:
    """Every size that the posted texts state with a word that says what it is; of the narrative too, with that origin."""
    found: list[Total] = []
    for origin, source, text in texts(evidence):
        if origin == "message" and len(text) > 20_000:
            continue
        for kind, pattern, unit in PATTERNS:
            for number, match in enumerate(pattern.finditer(text[:40_000])):
                if number == _MOST:
                    break
                if kind == "other_free" and "runtime_free" in {t.kind for t in found if t.reading.source == source}:
                    continue
                size = _amount(match["n"], match["u"] or unit)
                if size >= 64 * MIB:
                    found.append(Total(kind, size, seen(size, "bytes", source), origin))
        if origin == "tool" and "Pool" in text and "Agent" in text:
            for agent in rocminfo.parse_agents(Text(text, "ok", "", source, "")):
                if agent.kind == "gpu" and agent.memory.ok:
                    found.append(Total("hsa", int(agent.memory.value or 0), agent.memory, origin))
    for m in evidence.messages:
        if m.capacity and m.kind in ("oom", "hip_oom_plain"):
            found.append(Total("runtime_total", m.capacity.bytes, seen(m.capacity.bytes, "bytes", "error text"), "message"))
    return tuple(found)


def near(left: int, right: int, share: float = 0.02) -> bool:
    return abs(left - right) <= share * max(left, right)


def integrated(evidence: CaseEvidence) -> bool:
    """Whether the words name an integrated GPU."""
    return any(origin in ("tool", "environment") and INTEGRATED.search(text) for origin, _, text in texts(evidence))


def total_signals(evidence: CaseEvidence) -> list[Signal]:
    """What the stated sizes say of each other."""
    found: list[Signal] = []
    sizes = totals(evidence)

    def of(kind: str) -> list[Total]:
        return [t for t in sizes if t.kind == kind]

    def add(name: str, total: Total, says: str) -> None:
        if all((name, total.origin) != (s.name, s.origin) for s in found):
            found.append(Signal(name, total.reading, says, total.origin))

    apu = integrated(evidence)
    if apu:
        words = next((m.group(), source) for origin, source, text in texts(evidence) for m in [INTEGRATED.search(text)] if m)
        found.append(Signal("integrated", seen(words[0], "text", words[1]), "The GPU shares the RAM of the CPU", "environment"))
    runtime, ram = of("runtime_total"), max((t.bytes for t in of("ram")), default=0)
    hard = [t for t in runtime if t.origin != "narrative"]
    least = min(hard or runtime, key=lambda t: t.bytes, default=None)
    most = max(hard or runtime, key=lambda t: t.bytes, default=None)
    if least and most and most.bytes > least.bytes * 1.5:
        add("totals_differ", least, f"The same device is also given as {most.reading.show()}")
    for free in of("runtime_free"):
        beside = [t.bytes for t in runtime if t.reading.source == free.reading.source]
        if beside and free.bytes > max(beside) * 1.02 and free.origin != "narrative":
            add("free_exceeds_total", free, f"Free is above the total of {show_bytes(max(beside))}: they come from two layers")
    for gtt in of("gtt_total") + of("ttm"):
        if least and gtt.bytes > least.bytes * 1.3:
            add("pool_above_runtime", gtt, f"The driver's pool is above the {least.reading.show()} that a program sees")
    for wanted in of("ttm_wanted") + of("gtt_wanted"):
        if least and wanted.bytes > least.bytes * 1.3:
            add("wanted_above_total", wanted, f"Asked for on the command line; a program sees {least.reading.show()}")
    if apu and least and ram and 0.46 <= least.bytes / ram <= 0.515:
        add("half_of_ram", least, f"It is half of the RAM ({show_bytes(ram)}), the default of TTM")
    if apu and least and ram and (0.115 <= least.bytes / ram <= 0.126 or 0.235 <= least.bytes / ram <= 0.252):
        add("half_of_rest", least, f"It is half of what a carve-out of a half or three quarters leaves of {show_bytes(ram)}")
    carve = of("vram_total")
    if apu and least:
        for block in carve:
            if near(block.bytes, least.bytes) and (most and most.bytes > least.bytes * 1.5 or of("gtt_total")):
                add("total_is_carveout", least, "A program sees exactly the firmware's carve-out")
        small = least.bytes % (256 * MIB) == 0 and least.bytes <= (8 * GIB if ram > 4 * least.bytes else 2 * GIB)
        if small:
            add("total_is_carveout", least, "It has the size of a firmware carve-out, far below the RAM")
        exact = least.bytes % (512 * MIB) == 0 and least.bytes <= 16 * GIB
        if exact and most and most.bytes > least.bytes * 1.5:
            add("total_is_carveout", least, f"It has the size of a firmware carve-out; {most.reading.show()} was seen as well")
    for block in carve:
        for gtt in of("gtt_total"):
            for total in runtime:
                if near(block.bytes + gtt.bytes, total.bytes, 0.005) and block.bytes > 0.01 * gtt.bytes:
                    add("total_is_sum", total, "It is the carve-out and GTT added, which share the same RAM")
    if apu and ram and most and most.bytes > ram * 1.02 and most.origin != "narrative":
        add("total_is_sum", most, f"It is above the {show_bytes(ram)} of RAM that the machine has")
    _frees(of("runtime_free"), of("other_free"), add)
    for need in of("required"):
        for free in of("runtime_free"):
            if need.bytes < free.bytes and need.origin == free.origin == "tool":
                add("fits_by_own_figures", need, f"Required, and {free.reading.show()} was counted as available")
    return found + _rows(evidence)


def _frees(runtime: list[Total], others: list[Total], add) -> None:  # type: ignore[no-untyped-def]
    for left in runtime:
        for right in others:
            low, high = sorted((left.bytes, right.bytes))
            if left.reading.source != right.reading.source and high > 1.5 * low and high - low > 2 * GIB:
                add("frees_differ", left, f"Free by one account; {right.reading.source} says {right.reading.show()}")


def _rows(evidence: CaseEvidence) -> list[Signal]:
    """Signals of the tables that nvidia-smi, gpustat, amd-smi and rocm-smi print."""
    found: list[Signal] = []
    for origin, source, text in texts(evidence):
        if origin != "tool":
            continue
        rows = [(int(used), int(total)) for used, total in _USED_OF.findall(text[:60_000]) if int(total) >= int(used)]
        busy = [used for used, total in rows if used > 512 and used > total * 0.05]
        full = [used for used, total in rows if used > total * 0.9]
        if busy:
            found.append(Signal("card_in_use", seen(max(busy) * MIB, "bytes", source), "In use on a card, by all together",
                                "tool"))
        if full and any(used < total * 0.05 for used, total in rows):
            found.append(Signal("some_cards_full", seen(len(full), "count", source), "Cards are full while others are empty",
                                "tool"))
        if len(busy) >= 3 and max(busy) - min(busy) <= max(busy) // 500:
            found.append(Signal("equal_on_all", seen(busy[0] * MIB, "bytes", source), "The same amount is in use on each card",
                                "tool"))
        held = [(int(gpu), int(pid), int(mib)) for gpu, pid, _, mib in _TABLE_ROW.findall(text[:60_000])]
        held += [(-1, 0, int(mib)) for _, mib in _GPUSTAT.findall(text[:60_000])]
        pids, _ = rocm.parse_pids(Text(text.split(": ", 1)[-1], "ok", "", source, "")) if "PID" in text else ((), None)
        held += [(-1, p.pid, int(p.vram.value or 0) // MIB) for p in pids if p.vram.ok]
        big = [mib for _, _, mib in held if mib > 1024]
        if big:
            found.append(Signal("process_listed", seen(max(big) * MIB, "bytes", source),
                                "A process is listed that holds this much", "tool"))
        homes: dict[int, set[int]] = {}
        for gpu, pid, _ in held:
            homes.setdefault(pid, set()).add(gpu)
        if sum(1 for where in homes.values() if len(where) > 1 and 0 in where) >= 1:
            found.append(Signal("spread_to_gpu0", seen(len(homes), "count", source),
                                "A process of another GPU holds memory on GPU 0 too", "tool"))
        if text.lstrip().startswith("<?xml") or "<nvidia_smi_log" in text:
            listing = nvidia_smi.parse_xml(Text(text[text.find("<"):], "ok", "", source, ""))
            for holder in listing.holders:
                if holder.memory.ok and int(holder.memory.value or 0) > GIB:
                    found.append(Signal("process_listed", holder.memory, f"{holder.name} holds this much", "tool"))
    return found
