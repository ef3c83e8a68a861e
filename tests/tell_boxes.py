"""Invented boxes for the tests of what people look at: an APU, two cards in a container, a box that shows nothing."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import nbformat

from helpers.look.gpus import Gpu, Holder, Pool
from helpers.look.kernel_log import Event
from helpers.look.reading import GIB, MIB, Reading, not_allowed, not_available, seen
from helpers.run.notebook import VERDICT as VERDICT_MIME
from helpers.run.shapes import Run
from helpers.shapes import Alternative, Evidence, Missing, NextStep, Verdict, as_dict
from helpers.tell.figures import (
    holders_alt,
    holders_figure,
    pools_alt,
    pools_figure,
    timeline_alt,
    timeline_figure,
)
from helpers.tell.sheet import png
from helpers.tell.tables import pools_table

HOSTILE = "\x1b[31m<script>alert(1)</script>]]>\u202e$x$ & \"'`*"


def event(
    kind: str,
    when: Reading,
    boot: int,
    text: str,
    pci: str = "",
    pid: int | None = None,
    process: str = "",
    count: int = 1,
    until: Reading | None = None,
    detail: str = "",
) -> Event:
    return Event(
        kind,
        when,
        boot,
        pci,
        pid,
        process,
        detail,
        {},
        text,
        "dmesg",
        1,
        count,
        until or not_available("one line", "count", "dmesg"),
    )


def at(seconds: float | str) -> Reading:
    return seen(seconds, "count" if isinstance(seconds, (int, float)) else "text", "kernel log")


def read(value: float, source: str) -> Reading:
    return seen(int(value), "bytes", source)


def pool(pci: str, layer: str, total: Reading, used: Reading) -> Pool:
    free = not_available("the layer does not say", "bytes", total.source)
    return Pool(pci, layer, total, used, free)


def drm(card: int, kind: str, total: float, used: float, pci: str) -> Pool:
    folder = f"/sys/class/drm/card{card}/device/mem_info_{kind}"
    return pool(
        pci, f"sysfs {kind.upper()}", read(total, folder + "_total"), read(used, folder + "_used")
    )


NO_ROCM = not_available("rocm-smi is not installed", "bytes", "rocm-smi --showmeminfo all --json")
NO_TORCH = not_available("no torch was found", "bytes", "torch")
DENIED = not_allowed("/dev/kfd: Permission denied (mode 0660, group render)", "bytes", "/dev/kfd")
A_LIMIT = not_available("a limit, not a pool", "bytes", "/sys/module/ttm/parameters/pages_limit")

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
        pool(
            APU_PCI,
            "KFD bank",
            read(15.24 * GIB, "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"),
            not_available(
                "a limit, not a pool",
                "bytes",
                "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties",
            ),
        ),
        pool(APU_PCI, "rocm-smi", NO_ROCM, NO_ROCM),
        pool(APU_PCI, "torch", DENIED, DENIED),
    ),
    (
        Holder(
            APU_PCI,
            4121,
            "python",
            1000,
            "S",
            read(8.4 * GIB, "/proc/4121/fdinfo/14"),
            "/proc/4121/fdinfo/14",
            "",
        ),
        Holder(
            APU_PCI,
            1893,
            "gnome-shell",
            1000,
            "S",
            read(612 * MIB, "/proc/1893/fdinfo/31"),
            "/proc/1893/fdinfo/31",
            "",
        ),
    ),
    read(422 * MIB, "/sys/class/drm/card1/device/mem_info_gtt_used"),
    (),
)
HOST_POOLS = (
    pool("", "RAM", read(124.9 * GIB, "/proc/meminfo"), read(31.2 * GIB, "/proc/meminfo")),
    pool("", "TTM limit", read(15.24 * GIB, "/sys/module/ttm/parameters/pages_limit"), A_LIMIT),
)

CARDS = tuple(
    Gpu(
        pci,
        "AMD",
        seen("Radeon RX 7900 XT", "text", "rocminfo"),
        "amdgpu",
        False,
        {
            "drm card": f"card{i}",
            "render node": f"renderD{128 + i}",
            "kfd node": str(i + 1),
            "rocm-smi": str(i),
        },
        (drm(i, "vram", 19.98 * GIB, used * GIB, pci), drm(i, "gtt", 62.7 * GIB, 0.05 * GIB, pci)),
        holders,
        read(loose * GIB, f"/sys/class/drm/card{i}/device/mem_info_vram_used"),
        (
            "holders outside this container: the PID namespace hides them",
            "fdinfo of 212 processes: not allowed (needs CAP_SYS_PTRACE)",
        ),
    )
    for i, (pci, used, loose, holders) in enumerate(
        (
            (
                "0000:03:00.0",
                18.31,
                12.07,
                (
                    Holder(
                        "0000:03:00.0",
                        88,
                        "python3",
                        0,
                        "S",
                        read(6.21 * GIB, "/proc/88/fdinfo/9"),
                        "/proc/88/fdinfo/9",
                        "",
                    ),
                    Holder(
                        "0000:03:00.0",
                        91,
                        "python3 <defunct>",
                        0,
                        "Z",
                        read(28 * MIB, "kfd"),
                        "/sys/class/kfd/kfd/proc/91",
                        "",
                    ),
                ),
            ),
            ("0000:0a:00.0", 0.02, 0.02, ()),
        )
    )
)

BLIND = Gpu(
    "0000:01:00.0",
    "NVIDIA",
    not_available("nvidia-smi is not installed", "text", "nvidia-smi"),
    "nvidia",
    None,
    {},
    (pool("0000:01:00.0", "nvidia-smi", NO_TORCH, NO_TORCH),),
    (
        Holder(
            "0000:01:00.0",
            7,
            HOSTILE,
            None,
            "R",
            not_allowed("fdinfo of pid 7: Permission denied", "bytes", "/proc/7/fdinfo"),
            "/proc/7/fdinfo",
            "計算",
        ),
    ),
    not_available("the pool's use is unknown", "bytes", "nvidia-smi"),
    ("everything",),
)

EVENTS = (
    event("boot", at(0.0), -1, "Linux version 6.14.0"),
    event(
        "oom_killer",
        at(88211.2),
        -1,
        "Out of memory: Killed process 5512 (python), anon-rss:61GB",
        "",
        5512,
        "python",
    ),
    event("boot", at(0.0), 0, "Linux version 6.14.0"),
    event("gtt_ready", at(2.88), 0, "amdgpu: 15600M of GTT memory ready", APU_PCI),
    event(
        "vm_fault",
        at(4021.7),
        0,
        "[gfxhub] page fault (src_id:0 ring:153 vmid:8 pasid:32770)",
        APU_PCI,
        4121,
        "python",
        12,
        at(4055.8),
    ),
    event(
        "cs_enomem",
        at(3990.0),
        0,
        "Not enough memory for command submission!",
        APU_PCI,
        4121,
        "python",
    ),
    event(
        "gpu_reset",
        at(4077.9),
        0,
        "GPU reset begin! Source: 3, then MODE2 reset, VRAM is not lost",
        APU_PCI,
    ),
    event(
        "nonzero_when_fini",
        at("Nov 21 03:11:02"),
        0,
        "VM memory stats is non-zero when fini",
        APU_PCI,
    ),
)

VERDICT = Verdict(
    cause="ttm-gtt-cap",
    confidence="likely",
    summary="The kernel lets the GPU use 15.24 GiB of the 124.90 GiB of RAM. The request of 20.00 GiB cannot fit under it, "
    "however empty the machine is.",
    evidence=[
        Evidence(
            id="e1",
            reading=HOST_POOLS[1].total,
            says="TTM allows the GPU this much of the RAM in all.",
        ),
        Evidence(
            id="e2",
            reading=APU.pools[1].total,
            says="The GTT pool has the same size, so TTM is what binds.",
        ),
        Evidence(id="e3", reading=HOST_POOLS[0].total, says="The RAM is eight times as large."),
    ],
    against=[
        Evidence(
            id="a1",
            reading=APU.unattributed,
            says="Memory that no process accounts for is small: not a leak.",
        )
    ],
    missing=[
        Missing(
            reading="What torch sees as its total",
            how="add this user to the group render, log in anew, then "
            "run `make diagnose` once more",
        )
    ],
    alternatives=[Alternative(cause="carveout-only", confidence="weak")],
    next_step=NextStep(
        what="Raise the TTM limit to 108 GiB and leave 16 GiB to the system.",
        command="echo 'options ttm pages_limit=28311552' | sudo tee /etc/modprobe.d/ttm.conf\nsudo update-initramfs -u",
        precondition="No other job runs here; a reboot follows.",
        blast_radius="A limit above the RAM that is free lets the kernel kill programs when both are full. "
        "Undo: remove the file and run update-initramfs again.",
    ),
)


def run_record(run_id: str, notebook: str, state: str, **changes: Any) -> Run:
    return Run(
        run_id=run_id,
        batch_id="20261121-quick",
        box="strix-halo",
        notebook=notebook,
        state=state,
        seconds=None if state == "planned" else 6.2,
        boot_id="6c1ff9f4-0e0c-4c1a-9c0e-000000000001",
        plan_sha256="ab" * 32,
        started_at="2026-11-21T03:00:00Z",
        ended_at="2026-11-21T03:00:06Z",
        tool_version="0.1.0",
        **changes,
    )


def code(
    source: str,
    *outputs: Any,
    status: str = "completed",
    tags: tuple[str, ...] = (),
    count: int | None = 1,
) -> Any:
    about = {"tags": list(tags), "papermill": {"status": status, "exception": status == "failed"}}
    return nbformat.v4.new_code_cell(
        source, outputs=list(outputs), execution_count=count, metadata=about
    )


def data(**by_kind: Any) -> Any:
    return nbformat.v4.new_output(
        "display_data", data={kind.replace("__", "/"): value for kind, value in by_kind.items()}
    )


def picture(figure: Any, alt: str) -> Any:
    raw, width, height = png(figure)
    shown = nbformat.v4.new_output(
        "display_data", data={"image/png": base64.b64encode(raw).decode(), "text/plain": alt}
    )
    shown.metadata = nbformat.from_dict(
        {"image/png": {"alt": alt, "width": width, "height": height}}
    )
    return shown


def printed(text: str, name: str = "stdout") -> Any:
    return nbformat.v4.new_output("stream", name=name, text=text)


def markdown(source: str, *tags: str) -> Any:
    return nbformat.v4.new_markdown_cell(source, metadata={"tags": list(tags)})


def probe() -> Any:
    """An executed 01_hardware_probe of an invented APU box."""
    verdict = data()
    verdict.data = {VERDICT_MIME: as_dict(VERDICT), "text/markdown": "twin", "text/plain": "twin"}
    return nbformat.v4.new_notebook(
        cells=[
            markdown(
                "# What is this box?\n\nWhich layers see how much memory, who holds it, and what the kernel log says. "
                "*Looks.* See [the table](https://example.org/table) and `rocminfo`."
            ),
            code(
                'box: str = "live"  # a bundle, a name from env/boxes, or live',
                tags=("parameters",),
            ),
            code('# Parameters\nbox = "strix-halo"\n', tags=("injected-parameters",)),
            markdown("## Machine"),
            code(
                "print(machine_line(box))",
                printed(
                    "strix-halo: Ubuntu 24.04, Linux 6.14, RAM 124.90 GiB, Radeon 8060S Graphics (integrated)\n"
                ),
                tags=("machine",),
            ),
            markdown("## Memory pools\n\nEach layer's account of the same memory, side by side."),
            code(
                "show(pools_figure([*gpus, *host_pools]), pools_alt([*gpus, *host_pools]))",
                picture(pools_figure([APU, *HOST_POOLS]), pools_alt([APU, *HOST_POOLS])),
            ),
            code(
                "print(pools_table([*gpus, *host_pools]))",
                printed(pools_table([APU, *HOST_POOLS]) + "\n"),
            ),
            markdown(
                "This shows that GTT stops where the TTM limit does.\n\n| layer | GiB |\n|---|---:|\n| TTM | 15.24 |\n"
            ),
            markdown("## Holders"),
            code(
                "show(holders_figure(gpus), holders_alt(gpus))",
                picture(holders_figure([APU]), holders_alt([APU])),
            ),
            markdown("## Kernel log"),
            code(
                "show(timeline_figure(events), timeline_alt(events))",
                picture(timeline_figure(EVENTS), timeline_alt(EVENTS)),
            ),
            markdown("## Verdict"),
            code("show(verdict)", verdict),
        ]
    )


def stress() -> Any:
    """An executed 02_allocator_stress whose kernel was killed in the fourth cell."""
    trace = [
        "Died: the kernel was killed by SIGKILL; the kernel log says out of memory, cell 3 (x = stress(...))"
    ]
    return nbformat.v4.new_notebook(
        cells=[
            markdown(
                '<span style="color:red">An Exception was encountered</span>',
                "papermill-error-cell-tag",
            ),
            markdown("# Does the allocator fragment?"),
            code("import helpers", printed("\x1b[32mready\x1b[0m\n")),
            code(
                "events = record(program)\nfor event in events[:3]:\n    print(event)",
                printed("alloc 512\nfree 512\n"),
            ),
            code(
                "x = stress('8GiB')  # <b>not bold</b>",
                nbformat.v4.new_output("error", ename="Died", evalue=trace[0], traceback=trace),
                status="failed",
            ),
            code("print(summary(x))", status="pending", count=None),
        ]
    )


def broken() -> Any:
    """An executed 03_ttm_gtt_analysis in which a cell raised."""
    trace = [
        "\x1b[31m---------------------------------------\x1b[0m",
        "KeyError                Traceback (most recent call last)",
        "Cell In[2], line 1\n----> 1 pools['gtt']",
        "\x1b[31mKeyError\x1b[0m: 'gtt'",
    ]
    raised = nbformat.v4.new_output("error", ename="KeyError", evalue="'gtt'", traceback=trace)
    return nbformat.v4.new_notebook(
        cells=[
            markdown("# Which limit binds?"),
            code("pools['gtt']", raised, status="failed"),
            code("print(pools)", status="pending", count=None),
        ]
    )


def batch(folder: Path) -> Path:
    """A batch of five runs: answered, died, failed, stopped, not started; and one torn record."""
    for run, notebook in (
        (
            run_record(
                "01-probe",
                "notebooks/01_hardware_probe.ipynb",
                "answered",
                verdict=VERDICT,
                cells={"completed": 7},
                parameters={"box": "strix-halo"},
                files=["notebook.ipynb", "figures/01.png"],
            ),
            probe(),
        ),
        (
            run_record(
                "02-stress",
                "notebooks/02_allocator_stress.ipynb",
                "died",
                signal="SIGKILL",
                failing_cell=3,
                cells={"completed": 2, "failed": 1, "pending": 1},
                last_words="bo 0x7f21 pinned\nGPU memory access fault",
                cause="the kernel was killed by SIGKILL; the kernel log says out of memory, cell 3 (x = stress('8GiB'))",
            ),
            stress(),
        ),
        (
            run_record(
                "03-ttm",
                "notebooks/03_ttm_gtt_analysis.ipynb",
                "failed",
                failing_cell=1,
                cells={"failed": 1, "pending": 1},
                cause="KeyError: 'gtt'",
                last_words="libdrm: device refused",
            ),
            broken(),
        ),
        (
            run_record(
                "05-fix",
                "notebooks/05_fix_validation.ipynb",
                "timed_out",
                cells={"completed": 3, "failed": 1},
                cause="passed the limit of 120 s of cell 4 (trial(preset))",
                last_words="Thread 0x7f (most recent call first):",
            ),
            None,
        ),
        (run_record("09-report", "notebooks/09_case_report.ipynb", "planned"), None),
    ):
        at_folder = folder / run.run_id
        at_folder.mkdir(parents=True)
        (at_folder / "run.json").write_text(run.model_dump_json())
        if notebook is not None:
            nbformat.write(notebook, at_folder / "notebook.ipynb")
    (folder / "06-torn").mkdir()
    (folder / "06-torn" / "run.json").write_text('{"schema_version": 1, "run_id": "06-to')
    return folder
