"""Figures of memory that tools print: each row of the table on its own example, relations, kinds of GPU, one decision."""

from dataclasses import replace

import box_builder as build
import pytest
from changed_boxes import gb10, oom
from data_rows import read_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from ttm_boxes import apu

from helpers.ground.shapes import CAUSES
from helpers.judge.binding import answers, decide
from helpers.judge.ceiling_observations import ceiling_answer, ceiling_observations
from helpers.judge.ceilings import ceilings
from helpers.judge.evidence import evidence_from_message
from helpers.judge.numbers import Numbers, numbers_of
from helpers.judge.obstacles import obstacles
from helpers.look.boxes import open_box
from helpers.look.figure_forms import rows
from helpers.look.figures import Figure, figures_of
from helpers.look.parts import device_list, gpu_kind, is_card_size, parts
from helpers.look.relations import RELATIONS, relations

GIB = 1 << 30
MIB = 1 << 20
CASES = read_lines("figures")
"""What ``shows`` a relation, ``names`` a GPU, or is posted and ``decides``."""


def figures(*texts, origin="tool"):
    return figures_of([(origin, source, text) for source, text in texts])


def names(*texts, kind="unknown", ram=0, hip=False, **more):
    known = figures(*texts)
    if ram:
        known += figures(("ram_gib", str(ram)), origin="environment")
    return {r.name for r in relations(known, kind, hip=hip, **more)}


def answer(*texts, kind="apu", ram=0, **more):
    known = figures(*texts)
    if ram:
        known += figures(("ram_gib", str(ram)), origin="environment")
    return decide(numbers_of(known, kind, **more))


@pytest.mark.parametrize("row", rows(), ids=[row["id"] for row in rows()])
def test_each_row_of_the_table_reads_its_own_example(row):
    assert row["source"] and (row["form"] or row["column"])
    source = row.get("of", ["x"])[0].lstrip("=")
    got = {}
    for figure in figures((source, row["example"])):
        if figure.row == row["id"]:
            key = (
                figure.measure if figure.pool == row["pool"] else f"{figure.measure}@{figure.pool}"
            )
            got.setdefault(key, figure.bytes)
    assert got == row["reads"]


def test_row_names_are_unique_and_every_part_and_decision_has_its_source():
    assert len({row["id"] for row in rows()}) == len(rows())
    assert all(part.source and (part.names or part.gfx) for part in parts())
    assert all(part.gib for part in parts() if part.kind == "card")
    shared = [(part.vendor, gib) for part in parts() if part.kind != "card" for gib in part.gib]
    # What such a machine shows is less than its RAM: the kernel keeps a share.
    assert shared and not any(is_card_size(int(0.95 * gib * GIB), name) for name, gib in shared)
    for name, data in answers().items():
        assert data["cause"] in CAUSES and data["step"], name
        assert data["source"] or data["cause"] in ("other", "cannot-tell"), name


@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=400),
    st.sampled_from("dmesg gpu rocminfo nvidia-smi hipMemGetInfo ".split(" ")),
)
def test_any_text_is_read_without_an_error(text, source):
    for figure in figures((source, text)):
        assert figure.bytes is None or isinstance(figure.bytes, int)
    relations(figures((source, text)), "apu", hip=True)


_SIZES = st.integers(0, 1 << 40)
_FIGURES = st.builds(
    Figure,
    st.sampled_from(["total", "used", "free", "limit", "wanted"]),
    st.sampled_from("vram gtt ttm kfd hsa runtime ram ram-installed carveout available".split()),
    st.sampled_from(["", "0", "1"]),
    st.none() | _SIZES,
    st.integers(0, MIB),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["tool", "message", "environment"]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_FIGURES, max_size=10),
    st.sampled_from(["apu", "card", "nvidia-unified", "unknown"]),
    st.booleans(),
)
def test_any_figures_give_named_relations_and_a_decision_that_is_no_more_than_likely(
    known, kind, hip
):
    for relation in relations(known, kind, hip):
        assert relation.name in RELATIONS and relation.figures and relation.says
    found = decide(numbers_of(known, kind, hip=hip))
    drivers = {f.pool for f in known} & {"kfd", "hsa"}
    assert found.says and (found.confidence != "confirmed" or drivers or found.pattern == "card")


