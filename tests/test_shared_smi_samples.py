"""Real vendor output, where it is at hand: what a person reads off each file is what the readers say.

The files are other people's text, kept beside the project and never in it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.look import nvidia, rocm, rocminfo
from helpers.look.bundle import Bundle, BundleWriter, Text
from helpers.look.reading import NOT_AVAILABLE

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared" / "samples" / "smi"
pytestmark = pytest.mark.skipif(
    not SHARED.is_dir(), reason="no ../shared/samples/smi beside this checkout"
)
KIB, MIB = 1 << 10, 1 << 20
# The prefixes of the files that these readers answer for; the others belong to the kernel's and the message's readers.
OURS = ("rocm-smi_", "amd-smi_", "rocminfo_", "nvidia-smi_")


def text(name: str, source: str = "tool") -> Text:
    return Text((SHARED / name).read_text(), "ok", "", source, "item")


def box(contents: dict[str, str]) -> Bundle:
    writer = BundleWriter("shared", "recorded", "0", "now")
    for source, name in contents.items():
        writer.add("command", source, text(name).text)
    return writer.bundle()


@pytest.mark.parametrize(
    ("name", "cards"),
    [
        (
            "rocm-smi_showmeminfo_vram.txt",
            {
                0: (8573157376, 376471552),
                1: (8573157376, 376496128),
                2: (8573157376, 376492032),
                3: (8573157376, 376483840),
            },
        ),
        ("rocm-smi_showmeminfo_vram.json", {0: (205822885888, 2654650368)}),
    ],
)
def test_rocm_smi_vram(name: str, cards: dict[int, tuple[int, int]]) -> None:
    found = rocm.parse_memory(text(name))
    assert {
        card: (pools["vram total"].value, pools["vram used"].value) for card, pools in found.items()
    } == cards


def test_rocm_smi_pools() -> None:
    (pools,) = rocm.parse_memory(text("rocm-smi_showmeminfo_all_keys_vega10.json")).values()
    assert {pool: reading.value for pool, reading in pools.items()} == {
        "vram total": 17163091968,
        "vram used": 17776640,
        "gtt total": 17163091968,
        "gtt used": 25608192,
    }


@pytest.mark.parametrize(
    ("name", "processes"),
    [
        (
            "rocm-smi_showpids_gfx1151.txt",
            [
                (9399, "VLLM::EngineCor", 329576448),
                (6566, "vllm", 0),
                (6534, "dflash_server", 18652127232),
            ],
        ),
        ("rocm-smi_showpids_monitor_only.txt", [(1058463, "<daemon>", 0)]),
        ("rocm-smi_showpids_unknown.txt", [(1188185, "", None)]),
        ("rocm-smi_showpids.json", [(28389, "llama-server", 2353860608)]),
        ("rocm-smi_showpids_none.txt", []),
    ],
)
def test_rocm_smi_processes(name: str, processes: list[tuple[object, ...]]) -> None:
    found, counted = rocm.parse_pids(text(name))
    assert [(p.pid, p.name, p.vram.value) for p in found] == processes
    assert counted.value == len(processes)


def test_amd_smi_of_a_strix_halo() -> None:
    (gpu,) = rocm.gpus(
        box({rocm.LIST: "amd-smi_list_gfx1151.json", rocm.STATIC: "amd-smi_static_gfx1151.json"})
    )
    assert (gpu.index, gpu.pci.value, gpu.hip) == (0, "0000:c4:00.0", "")
    assert "8060S" in str(gpu.name.value)
    assert gpu.pools["vram total"].why == "not captured"


def test_amd_smi_memory_of_a_navi23() -> None:
    (gpu,) = rocm.gpus(box({rocm.USAGE: "amd-smi_metric_mem_usage_gfx1032.json"}))
    assert {pool: int(reading.value or 0) // MIB for pool, reading in gpu.pools.items()} == {
        "vram total": 8176,
        "vram used": 202,
        "gtt total": 64357,
        "gtt used": 65,
    }


def test_amd_smi_processes_on_two_gpus() -> None:
    found, counted = rocm.parse_processes(text("amd-smi_process_2gpu.json"), {})
    assert [(p.pid, p.vram.value) for p in found] == [
        (213534, 56000),
        (213952, 21008920000),
        (213953, 20503796000),
        (213534, 56000),
    ]
    assert counted.value == 3 and {p.name for p in found} == {"/usr/bin/python3.12"}


def test_amd_smi_without_processes() -> None:
    assert rocm.parse_processes(text("amd-smi_process_none.json"), {})[1].value == 0


def test_amd_smi_table_of_two_gpus() -> None:
    read = box({rocm.TABLE: "amd-smi_default_table_2gpu.txt"})
    gpus = rocm.gpus(read)
    assert [(gpu.pci.value, gpu.hip) for gpu in gpus] == [
        ("0000:03:00.0", "0"),
        ("0000:43:00.0", "1"),
    ]
    found = rocm.processes(read)
    assert len(found) == 8 and len({p.pid for p in found}) == 4
    assert [(p.pid, p.vram.show()) for p in found if p.pci == "0000:43:00.0"][2:] == [
        (213952, "19.60 GiB"),
        (213953, "19.10 GiB"),
    ]


def test_rocminfo_of_a_strix_halo() -> None:
    cpu, gpu, npu = rocminfo.parse_agents(text("rocminfo_gfx1151.txt"))
    assert (cpu.kind, cpu.memory.value) == ("cpu", 32113080 * KIB)
    assert (gpu.kind, gpu.name.value, gpu.pci.value, gpu.integrated) == (
        "gpu",
        "gfx1151",
        "0000:c2:00.0",
        True,
    )
    assert gpu.memory.show() == "96.00 GiB"
    assert (npu.kind, npu.name.value, npu.marketing_name.value) == ("npu", "aie2p", "RyzenAI-npu5")


def test_rocminfo_under_wsl() -> None:
    cpu, gpu = rocminfo.parse_agents(text("rocminfo_gfx1100_wsl.txt"))
    assert (cpu.memory.value, gpu.memory.value) == (20486160 * KIB, 20885672 * KIB)
    assert (gpu.name.value, gpu.marketing_name.value) == ("gfx1100", "AMD Radeon RX 7900 XT")
    assert gpu.pci.status == NOT_AVAILABLE


def test_rocminfo_through_grep() -> None:
    assert [
        agent.memory.value
        for agent in rocminfo.parse_agents(text("rocminfo_gfx1151_pools_62gib.txt"))
    ] == [131151392 * KIB, 65575696 * KIB]


def test_nvidia_smi_xml_of_a_desktop() -> None:
    read = box({nvidia.XML: "nvidia-smi_q_x_rtx2060.xml"})
    (gpu,) = nvidia.gpus(read)
    assert (gpu.pci, gpu.name.value) == ("0000:01:00.0", "NVIDIA GeForce RTX 2060")
    assert [r.bytes // MIB for r in (gpu.total, gpu.reserved, gpu.used, gpu.free)] == [
        12288,
        464,
        981,
        10844,
    ]
    assert [(h.pid, h.memory.value) for h in nvidia.holders(read)] == [
        (2705, 170 * MIB),
        (4386, 222 * MIB),
        (11616, 235 * MIB),
        (15246, None),
    ]


def test_nvidia_smi_csv() -> None:
    (gpu,) = nvidia.parse_gpu_csv(text("nvidia-smi_query_gpu.csv")).gpus
    assert (gpu.name.value, gpu.total.value, gpu.used.value) == (
        "NVIDIA GeForce RTX 5060 Ti",
        16311 * MIB,
        MIB,
    )


def test_nvidia_smi_csv_of_unified_memory() -> None:
    source = "nvidia-smi --query-gpu=index,name,memory.total,memory.used --format=csv,noheader"
    (gpu,) = nvidia.parse_gpu_csv(text("nvidia-smi_query_gpu_gb10_na.csv", source)).gpus
    assert (gpu.index.value, gpu.name.value) == (0, "NVIDIA GB10")
    assert (
        gpu.total.status == gpu.used.status == NOT_AVAILABLE
        and gpu.total.why == "not measured (N/A)"
    )


def test_nvidia_smi_compute_processes() -> None:
    source = (
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits"
    )
    listing = nvidia.parse_apps_csv(text("nvidia-smi_query_compute_apps.csv", source))
    assert [(h.pid, h.name, h.memory.value) for h in listing.holders] == [
        (6975, "VLLM::EngineCore", 6104 * MIB),
        (286138, "/usr/bin/baobab", 22 * MIB),
    ]
    empty = nvidia.parse_apps_csv(text("nvidia-smi_query_compute_apps_empty.csv"))
    assert empty.holders == () and empty.processes_told


def test_every_file_that_is_ours_is_named_above() -> None:
    here = Path(__file__).read_text()
    assert [
        path.name
        for path in SHARED.iterdir()
        if path.name.startswith(OURS) and f'"{path.name}"' not in here
    ] == []
