"""Invented boxes for the tests of what people look at: an APU, two cards in a container, a box that shows nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import nbformat

from helpers.batch.shapes import Run
from helpers.ground.contract import as_dict, from_json
from helpers.ground.shapes import VERDICT_MIME, Reading, Verdict, not_allowed, not_available, seen
from helpers.ground.units import GIB, MIB
from helpers.look.gpus import Gpu, Pool
from helpers.look.holders import Holder
from helpers.look.kernel_log import Event
from helpers.tell import figures
from helpers.tell.shown import Shown
from helpers.tell.tables import pools_table

DATA = Path(__file__).parent / "data" / "tell"
HOSTILE = "\x1b[31m<script>alert(1)</script>]]>\u202e$x$ & \"'`*"


NO_TIME = not_available("one line", "count", "dmesg")
Some = Reading | None


def event(
    kind: str,
    when: Reading,
    boot: int,
    text: str,
    pci: str = "",
    pid: int | None = None,
    process: str = "",
    count: int = 1,
    until: Some = None,
    detail: str = "",
) -> Event:
    where = (boot, pci, pid, process, detail)
    return Event(kind, when, *where, {}, text, "dmesg", 1, count, until or NO_TIME)


def at(seconds: float | str) -> Reading:
    return seen(seconds, "count" if isinstance(seconds, (int, float)) else "text", "kernel log")


def read(value: float, source: str) -> Reading:
    return seen(int(value), "bytes", source)


def pool(pci: str, layer: str, total: Reading, used: Reading) -> Pool:
    free = not_available("the layer does not say", "bytes", total.source)
    return Pool(pci, layer, total, used, free)


def a_limit(pci: str, layer: str, source: str) -> Pool:
    used = not_available("a limit, not a pool", "bytes", source)
    return pool(pci, layer, read(15.24 * GIB, source), used)


def drm(card: int, kind: str, total: float, used: float, pci: str) -> Pool:
    folder = f"/sys/class/drm/card{card}/device/mem_info_{kind}"
    amounts = read(total, folder + "_total"), read(used, folder + "_used")
    return pool(pci, f"sysfs {kind.upper()}", *amounts)


def holder(pci: str, pid: int, name: str, held: Reading, state: str = "S", uid: int = 0) -> Holder:
    return Holder(pci, pid, name, uid, state, held, held.source, "")


NO_ROCM = not_available("rocm-smi is not installed", "bytes", "rocm-smi --showmeminfo all --json")
NO_TORCH = not_available("no torch was found", "bytes", "torch")
DENIED = not_allowed("/dev/kfd: Permission denied (mode 0660, group render)", "bytes", "/dev/kfd")
BANK = "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"

APU_PCI = "0000:c5:00.0"
APU = Gpu(
    APU_PCI,
    "AMD",
    seen("Radeon 8060S Graphics", "text", "rocminfo"),
    "amdgpu",
    True,
    {"drm card": "card1", "render node": "renderD128", "kfd node": "1", "torch": "0"},
    (
        drm(1, "vram", 512 * MIB, 288 * MIB, APU_PCI),
        drm(1, "gtt", 15.24 * GIB, 9.1 * GIB, APU_PCI),
        a_limit(APU_PCI, "KFD bank", BANK),
        pool(APU_PCI, "rocm-smi", NO_ROCM, NO_ROCM),
        pool(APU_PCI, "torch", DENIED, DENIED),
    ),
    (
        holder(APU_PCI, 4121, "python", read(8.4 * GIB, "/proc/4121/fdinfo/14"), uid=1000),
        holder(APU_PCI, 1893, "gnome-shell", read(612 * MIB, "/proc/1893/fdinfo/31"), uid=1000),
    ),
    read(422 * MIB, "/sys/class/drm/card1/device/mem_info_gtt_used"),
    (),
)
HOST_POOLS = (
    pool("", "RAM", read(124.9 * GIB, "/proc/meminfo"), read(31.2 * GIB, "/proc/meminfo")),
    a_limit("", "TTM limit", "/sys/module/ttm/parameters/pages_limit"),
)


def card(number: int, pci: str, used: float, loose: float, *holders: Holder) -> Gpu:
    """One of two equal cards in a container, of which somebody outside holds ``loose`` GiB."""
    pools = (
        drm(number, "vram", 19.98 * GIB, used * GIB, pci),
        drm(number, "gtt", 62.7 * GIB, 0.05 * GIB, pci),
    )
    names = {"drm card": f"card{number}", "render node": f"renderD{128 + number}"}
    names |= {"kfd node": str(number + 1), "rocm-smi": str(number)}
    blind = (
        "holders outside this container: the PID namespace hides them",
        "fdinfo of 212 processes: not allowed (needs CAP_SYS_PTRACE)",
    )
    name = seen("Radeon RX 7900 XT", "text", "rocminfo")
    rest = read(loose * GIB, f"/sys/class/drm/card{number}/device/mem_info_vram_used")
    return Gpu(pci, "AMD", name, "amdgpu", False, names, pools, holders, rest, blind)


FIRST = "0000:03:00.0"
SECOND = "0000:0a:00.0"
THIRD = "0000:01:00.0"
TRAINER = holder(FIRST, 88, "python3", read(6.21 * GIB, "/proc/88/fdinfo/9"))
ZOMBIE = holder(FIRST, 91, "python3 <defunct>", read(28 * MIB, "kfd"), "Z")
CARDS = (card(0, FIRST, 18.31, 12.07, TRAINER, ZOMBIE), card(1, SECOND, 0.02, 0.02))

HIDDEN = not_allowed("fdinfo of pid 7: Permission denied", "bytes", "/proc/7/fdinfo")
BLIND = Gpu(
    THIRD,
    "NVIDIA",
    not_available("nvidia-smi is not installed", "text", "nvidia-smi"),
    "nvidia",
    None,
    {},
    (pool(THIRD, "nvidia-smi", NO_TORCH, NO_TORCH),),
    (Holder(THIRD, 7, HOSTILE, None, "R", HIDDEN, "/proc/7/fdinfo", "計算"),),
    not_available("the pool's use is unknown", "bytes", "nvidia-smi"),
    ("everything",),
)

KILLED = "Out of memory: Killed process 5512 (python), anon-rss:61GB"
FAULT = "[gfxhub] page fault (src_id:0 ring:153 vmid:8 pasid:32770)"
REFUSED = "Not enough memory for command submission!"
LEFT = "VM memory stats is non-zero when fini"
RESET = "GPU reset begin! Source: 3, then MODE2 reset, VRAM is not lost"
OURS = (APU_PCI, 4121, "python")
EVENTS = (
    event("boot", at(0.0), -1, "Linux version 6.14.0"),
    event("oom_killer", at(88211.2), -1, KILLED, "", 5512, "python"),
    event("boot", at(0.0), 0, "Linux version 6.14.0"),
    event("gtt_ready", at(2.88), 0, "amdgpu: 15600M of GTT memory ready", APU_PCI),
    event("vm_fault", at(4021.7), 0, FAULT, *OURS, 12, at(4055.8)),
    event("cs_enomem", at(3990.0), 0, REFUSED, *OURS),
    event("gpu_reset", at(4077.9), 0, RESET, APU_PCI),
    event("nonzero_when_fini", at("Nov 21 03:11:02"), 0, LEFT, APU_PCI),
)

VERDICT = from_json(Verdict, (DATA / "verdict.json").read_text())


def run_record(run_id: str, notebook: str, state: str, **changes: Any) -> Run:
    """A run of a made-up batch, in one state."""
    times = {"started_at": "2026-11-21T03:00:00Z", "ended_at": "2026-11-21T03:00:06Z"}
    boot = {"boot_id": "6c1ff9f4-0e0c-4c1a-9c0e-000000000001", "plan_sha256": "ab" * 32}
    named = {"run_id": run_id, "batch_id": "20261121-quick", "box": "strix-halo"}
    took = None if state == "planned" else 6.2
    about = {**times, **boot, **named, "tool_version": "0.1.0", "seconds": took, **changes}
    return Run(notebook=notebook, state=state, **about)


def code(
    source: str,
    *outputs: Any,
    status: str = "completed",
    tags: tuple[str, ...] = (),
    count: int | None = 1,
) -> Any:
    """An executed cell, as papermill leaves it."""
    about = {"tags": list(tags), "papermill": {"status": status, "exception": status == "failed"}}
    more = {"outputs": list(outputs), "execution_count": count, "metadata": about}
    return nbformat.v4.new_code_cell(source, **more)


def data(**by_kind: Any) -> Any:
    kinds = {kind.replace("__", "/"): value for kind, value in by_kind.items()}
    return nbformat.v4.new_output("display_data", data=kinds)


def picture(figure: Any, alt: str) -> Any:
    """What figures.show leaves in a notebook."""
    raw, width, height = figure.picture()
    made = data(image__png=base64.b64encode(raw).decode(), text__plain=alt)
    about = {"alt": alt, "width": width, "height": height}
    made.metadata = nbformat.from_dict({"image/png": about})
    return made


def drawn(source: str, view: Shown) -> Any:
    return code(source, picture(view.draw(), view.alt))


def printed(text: str, name: str = "stdout") -> Any:
    return nbformat.v4.new_output("stream", name=name, text=text)


def markdown(source: str, *tags: str) -> Any:
    return nbformat.v4.new_markdown_cell(source, metadata={"tags": list(tags)})


PROBE = """\
# What is this box?