def test_long_hostile_text_is_read_in_part_only():
    assert figures(("dmesg", "VRAM: 1" * 200_000)) is not None
    assert figures(("nvidia-smi", "|" * 300_000 + "9" * 300_000)) == ()


def test_what_is_described_is_hearsay_and_what_is_abridged_is_not():
    told, read = (figures(("rocm-smi", "12 GiB free" + more)) for more in (" (described)", ""))
    assert told[0].hearsay and not read[0].hearsay and read[0].pool == "vram"


def test_a_name_with_a_number_is_no_size_and_weights_are_no_card():
    assert figures(("gpu", "Radeon 890M"), origin="environment") == ()
    line = 'memory.available="[9.0 GiB]" memory.weights.total="7.5 GiB"'
    found = {(f.measure, f.pool) for f in figures(("ollama log", line))}
    assert found == {("free", "runtime"), ("wanted", "weights")}
    assert names(("ollama log", line)) == set(), "weights are no total that free could be above"


@pytest.mark.parametrize("name", sorted(RELATIONS))
def test_each_relation_is_seen_in_what_shows_it(name):
    (row,) = (row for row in CASES if row.get("shows") == name)
    more = {key: row[key] for key in ("kind", "ram", "hip") if key in row}
    assert name in names(*row["texts"], **more)


def test_two_sizes_of_one_source_from_two_times_are_not_set_against_each_other():
    text = 'before: type=iGPU total="96.0 GiB" available="90.6 GiB"\nafter: type=iGPU total="0.5 GiB" available="0.4 GiB"'
    assert not names(("ollama log", text), kind="apu") & {"free-above-total"}


def test_a_healthy_card_shows_no_odd_relation():
    texts = (("nvidia-smi", "|  23566MiB / 24564MiB |"), ("torch", "total_memory=24124MB"))
    assert not names(*texts, kind="card")


@pytest.mark.parametrize("row", [row for row in CASES if "names" in row], ids=str)
def test_the_kind_of_a_gpu_goes_by_its_own_name(row):
    assert gpu_kind([row["names"]]) == row["kind"]


def test_a_card_beside_a_small_gpu_is_told_from_an_apu_by_what_the_program_sees():
    both = ["iGPU gfx1036, Radeon RX 7900 XT"]
    assert gpu_kind(both) == "card" and gpu_kind(both, total_bytes=int(19.98 * GIB)) == "card"
    assert gpu_kind(both, total_bytes=512 * MIB) == "apu"


def test_a_card_beside_any_cpu_is_a_card_and_gets_no_answer_of_an_apu():
    for cpu in ("AMD Ryzen 7 5800X", "Intel Core i7-13700K"):
        texts = ("gpu", "Radeon RX 6600 8 GB"), ("cpu", cpu), ("ram_gib", "64")
        known = figures(*texts, origin="environment")
        known += (Figure("total", "runtime", "0", 8 * GIB, 5 * MIB, "error text", "message"),)
        kind = gpu_kind(["Radeon RX 6600 8 GB"])
        assert decide(numbers_of(known, kind)).pattern == "card"
        assert not relations(known, kind, hip=True)


def test_a_hip_total_that_is_no_cards_size_asks_whether_it_is_an_apu():
    message = Figure("total", "runtime", "0", int(62.47 * GIB), 5 * MIB, "error text", "message")
    assert not is_card_size(message.bytes)
    assert "no-card-size" in {r.name for r in relations([message], hip=True)}
    found = decide(numbers_of([message], "unknown"))
    assert (found.pattern, found.cause) == ("ask_apu", "cannot-tell") and "ttm" in found.step
    card = Figure("total", "runtime", "0", int(23.98 * GIB), 5 * MIB, "error text", "message")
    assert decide(numbers_of([card], "unknown")).pattern == "undecided"


