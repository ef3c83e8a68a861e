"""Which GPU may be loaded, how a child comes to see it alone, and why it is left alone."""

import os

import pytest

from helpers.ground.shapes import not_allowed, not_available, seen
from helpers.ground.units import GIB
from helpers.look.gpus import Gpu, Pool
from helpers.look.holders import Holder
from helpers.look.kernel_log import Event
from helpers.trials.targets import Target, environment, gate, gpu_targets

FIRST = "0000:03:00.0"
SECOND = "0000:83:00.0"
UNKNOWN = not_available("not captured", "bytes", "test")
HIDDEN = not_allowed("another user's process", "bytes", "test")


def gib(count):
    return seen(int(count * GIB), "bytes", "test")


def card(pci=FIRST, driver="amdgpu", holders=(), unattributed=None, pools=(), **indices):
    held = [Holder(pci, pid, name, 0, "S", size, "fdinfo", "") for pid, name, size in holders]
    used = [Pool(pci, "sysfs VRAM", gib(20), size, UNKNOWN) for size in pools]
    spaces = {name.replace("_", " "): number for name, number in indices.items()}
    rest = gib(0.1) if unattributed is None else unattributed
    name = seen("a card", "text", "test")
    return Gpu(pci, "AMD", name, driver, False, spaces, tuple(used), tuple(held), rest, ())


def logged(kind, when="12:03:11", pci=FIRST, boot=0):
    at = seen(when, "text" if isinstance(when, str) else "count", "dmesg")
    return Event(kind, at, boot, pci, None, "", "", {}, "", "dmesg", 1, 1, at)


@pytest.mark.parametrize(
    ("holders", "says"),
    [
        (
            [(77, "Xorg", 0.2), (42, "python3", 20.1)],
            "python3 (42) holds 20.10 GiB, and 1 other holds some",
        ),
        ([(1, "a", 1), (2, "b", 2), (3, "c", 3)], "c (3) holds 3.00 GiB, and 2 others hold some"),
        ([(9, "", HIDDEN)], "a process (9) holds memory (not allowed: another user's process)"),
        ([(9, "vllm", 2), (9, "vllm", 3)], "vllm (9) holds 3.00 GiB"),
        ([(9, "rocm-smi", 0)], ""),
        ([], ""),
    ],
    ids=["largest", "three", "unknown-amount", "two-sources", "only-opened", "free"],
)
def test_a_holder_keeps_the_load_off_and_is_named(holders, says):
    sizes = [(pid, name, size if size is HIDDEN else gib(size)) for pid, name, size in holders]
    assert gate(card(holders=sizes), []) == (f"not run because {says}" if says else "")


@pytest.mark.parametrize(
    "hidden",
    [{"unattributed": gib(19.5)}, {"unattributed": UNKNOWN, "pools": (gib(0.1), gib(19.5))}],
)
def test_memory_in_use_without_a_visible_process_keeps_the_load_off(hidden):
    says = "19.50 GiB is used, by no process that can be seen from here"
    assert gate(card(**hidden), []) == f"not run because {says}"


def test_nothing_known_of_the_use_is_no_holder_seen():
    assert gate(card(unattributed=UNKNOWN, pools=(UNKNOWN,)), []) == ""


@pytest.mark.parametrize(
    "kind", ["gpu_reset", "vram_lost", "ring_timeout", "mes_hang", "vm_fault", "xid"]
)
def test_a_fault_in_the_kernel_log_keeps_the_load_off(kind):
    says = f"not run because the kernel log shows {kind.replace('_', ' ')}"
    assert gate(card(), [logged(kind, "11:00:00"), logged(kind)]) == says + " at 12:03:11"
    assert gate(card(), [logged(kind, 812.4)]) == says + " 812.4 s after boot"
    assert gate(card(), [logged(kind, pci="")]) == says + " at 12:03:11"


