"""Real vendor output, where it is at hand: what a person reads off each file is what the readers say.

The files are other people's text, kept beside the project and never in it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.look import amd_smi, framework, nvidia, nvidia_smi, rocm, rocminfo
from helpers.look.bundle import Bundle, BundleWriter, Text
from helpers.look.reading import NOT_AVAILABLE

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared" / "samples" / "smi"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/samples/smi beside this checkout")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# The prefixes of the files that these readers answer for; the others belong to the kernel's and the message's readers.
OURS = ("rocm-smi_", "amd-smi_", "amd-ttm_", "rocminfo_", "nvidia-smi_", "torch_device_properties", "strix_halo_three_totals")


def text(name: str, source: str = "tool") -> Text:
    return Text((SHARED / name).read_text(), "ok", "", source, "item")


def box(contents: dict[str, str]) -> Bundle:
    writer = BundleWriter("shared", "recorded", "0", "now")
    for source, name in contents.items():
        writer.add("command", source, text(name).text)
    return writer.bundle()


@pytest.mark.parametrize(("name", "cards"), [
    ("rocm-smi_showmeminfo_vram.txt", {0: (8573157376, 376471552), 1: (8573157376, 376496128), 2: (8573157376, 376492032),
                                       3: (8573157376, 376483840)}),
    ("rocm-smi_showmeminfo_vram.json", {0: (205822885888, 2654650368)}),
])
def test_rocm_smi_vram(name: str, cards: dict[int, tuple[int, int]]) -> None:
    found = rocm.parse_memory(text(name))
    assert {card: (pools["vram total"].value, pools["vram used"].value) for card, pools in found.items()} == cards


def test_rocm_smi_all_three_pools() -> None:
    (pools,) = rocm.parse_memory(text("rocm-smi_showmeminfo_all_keys_vega10.json")).values()
    assert {pool: reading.value for pool, reading in pools.items()} == {
        "vram total": 17163091968, "vram used": 17776640, "vis_vram total": 268435456, "vis_vram used": 13557760,
        "gtt total": 17163091968, "gtt used": 25608192}


@pytest.mark.parametrize(("name", "processes"), [
    ("rocm-smi_showpids_gfx1151.txt", [(9399, "VLLM::EngineCor", 1, 329576448, 0, None), (6566, "vllm", 0, 0, 0, None),
                                       (6534, "dflash_server", 1, 18652127232, 0, None)]),
    ("rocm-smi_showpids_monitor_only.txt", [(1058463, "<daemon>", 0, 0, 0, 0)]),
    ("rocm-smi_showpids_unknown.txt", [(1188185, "", 0, None, None, None)]),
    ("rocm-smi_showpids.json", [(28389, "llama-server", 1, 2353860608, 11011, 0)]),
    ("rocm-smi_showpids_none.txt", []),
])
def test_rocm_smi_processes(name: str, processes: list[tuple[object, ...]]) -> None:
    found, counted = rocm.parse_pids(text(name))
    assert [(p.pid, p.name, p.gpus.value, p.vram.value, p.sdma.value, p.cu_occupancy.value) for p in found] == processes
    assert counted.value == len(processes)


@pytest.mark.parametrize(("name", "pages", "limit", "total"), [
    ("amd-ttm_query.txt", 16469033, "62.82 GiB", "125.65 GiB"), ("amd-ttm_query_15gb.txt", 4058844, "15.48 GiB", "30.97 GiB"),
])
def test_amd_ttm(name: str, pages: int, limit: str, total: str) -> None:
    query = rocm.parse_ttm(text(name))
    assert (query.limit_pages.value, query.limit.show(), query.total_ram.show()) == (pages, limit, total)
    # The GB that it prints are GiB: pages of 4 KiB say so.
    assert abs(pages * 4 * KIB - int(query.limit.value or 0)) < GIB // 100


def test_amd_ttm_that_only_wrote_is_no_limit() -> None:
    query = rocm.parse_ttm(text("amd-ttm_set.txt"))
    assert query.limit_pages.status == query.total_ram.status == NOT_AVAILABLE


def test_amd_smi_of_a_strix_halo() -> None:
    (gpu,) = amd_smi.gpus(box({amd_smi.LIST: "amd-smi_list_gfx1151.json", amd_smi.STATIC: "amd-smi_static_gfx1151.json"}))
    assert (gpu.index, gpu.pci.value, gpu.kfd_id.value, gpu.gfx.value) == (0, "0000:c4:00.0", 42905, "gfx1151")
    assert gpu.indices == {"kfd node": "1"} and gpu.driver.value == "6.17.1-300.fc43.x86_64"
    assert "8060S" in str(gpu.name.value) and gpu.vram_type.status == NOT_AVAILABLE
    assert gpu.pools["vram total"].why == "not captured"


def test_amd_smi_memory_of_a_navi23() -> None:
    (gpu,) = amd_smi.gpus(box({amd_smi.MEMORY: "amd-smi_metric_mem_usage_gfx1032.json"}))
    assert {pool: int(reading.value or 0) // MIB for pool, reading in gpu.pools.items()} == {
        "vram total": 8176, "vram used": 202, "vram free": 7974, "visible_vram total": 8176, "visible_vram used": 202,
        "visible_vram free": 7974, "gtt total": 64357, "gtt used": 65, "gtt free": 64292}


def test_amd_smi_processes_on_two_gpus() -> None:
    found, counted = amd_smi.parse_processes(text("amd-smi_process_2gpu.json"), {})
    assert [(p.gpu, p.pid, p.vram.value, p.gtt.value, p.total.value) for p in found] == [
        (0, 213534, 56000, 6180000, 0), (0, 213952, 21008920000, 8268000, 21589852160), (0, 213953, 20503796000, 8244000, 0),
        (1, 213534, 56000, 6180000, 0)]
    assert counted.value == 3 and {p.name for p in found} == {"/usr/bin/python3.12"}


def test_amd_smi_without_processes() -> None:
    assert amd_smi.process_count(box({amd_smi.PROCESS: "amd-smi_process_none.json"})).value == 0


def test_amd_smi_table_of_two_gpus() -> None:
    read = box({amd_smi.TABLE: "amd-smi_default_table_2gpu.txt"})
    gpus = amd_smi.gpus(read)
    assert [(gpu.pci.value, gpu.indices["hip"]) for gpu in gpus] == [("0000:03:00.0", "0"), ("0000:43:00.0", "1")]
    assert {(gpu.pools["table used"].value, gpu.pools["table total"].value) for gpu in gpus} == {(29777 * MIB, 32624 * MIB)}
    found = amd_smi.processes(read)
    assert len(found) == 8 and amd_smi.process_count(read).value == 4
    assert [(p.pid, p.pci, p.vram.show(), p.total.show()) for p in found if p.gpu == 1][2:] == [
        (213952, "0000:43:00.0", "19.60 GiB", "20.10 GiB"), (213953, "0000:43:00.0", "19.10 GiB", "0 B")]


def test_rocminfo_of_a_strix_halo() -> None:
    cpu, gpu, npu = rocminfo.parse_agents(text("rocminfo_gfx1151.txt"))
    assert (cpu.kind, cpu.memory.value, len(cpu.pools)) == ("cpu", 32113080 * KIB, 4)
    assert (gpu.kind, gpu.name.value, gpu.pci.value, gpu.integrated) == ("gpu", "gfx1151", "0000:c2:00.0", True)
    assert (gpu.memory.show(), gpu.compute_units.value, gpu.node.value) == ("96.00 GiB", 40, 1)
    assert (npu.kind, npu.name.value, npu.marketing_name.value) == ("npu", "aie2p", "RyzenAI-npu5")
    system = rocminfo.parse_system(text("rocminfo_gfx1151.txt"))
    assert (system.xnack.value, system.dmabuf.value, system.vmm.value, system.wsl) == ("NO", "YES", "YES", False)


def test_rocminfo_under_wsl() -> None:
    cpu, gpu = rocminfo.parse_agents(text("rocminfo_gfx1100_wsl.txt"))
    assert (cpu.memory.value, gpu.memory.value) == (20486160 * KIB, 20885672 * KIB)
    assert (gpu.name.value, gpu.marketing_name.value, gpu.compute_units.value) == ("gfx1100", "AMD Radeon RX 7900 XT", 84)
    assert gpu.uuid.status == gpu.pci.status == NOT_AVAILABLE
    system = rocminfo.parse_system(text("rocminfo_gfx1100_wsl.txt"))
    assert system.wsl and (system.runtime.value, system.dmabuf.value) == ("1.1", "NO")


def test_rocminfo_through_grep() -> None:
    assert [agent.memory.value for agent in rocminfo.parse_agents(text("rocminfo_gfx1151_pools_62gib.txt"))] \
        == [131151392 * KIB, 65575696 * KIB]


def test_nvidia_smi_xml_of_a_desktop() -> None:
    read = box({nvidia.XML: "nvidia-smi_q_x_rtx2060.xml"})
    (gpu,) = nvidia.gpus(read)
    assert (gpu.pci, gpu.name.value, gpu.driver.value) == ("0000:01:00.0", "NVIDIA GeForce RTX 2060", "595.71.05")
    assert [int(r.value or 0) // MIB for r in (gpu.total, gpu.reserved, gpu.used, gpu.free, gpu.bar1_total, gpu.bar1_used)] \
        == [12288, 464, 981, 10844, 256, 21]
    assert [(h.pid, h.kind, h.memory.value) for h in nvidia.holders(read)] == [
        (2705, "G", 170 * MIB), (4386, "G", 222 * MIB), (11616, "C+G", 235 * MIB), (15246, "G", None)]


def test_nvidia_smi_csv() -> None:
    (gpu,) = nvidia_smi.parse_gpu_csv(text("nvidia-smi_query_gpu.csv")).gpus
    assert (gpu.name.value, gpu.total.value, gpu.used.value) == ("NVIDIA GeForce RTX 5060 Ti", 16311 * MIB, MIB)
    assert (gpu.driver.value, gpu.compute_capability.value) == ("580.178.04", "12.0")


def test_nvidia_smi_csv_of_unified_memory() -> None:
    source = "nvidia-smi --query-gpu=index,name,memory.total,memory.used --format=csv,noheader"
    (gpu,) = nvidia_smi.parse_gpu_csv(text("nvidia-smi_query_gpu_gb10_na.csv", source)).gpus
    assert (gpu.index.value, gpu.name.value) == (0, "NVIDIA GB10")
    assert gpu.total.status == gpu.used.status == NOT_AVAILABLE and gpu.total.why == "not measured (N/A)"


def test_nvidia_smi_compute_processes() -> None:
    source = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits"
    listing = nvidia_smi.parse_apps_csv(text("nvidia-smi_query_compute_apps.csv", source))
    assert [(h.pid, h.name, h.memory.value) for h in listing.holders] == [
        (6975, "VLLM::EngineCore", 6104 * MIB), (286138, "/usr/bin/baobab", 22 * MIB)]
    empty = nvidia_smi.parse_apps_csv(text("nvidia-smi_query_compute_apps_empty.csv"))
    assert empty.holders == () and empty.processes_told


def test_torch_properties_of_a_strix_halo() -> None:
    (device,) = framework.posted_devices(text("torch_device_properties_gfx1151.txt").text, "message")
    assert (device.gfx.value, device.capability.value, device.multiprocessors.value) == ("gfx1151", "11.5", 20)
    assert device.total.value == 98304 * MIB and device.total.show() == "96.00 GiB"


def test_three_totals_that_contradict_each_other() -> None:
    (device,) = framework.posted_devices(text("strix_halo_three_totals.txt").text, "message")
    assert device.integrated is True
    assert (device.total.show(), device.driver_total.show(), device.free.show()) == ("62.47 GiB", "62.47 GiB", "120.00 GiB")


def test_every_file_that_is_ours_is_named_above() -> None:
    here = Path(__file__).read_text()
    assert [path.name for path in SHARED.iterdir() if path.name.startswith(OURS) and f'"{path.name}"' not in here] == []