PAGES = "/sys/module/ttm/parameters/pages_limit"


@pytest.mark.parametrize("row", [row for row in CASES if "decides" in row], ids=lambda r: r["says"])
def test_posted_numbers_get_the_same_decision_table(row):
    found = answer(*row["texts"], ram=64)
    assert [found.pattern, found.cause, found.confidence] == row["decides"]


def test_numbers_that_were_only_retold_decide_weakly():
    texts = ((PAGES + " (described)", "8192000"), ("KFD size_in_bytes (described)", "33554432000"))
    assert answer(*texts).confidence == "weak"


def test_a_tool_that_shows_the_carve_out_alone_is_a_wrong_figure_only_where_nothing_failed():
    texts = (("amdsmi_get_gpu_memory_total(VRAM)", "536870912"),)
    assert answer(*texts, ram=64, failed=False).cause == "metric-misreport"
    assert answer(*texts, ram=64, failed=True).cause == "cannot-tell"


def test_gtt_at_half_of_the_ram_is_ttms_default():
    line = "amdgpu: 31968M of GTT memory ready"
    assert answer(("dmesg", line), ram=64, failed=True).cause == "ttm-gtt-cap"


BANK = "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"
STUCK = ("1-found", "2-vm-size", "3-gttsize")
LOWERED = {PAGES: f"{(16 << 30) // 4096}\n", BANK: f"heap_type 1\nsize_in_bytes {16 << 30}\n"}


@pytest.mark.parametrize(
    ("bundle", "cause"),
    [
        *((open_box(f"strix-halo-{name}"), "ttm-gtt-cap") for name in STUCK),
        (open_box("strix-halo-4-ttm"), "other"),
        (build.copied("strix-halo-1-found", LOWERED).writer.bundle(), "ttm-gtt-cap"),
    ],
)
def test_whoever_asks_gets_one_cause_and_likely_at_most_from_readings_that_were_filled_in(
    bundle, cause
):
    stack = ceilings(bundle)[0].decision
    judged = ceiling_answer(bundle)[0].decision
    assert (stack.cause, stack.confidence) == (judged.cause, judged.confidence) == (cause, "likely")


def test_the_same_layers_posted_as_text_decide_as_the_box_does():
    box = apu(pages_limit=20 * GIB)
    names = [item.source for item in box.items if item.source.startswith(("/sys", "/proc"))]
    lines = [("tool", name, box.read(name).text) for name in names]
    posted = decide(numbers_of(figures_of(lines), "apu", "6.18.2"))
    own = ceilings(box)[0].decision
    for name in ("pattern", "cause", "confidence", "binding_bytes"):
        assert getattr(posted, name) == getattr(own, name)


def test_torchs_total_of_a_message_completes_a_box_without_torch():
    box = apu(pages_limit=80 * GIB, leave_out=("torch",))
    assert ceiling_answer(box)[0].decision.cause == "other"
    assert ceiling_answer(box, message_total=48 * GIB)[0].decision.pattern == "hip_total"
    full = oom("2.00 GiB", "48.00 GiB", "1.00 GiB", "46.00 GiB", "500.00 MiB", backend="HIP")
    evidence = replace(evidence_from_message(full), bundle=box)
    seen = list(ceiling_observations(evidence, [], "apu"))
    assert "HIP reports 48.00 GiB" in seen[0].says
    assert len(seen) > 3 and not [row.says for row in seen if "this one decides" in row.says]


def test_a_message_about_the_card_beside_an_apu_says_nothing_of_the_apu():
    base = "/sys/class/drm/card1/device"
    card = {
        f"{base}/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n",
        f"{base}/vendor": "0x1002\n",
        f"{base}/device": "0x744c\n",
        f"{base}/mem_info_vram_total": f"{20 << 30}\n",
    }
    own = (("0000:c4:00.0", "0x1586"), ("0000:03:00.0", "0x744c"))
    bus = build.pci_rows(*((pci, "0x1002", device, "amdgpu") for pci, device in own))
    box = apu(files=card, tables={"pci_devices": bus}, leave_out=("torch",))
    assert {stack.kind for stack in ceilings(box)} >= {"apu"} and len(ceilings(box)) == 2
    assert ceiling_answer(box, message_total=int(19.98 * GIB))[0].decision.pattern == "ttm_default"


