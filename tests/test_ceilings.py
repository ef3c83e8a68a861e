"""Every row of the decision table on a constructed box, the four recorded states to the byte, and what must stay undecided."""

import pytest
from data_rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from ttm_boxes import DKMS, GIB, MIB, PCI, apu

from helpers.judge.binding import decide
from helpers.judge.ceilings import ceilings
from helpers.judge.numbers import Numbers, kfd_limit
from helpers.look.boxes import open_box

RAM = 96 * GIB
HALF = RAM // 2


def decision(bundle):
    return ceilings(bundle)[0].decision


@pytest.mark.parametrize(
    "name, pattern, binding_bytes, gtt, torch",
    read_rows("the recorded states are decided and true to the byte"),
)
def test_the_recorded_states_are_decided_and_true_to_the_byte(
    name, pattern, binding_bytes, gtt, torch
):
    stack = ceilings(open_box(name))[0]
    found = stack.decision
    n = stack.numbers
    assert (found.pattern, found.binding, found.binding_bytes) == (pattern, "ttm", binding_bytes)
    assert (n.gtt, n.kfd, n.torch) == (gtt, binding_bytes, torch)
    assert stack.numbers.ram == 134299025408 and stack.decision.confidence == "likely"


WANTED = {"files": {"/etc/modprobe.d/ttm.conf": "options ttm pages_limit=20971520\n"}}
AMDTTM = {"modules": DKMS, "module": "amdttm"}
OUT_OF_TREE = {**AMDTTM, "files": {"/sys/module/amdgpu/version": "6.14.14\n"}}
NO_POOL = ("/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties", "rocminfo")
CARVED = {"ram": 31 * GIB, "vram": 96 * GIB}
REST = 31 * GIB // 2


@pytest.mark.parametrize(
    ("box", "pattern", "binding", "size", "cause"),
    [
        ({}, "ttm_default", "ttm", HALF, "ttm-gtt-cap"),
        ({"gtt": 80 * GIB}, "gttsize_only", "ttm", HALF, "ttm-gtt-cap"),
        (WANTED, "not_taken", "ttm", HALF, "ttm-gtt-cap"),
        ({**AMDTTM, **WANTED}, "not_taken", "ttm", HALF, "ttm-gtt-cap"),
        ({"pages_limit": 80 * GIB, "torch": HALF}, "hip_total", "hip_total", HALF, "hsa-pool-cap"),
        (
            {"pages_limit": 80 * GIB, "torch": HALF, "free": 79 * GIB, "leave_out": NO_POOL},
            *("free_above_total", "hip_total", HALF, "hsa-pool-cap"),
        ),
        (
            {"pages_limit": 80 * GIB, "hsa": 40 * GIB},
            *("hsa_below_kfd", "hsa_pool", 40 * GIB, "hsa-pool-cap"),
        ),
        ({**CARVED, "kfd": 96 * GIB}, "carveout", "carveout", 96 * GIB, "carveout-only"),
        ({**CARVED, "kernel": "6.14.0-1016-oem"}, "old_kernel_half", "ttm", REST, "hsa-pool-cap"),
        ({**CARVED, **OUT_OF_TREE}, "old_kernel_half", "ttm", REST, "hsa-pool-cap"),
        (
            {"ram": 31 * GIB, "vram": 64 * GIB, "gtt": 100 * GIB},
            *("gtt_flip", "ttm", REST, "ttm-gtt-cap"),
        ),
        (
            {"kfd": 512 * MIB, "kernel": "6.8.0-60-generic"},
            *("old_kernel_carveout", "carveout", 512 * MIB, "carveout-only"),
        ),
        ({"kfd": 512 * MIB}, "carveout_odd", "carveout", 512 * MIB, "carveout-only"),
        ({"pages_limit": 80 * GIB}, "raised", "ttm", 80 * GIB, "other"),
        ({"pages_limit": 95 * GIB}, "beyond_kfd", "kfd_limit", kfd_limit(RAM, (6, 18)), "other"),
        ({"pages_limit": 20 * GIB}, "ttm_lowered", "ttm", 20 * GIB, "ttm-gtt-cap"),
    ],
)
def test_each_row_of_the_decision_table(box, pattern, binding, size, cause):
    found = decision(apu(**box))
    assert (found.pattern, found.binding) == (pattern, binding)
    assert (found.binding_bytes, found.cause) == (size, cause)