def test_a_fault_of_another_card_or_boot_and_an_event_that_is_no_fault_do_not():
    others = [logged("gpu_reset", pci=SECOND), logged("gpu_reset", boot=-1)]
    assert gate(card(), [*others, logged("oom_killer", pci="")]) == ""


HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
BLIND = "not run because torch does not see this GPU"


@pytest.mark.parametrize(
    ("driver", "first", "second", "environ", "values"),
    [
        ("amdgpu", {"torch": "1", "kfd_node": "1"}, {"torch": "0", "kfd_node": "2"}, {}, "10"),
        ("amdgpu", {"HIP": "1"}, {"HIP": "0"}, {}, "10"),
        ("amdgpu", {"kfd_node": "10"}, {"kfd_node": "2"}, {}, "10"),
        ("nvidia", {"torch": "1"}, {"torch": "0"}, {}, "01"),
        ("amdgpu", {}, {"torch": "0"}, {HIP: "1"}, "-1"),
        ("amdgpu", {}, {"torch": "0"}, {CUDA: ""}, "--"),
        ("amdgpu", {}, {"torch": "0"}, {}, "-0"),
        ("nvidia", {"torch": "1"}, {"torch": "0"}, {CUDA: "5,3"}, "35"),
    ],
    ids=["torch", "hip", "kfd-order", "pci-order", "within", "none-visible", "unseen", "listed"],
)
def test_a_card_takes_the_number_by_which_its_runtime_knows_it(
    driver, first, second, environ, values
):
    two = [card(driver=driver, **first), card(SECOND, driver, **second)]
    found = gpu_targets(two, environ=environ)
    assert {one.visible_variable for one in found if one.visible_variable} == {
        HIP if driver == "amdgpu" else CUDA
    }
    assert "".join(one.visible_value or "-" for one in found[:2]) == values
    for one in found[:2]:
        assert one.refused.startswith(BLIND) if not one.visible_value else one.refused == ""
        assert one.several
    if HIP in environ:
        assert found[0].refused == f"{BLIND} ({HIP} is set to '1')"


def test_a_box_without_a_gpu_for_torch_is_loaded_on_its_cpu():
    assert gpu_targets([]) == [Target()]
    found = gpu_targets([card(driver="i915")])
    assert [one.pci for one in found] == [FIRST, "cpu"]
    assert found[0].refused == "not run because torch has no use for its driver i915"


def test_one_gpu_can_be_asked_for_by_its_address():
    two = [card(torch="0", holders=[(5, "vllm", gib(9))]), card(SECOND, torch="1")]
    assert [one.pci for one in gpu_targets(two, only=SECOND)] == [SECOND]
    assert gpu_targets(two)[0].refused == "not run because vllm (5) holds 9.00 GiB"
    assert gpu_targets(two, only=FIRST)[0].refused == ""
    with pytest.raises(ValueError, match=f"this box has {FIRST}, {SECOND}"):
        gpu_targets(two, only="0000:01:00.0")


def test_a_child_sees_its_target_alone(monkeypatch):
    monkeypatch.setenv(CUDA, "1")
    amd = environment(Target(FIRST, HIP, "0", "cuda:0"))
    assert amd[HIP] == "0" and CUDA not in amd
    nvidia = Target(FIRST, CUDA, "1", "cuda:0")
    assert environment(nvidia)[CUDA] == "1" and "CUDA_DEVICE_ORDER" not in environment(nvidia)
    monkeypatch.delenv(CUDA)
    assert environment(nvidia)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in environment() or "CUDA_DEVICE_ORDER" in os.environ


def test_settings_under_which_no_limit_holds_reach_no_child(monkeypatch):
    kinds = ("NO_CUDA_MEMORY_CACHING", "CUDA_ALLOC_CONF", "HIP_ALLOC_CONF", "ALLOC_CONF")
    for kind in kinds:
        monkeypatch.setenv(f"PYTORCH_{kind}", "1")
    assert not [name for name in environment() if name.startswith("PYTORCH_")]
