"""KFD topology and processes. Samples: a CPU node, gfx1100, gfx1151 (APU), gfx90a, gfx942 in two partitions, a refused node;
processes with memory, without, gone from /proc, with further contexts, and of kernels with and without a pasid file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import MISSING, REFUSED, box, folder

from helpers.look import kfd

NODES = "/sys/class/kfd/kfd/topology/nodes"
PROC = "/sys/class/kfd/kfd/proc"
GIB = 1 << 30

CPU = {
    **folder(
        f"{NODES}/0",
        gpu_id="0\n",
        name="\n",
        properties="cpu_cores_count 24\nsimd_count 0\nmem_banks_count 1\n"
        "gfx_target_version 0\ndrm_render_minor 0\n",
    ),
    f"{NODES}/0/mem_banks/0/properties": "heap_type 0\nsize_in_bytes 67330535424\nflags 0\nwidth 64\nmem_clk_max 5600\n",
}
NAVI = {
    **folder(
        f"{NODES}/1",
        gpu_id="51142\n",
        name="navi31\n",
        properties="cpu_cores_count 0\nsimd_count 168\n"
        "gfx_target_version 110000\nvendor_id 4098\ndevice_id 29772\nlocation_id 768\ndomain 0\n"
        "drm_render_minor 128\nhive_id 0\nunique_id 1234567890123456789\n",
    ),
    f"{NODES}/1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {20 * GIB}\nflags 0\nwidth 320\nmem_clk_max 1249\n",
}


def test_a_cpu_node_and_a_gpu_node_are_told_apart_and_the_gpu_is_keyed_by_pci():
    cpu, gpu = kfd.nodes(box({**NAVI, **CPU}))
    assert (cpu.node, cpu.gfx, cpu.pci) == (0, "", "")
    assert (gpu.node, gpu.gfx, gpu.pci, gpu.gpu_id.value) == (1, "gfx1100", "0000:03:00.0", 51142)
    assert gpu.framebuffer.value == 20 * GIB
    assert gpu.framebuffer.source == f"{NODES}/1/mem_banks/0/properties"
    assert cpu.framebuffer.why == "no framebuffer bank"


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (110501, "gfx1151"),
        (110000, "gfx1100"),
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90008, "gfx908"),
        (120001, "gfx1201"),
        (100300, "gfx1030"),
        (80003, "gfx803"),
        (0, ""),
        (-1, ""),
        (10**9, ""),
    ],
)
def test_target_versions_become_names_as_compilers_write_them(version, name):
    assert kfd.gfx_name(version) == name


@pytest.mark.parametrize(
    ("location", "domain", "pci"),
    [
        (768, 0, "0000:03:00.0"),
        (50432, 0, "0000:c5:00.0"),
        (34304, 1, "0001:86:00.0"),
        (0x30000500, 0, "0000:05:00.0"),
        (0x0A1B, 0x10000, "10000:0a:03.3"),
    ],
)
def test_location_and_domain_become_a_pci_address_whatever_partition_the_upper_bits_name(
    location, domain, pci
):
    text = f"simd_count 4\nlocation_id {location}\ndomain {domain}\n"
    (node,) = kfd.nodes(box(folder(f"{NODES}/3", gpu_id="7\n", properties=text)))
    assert node.pci == pci


def test_the_nodes_of_a_split_instinct_gpu_share_its_address_where_the_function_holds_the_node():
    split = {
        f"{NODES}/{n}/properties": f"simd_count 304\ngfx_target_version 90402\nlocation_id {0x500 + n}\ndomain 0\n"
        for n in (2, 3)
    }
    assert [node.pci for node in kfd.nodes(box(split))] == ["0000:05:00.0"] * 2
    other = {
        f"{NODES}/2/properties": "simd_count 8\ngfx_target_version 110000\nlocation_id 1282\ndomain 0\n"
    }
    assert [node.pci for node in kfd.nodes(box(other))] == ["0000:05:00.2"]
    card = {"/sys/class/drm/card0/device/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:05:00.0\n"}
    assert [node.pci for node in kfd.nodes(box({**other, **card}))] == ["0000:05:00.0"]


def test_a_node_masked_from_the_container_is_a_gpu_that_is_not_allowed():
    (node,) = kfd.nodes(box(folder(f"{NODES}/2", gpu_id=REFUSED, name=REFUSED, properties=REFUSED)))
    assert node.gpu_id.status == "not_allowed"
    assert (node.gfx, node.pci, node.framebuffer.status) == ("", "", "not_available")


def test_nodes_come_in_number_order_and_without_the_topology_there_are_none():
    many = {f"{NODES}/{n}/gpu_id": f"{n}\n" for n in (10, 2, 1)}
    assert [node.node for node in kfd.nodes(box(many))] == [1, 2, 10]
    assert kfd.nodes(box({f"{NODES}/*/properties": MISSING})) == ()


def test_a_bank_without_a_size_says_so():
    (node,) = kfd.nodes(
        box(
            {
                f"{NODES}/1/gpu_id": "5\n",
                f"{NODES}/1/mem_banks/0/properties": "heap_type 2\nflags x\n",
                f"{NODES}/1/mem_banks/1/properties": REFUSED,
            }
        )
    )
    assert node.framebuffer.status == "not_available" and "size_in_bytes" in node.framebuffer.why


RUNNING = {
    **folder(
        f"{PROC}/4821",
        pasid="32771\n",
        vram_51142=f"{9 * GIB}\n",
        vram_7001="0\n",
        sdma_51142="350\n",
    ),
    f"{PROC}/4821/queues/0/gpuid": "51142\n",
    f"{PROC}/4821/queues/1/gpuid": "51142\n",
    f"{PROC}/4821/queues/2/gpuid": "7001\n",
    **folder(f"{PROC}/977", vram_51142="0\n", vram_7001="0\n"),
}


def test_each_process_has_its_bytes_by_gpu():
    idle, busy = kfd.processes(
        box(RUNNING, processes=[{"pid": 977, "name": "monitor"}, {"pid": 1, "name": "init"}])
    )
    assert (busy.pid, idle.pid) == (4821, 977)
    assert {gpu: reading.value for gpu, reading in busy.vram.items()} == {7001: 0, 51142: 9 * GIB}
    assert busy.vram[51142].source == f"{PROC}/4821/vram_51142"
    assert all(reading.ok and reading.value == 0 for reading in idle.vram.values())


def test_further_contexts_are_added_and_one_that_is_refused_leaves_no_sum():
    made = box(
        {
            f"{PROC}/5/vram_8": "100\n",
            f"{PROC}/5/context_1/vram_8": "20\n",
            f"{PROC}/5/context_12/vram_8": "3\n",
            f"{PROC}/6/vram_8": "100\n",
            f"{PROC}/6/context_1/vram_8": REFUSED,
        }
    )
    whole, broken = kfd.processes(made)
    assert whole.vram[8].value == 123
    assert whole.vram[8].source.count(" + ") == 2
    assert broken.vram[8].status == "not_allowed"


def test_folders_of_kfd_proc_that_are_no_process_are_passed_over():
    assert kfd.processes(
        box({f"{PROC}/*/vram_*": MISSING, f"{PROC}/self/vram_1": "5\n", f"{PROC}/7/vram_x": "5\n"})
    ) == (kfd.KfdProcess(7, {}),)


def test_the_version_of_an_out_of_tree_driver():
    assert kfd.driver_version(box({"/sys/module/amdgpu/version": "6.14.14\n"})).value == "6.14.14"
    assert not kfd.driver_version(box()).ok


@settings(max_examples=50, deadline=None)
@given(
    st.text()
    | st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "simd_count",
                    "location_id",
                    "domain",
                    "gfx_target_version",
                    "drm_render_minor",
                    "size_in_bytes",
                    "heap_type",
                ]
            ),
            st.integers() | st.text(max_size=5),
        ).map(lambda p: f"{p[0]} {p[1]}")
    ).map("\n".join)
)
def test_any_text_of_a_node_or_bank_is_read_without_an_error(text):
    made = box(
        {
            f"{NODES}/1/gpu_id": text[:30],
            f"{NODES}/1/properties": text,
            f"{NODES}/1/mem_banks/0/properties": text,
            f"{PROC}/1/vram_5": text,
        }
    )
    assert len(kfd.nodes(made)) == 1
    assert len(kfd.processes(made)) == 1
    assert isinstance(kfd.nodes(made)[0].framebuffer.show(), str)