def test_the_same_number_has_four_causes_and_only_the_other_layers_tell_them_apart():
    same = [apu(), apu(gtt=80 * GIB), apu(pages_limit=80 * GIB, torch=HALF), apu(**WANTED)]
    assert {ceilings(bundle)[0].numbers.torch for bundle in same} == {HALF}
    assert len({decision(bundle).pattern for bundle in same}) == 4


def test_half_the_ram_alone_decides_nothing():
    found = decide(Numbers(torch=HALF, ram=RAM))
    assert (found.cause, found.binding) == ("cannot-tell", None)
    assert "KFD memory bank" in found.missing and "pages_limit" in found.missing


@pytest.mark.parametrize(
    "thread, numbers, kernel, pattern, cause", read_rows("the numbers of public threads")
)
def test_the_numbers_of_public_threads(thread, numbers, kernel, pattern, cause):
    found = decide(Numbers(**numbers, kernel=tuple(kernel) if kernel else None))
    assert (found.pattern, found.cause) == (pattern, cause), thread


def test_limit_and_carve_out_of_one_size_are_told_apart_by_kernel_and_gtt():
    def binding(**numbers):
        alike = dict.fromkeys(("pages_limit", "vram", "kfd", "torch"), HALF)
        return decide(Numbers(**alike, ram=RAM, **numbers)).binding

    assert binding() is None
    assert binding(kernel=(6, 14), gtt=HALF) == "ttm"
    assert binding(kernel=(6, 17), gtt=HALF) == "carveout"
    assert binding(kernel=(6, 17), gtt=HALF + GIB) == "ttm"


def test_without_the_kfd_bank_the_answer_is_at_most_likely():
    half = dict.fromkeys(("pages_limit", "gtt", "torch"), HALF)
    found = decide(Numbers(**half, vram=GIB, ram=RAM, kernel=(6, 17)))
    assert (found.pattern, found.confidence) == ("ttm_default", "likely")


def test_without_torchs_total_the_kernels_part_is_decided_and_the_rest_is_named_as_missing():
    found = decision(apu(leave_out=("torch",)))
    assert (found.pattern, found.confidence) == ("ttm_default", "confirmed")
    assert found.missing == ("torch total",)


def test_what_is_no_ceiling_is_named_as_that_with_its_own_unit():
    stack = ceilings(open_box("strix-halo-3-gttsize"))[0]
    rows = {row.name: row for row in stack.rows}
    vm, gtt, pool = (rows[n] for n in ("amdgpu.vm_size", "amdgpu.gttsize", "ttm.page_pool_size"))
    assert (vm.layer, vm.value.value) == (None, 131072 * GIB)
    assert (gtt.native, gtt.unit, gtt.layer) == ("122880", "MiB", None)
    assert pool.layer is None and "not a limit" in pool.note
    assert rows["ttm.pages_limit"].layer == "ttm" and rows["ttm.pages_limit"].unit == "pages"
    assert all(row.value.source or row.value.why for row in stack.rows)


def test_only_the_module_that_amdgpu_uses_is_a_ceiling():
    other = {"/sys/module/ttm/parameters/pages_limit": "99\n"}
    stack = ceilings(apu(**AMDTTM, pages_limit=80 * GIB, files=other))[0]
    rows = {row.name: row for row in stack.rows}
    assert rows["amdttm.pages_limit"].layer == "ttm" and rows["ttm.pages_limit"].layer is None
    assert "amdgpu uses amdttm" in rows["ttm.pages_limit"].note


def test_what_is_configured_and_not_live_is_pending_with_its_place():
    files = {"/etc/modprobe.d/a.conf": "# mine\noptions ttm pages_limit=20971520\n"}
    row = ceilings(apu(files=files))[0].row("ttm")
    assert (row.pending_bytes, row.pending_source) == (80 * GIB, "/etc/modprobe.d/a.conf:2")