def test_unified_nvidia_memory_that_is_page_cache_is_not_called_used():
    found = ceiling_answer(gb10(59 << 20, 1 << 20), 119 << 30)[0].decision
    assert (found.pattern, found.cause) == ("page_cache", "metric-misreport")
    assert found.confidence == "likely"
    assert "MemAvailable" in found.step and "drop_caches" in found.step
    full = ceiling_answer(gb10(2 << 20, 1 << 20), 119 << 30)[0].decision
    assert (full.pattern, full.cause) == ("unified", "other")
    texts = (("/proc/meminfo", "MemFree: 1048576 kB\nMemAvailable: 62914560 kB"),)
    assert answer(*texts, kind="nvidia-unified").cause == "metric-misreport"


def nvidia_box(nodes, container, *more):
    box = build.Box("x", "recorded", "2026-01-01T00:00:00Z")
    own = ("0000:01:00.0", "0x10de", "0x2684", "nvidia")
    box.rows("pci_devices", build.pci_rows(own, *more))
    build.identity(box, container=container, groups=[(0, "root")], uid=0)
    build.access(box, nodes)
    row = {"status": "ok", "torch": "2.9.0+cu128", "cuda": "12.8", "hip": None, "device_count": 1}
    box.rows("torch", [row])
    return box.writer.bundle()


NODES = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"]


@pytest.mark.parametrize(
    ("nodes", "container", "driver"),
    [
        (NODES, "none", ""),
        (NODES, "none", "vfio-pci"),
        (NODES, "docker", "amdgpu"),
        (["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm"], "docker", "amdgpu"),
    ],
)
def test_the_processors_gpu_and_the_number_of_a_node_are_no_obstacle_to_cuda(
    nodes, container, driver
):
    small = ("0000:13:00.0", "0x1002", "0x164e", driver)
    assert obstacles(nvidia_box(nodes, container, small)) == ()


def test_the_vendor_of_a_message_says_whose_obstacles_count():
    box = nvidia_box(NODES, "docker", ("0000:13:00.0", "0x1002", "0x164e", "amdgpu"))
    assert [o.path for o in obstacles(box, "AMD")] == ["/dev/kfd"]
    assert obstacles(box, "NVIDIA") == ()


@pytest.mark.parametrize(
    "listing",
    [
        "Device 0: AMD Radeon Graphics, gfx1036 (0x1036)\n  Device 1: AMD Radeon RX 7900 XT, gfx1100 (0x1100)",
        "an iGPU gfx1036 is at device 0; the RX 7900 XT at device 1",
    ],
)
def test_a_listed_device_has_its_own_index(listing):
    assert [(row.index, row.kind) for row in device_list(listing)] == [(0, "apu"), (1, "card")]


def test_the_wrong_allocator_variable_is_no_ceiling():
    both = [
        {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "per_process_memory_fraction:0.9"},
        {"name": "PYTORCH_ALLOC_CONF", "value": "per_process_memory_fraction:0.25"},
    ]
    fraction = ceilings(apu(tables={"environment": both}))[0].row("fraction")
    assert fraction and fraction.native == "0.9"
    assert fraction.name.startswith("PYTORCH_CUDA_ALLOC_CONF")


def test_a_decision_is_confirmed_only_by_layers_that_a_machine_printed():
    layers = {**dict.fromkeys(("pages_limit", "kfd", "torch", "gtt"), 48 * GIB), "ram": 96 * GIB}
    assert decide(Numbers(**layers)).confidence == "confirmed"
    assert decide(Numbers(**layers, filled=("kfd",))).confidence == "likely"
    assert decide(Numbers(**layers, hearsay=("kfd",))).confidence == "likely"
    assert decide(Numbers(**layers, hearsay=("kfd", "pages_limit"))).confidence == "weak"