Which layers see how much memory, who holds it, and what the kernel log says. *Looks.* See \
[the table](https://example.org/table) and `rocminfo`."""
GTT = "This shows that GTT stops where the TTM limit does.\n\n| layer | GiB |\n|---|---:|\n| TTM | 15.24 |\n"
LINE = "strix-halo: Ubuntu 24.04, Linux 6.14, RAM 124.90 GiB, Radeon 8060S Graphics (integrated)\n"
BOX = 'box: str = "live"  # a bundle, a name from env/boxes, or live'


def probe() -> Any:
    """An executed 01_hardware_probe of an invented APU box."""
    verdict = data()
    pools = [APU, *HOST_POOLS]
    verdict.data = {VERDICT_MIME: as_dict(VERDICT), "text/markdown": "twin", "text/plain": "twin"}
    cells = [
        markdown(PROBE),
        code(BOX, tags=("parameters",)),
        code('# Parameters\nbox = "strix-halo"\n', tags=("injected-parameters",)),
        markdown("## Machine"),
        code("print(machine_line(box))", printed(LINE), tags=("machine",)),
        markdown("## Memory pools\n\nEach layer's account of the same memory, side by side."),
        drawn("show(pools([*gpus, *host_pools]))", figures.pools(pools)),
        code("print(pools_table([*gpus, *host_pools]))", printed(f"{pools_table(pools)}\n")),
        markdown(GTT),
        markdown("## Holders"),
        drawn("show(holders(gpus))", figures.pools([APU])),
        markdown("## Kernel log"),
        drawn("show(host)", figures.pools(HOST_POOLS)),
        markdown("## Verdict"),
        code("show(verdict)", verdict),
    ]
    return nbformat.v4.new_notebook(cells=cells)


def executed(name: str) -> Any:
    """02_allocator_stress whose kernel was killed in its fourth cell (stress), or 03 in which a cell raised (broken)."""
    if name == "probe":
        return probe()
    return nbformat.from_dict(json.loads((DATA / f"{name}.json").read_text()))


def batch(folder: Path) -> Path:
    """A batch of five runs: answered, died, failed, stopped, not started; and one torn record."""
    for row in json.loads((DATA / "runs.json").read_text()):
        answer = {"verdict": VERDICT} if row["state"] == "answered" else {}
        notebook = f"notebooks/{row['notebook']}.ipynb"
        place = folder / row["name"]
        run = run_record(row["name"], notebook, row["state"], **row["more"], **answer)
        place.mkdir(parents=True)
        (place / "run.json").write_text(run.model_dump_json())
        if row["executed"]:
            nbformat.write(executed(row["executed"]), place / "notebook.ipynb")
    (folder / "06-torn").mkdir()
    (folder / "06-torn" / "run.json").write_text('{"schema_version": 1, "run_id": "06-to')
    return folder