def test_a_fraction_of_the_allocator_binds_below_everything_else():
    share = {"name": "PYTORCH_HIP_ALLOC_CONF", "value": "per_process_memory_fraction:0.25"}
    found = decision(apu(tables={"environment": [share]}))
    assert (found.binding, found.binding_bytes) == ("fraction", HALF // 4)


def test_the_fraction_is_taken_from_the_variable_that_wins_and_only_where_torch_knows_the_key():
    environment = [
        {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "per_process_memory_fraction:0.5"},
        {"name": "PYTORCH_ALLOC_CONF", "value": "per_process_memory_fraction:0.25"},
    ]
    found = ceilings(apu(tables={"environment": environment}))[0].row("fraction")
    assert found.value.value == HALF // 2 and found.name.startswith("PYTORCH_CUDA_ALLOC_CONF")


def test_the_limits_of_process_and_control_group_stand_in_the_stack():
    locked = {"name": "memlock", "soft": 8 * MIB, "hard": 8 * MIB, "unit": "bytes"}
    opened = {"name": "nofile", "soft": 1024, "hard": 4096, "unit": "count"}
    tables = {"limits": [locked, opened]}
    files = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": f"{72 * GIB}\n"}
    stack = ceilings(apu(tables=tables, files=files))[0]
    sizes = [stack.row(layer).value.value for layer in ("ulimit", "cgroup")]
    assert sizes == [8 * MIB, 72 * GIB]
    assert next(row for row in stack.rows if row.name == "ulimit nofile").value.value == 1024
    assert stack.decision.binding == "ttm", "a control group does not cap hipMalloc on an APU"


@pytest.mark.parametrize(
    "name, pattern", read_rows("a box that ttm does not limit is told what applies")
)
def test_a_box_that_ttm_does_not_limit_is_told_what_applies(name, pattern):
    for stack in ceilings(open_box(name)):
        assert (stack.decision.pattern, stack.decision.binding) == (pattern, None)
        assert not any(row.layer in ("ttm", "carveout", "gtt") for row in stack.rows)


def test_an_apu_stands_before_a_card_in_the_same_box():
    card = "/sys/class/drm/card1/device"
    files = {
        f"{card}/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n",
        f"{card}/vendor": "0x1002\n",
        f"{card}/mem_info_vram_total": f"{20 * GIB}\n",
    }
    assert [stack.pci for stack in ceilings(apu(files=files))] == [PCI, "0000:03:00.0"]


def test_under_wsl_windows_is_named_and_no_kernel_setting():
    who = {"uid": 0, "gid": 0, "groups": [], "wsl": True, "container": "none"}
    found = decision(apu(tables={"identity": [who]}))
    assert found.pattern == "wsl" and ".wslconfig" in found.says and found.cause == "cannot-tell"


def test_kfds_limit_by_generation():
    assert kfd_limit(134299025408, (6, 17)) == 134299025408 - (134299025408 >> 6) - (3 << 29)
    assert f"{kfd_limit(134299025408, (6, 17)) / GIB:.1f}" == "121.6"
    assert kfd_limit(64 * GIB, (6, 1)) == 60 * GIB
    assert kfd_limit(2 * GIB, (6, 17)) == (2 * GIB - (2 * GIB >> 6)) // 2
    either = [kfd_limit(64 * GIB, kernel) for kernel in ((6, 1), (6, 17))]
    assert kfd_limit(64 * GIB, None) == min(either)


SIZES = st.none() | st.integers(0, 1 << 41)
SIZED = "pages_limit gtt vram kfd hsa torch free ram wanted".split()
KERNELS = st.none() | st.tuples(st.integers(5, 7), st.integers(0, 20))


@settings(max_examples=200)
@given(st.tuples(*[SIZES] * len(SIZED)), KERNELS, st.booleans())
def test_any_numbers_give_a_decision_that_keeps_to_what_was_read(sizes, kernel, out_of_tree):
    n = Numbers(**dict(zip(SIZED, sizes, strict=True)), kernel=kernel, out_of_tree=out_of_tree)
    found = decide(n)
    assert found.says and found.step
    if found.binding is None:
        answer = (found.cause, found.confidence)
        assert answer in (("cannot-tell", "weak"), ("metric-misreport", "likely"))
    else:
        read = (n.torch, n.kfd, n.hsa, kfd_limit(n.ram or 0, n.kernel))
        assert found.binding_bytes in read
    assert found.confidence != "confirmed" or n.kfd is not None or n.hsa is not None
