"""Functional checks: who may be checked, what each failure says, and that a child which dies or hangs costs one check only."""

import os
import signal
import subprocess
import sys
import threading
import time
import types
import venv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import child
from helpers.child import watch
from helpers.load.checks import CHECKS, DEFAULT, LOOKS, PAIRS, Limits, as_rows, run_checks
from helpers.load.targets import Target, gate, gpu_targets
from helpers.look.gpus import Gpu, Holder, Pool
from helpers.look.kernel_log import Event
from helpers.look.reading import GIB, MIB, not_allowed, not_available, seen
from helpers.torchside import checks as torch_checks
from helpers.torchside.device import (
    Device,
    Failed,
    NotRun,
    gpu_trouble,
    host_available_bytes,
    pci_address,
    wrong_card,
)
from helpers.torchside.ladder import STEP_BYTES, climb, stop_bytes

PROGRAMS = Path(__file__).parent / "programs"
MISBEHAVE = [sys.executable, str(PROGRAMS / "misbehave.py")]
GPU = Target("0000:03:00.0", "HIP_VISIBLE_DEVICES", "0", "cuda:0", several=True)


def logged(kind, when="12:03:11", pci="0000:03:00.0", boot=0):
    at = seen(when, "text" if isinstance(when, str) else "count", "dmesg")
    return Event(kind, at, boot, pci, None, "", "", {}, "", "dmesg", 1, 1, at)


def gib(count):
    return seen(int(count * GIB), "bytes", "test")


UNKNOWN = not_available("not captured", "bytes", "test")


def card(pci="0000:03:00.0", driver="amdgpu", holders=(), unattributed=None, pools=(), **indices):
    held = tuple(
        Holder(pci, pid, name, 1000, "S", memory, "DRM fdinfo", "") for pid, name, memory in holders
    )
    return Gpu(
        pci,
        "AMD",
        seen("a card", "text", "test"),
        driver,
        False,
        {k.replace("_", " "): v for k, v in indices.items()},
        tuple(Pool(pci, "sysfs VRAM", gib(20), used, UNKNOWN) for used in pools),
        held,
        gib(0.1) if unattributed is None else unattributed,
        (),
    )


def fake(monkeypatch, words):
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS / "fake_torch"))
    monkeypatch.setenv("FAKE_TORCH", words)


def by_name(results):
    return {result.check: result for result in results}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Who may be checked.


def test_a_free_gpu_may_be_checked():
    assert gate(card(), []) == ""


def test_a_holder_keeps_the_checks_off_and_is_named():
    held = card(holders=[(77, "Xorg", gib(0.2)), (4242, "python3", gib(20.1)), (9, "vllm", gib(0))])
    assert (
        gate(held, []) == "not run because python3 (4242) holds 20.10 GiB, and 1 other holds some"
    )
    assert gate(held, [], force=True) == ""


def test_a_process_that_only_opened_the_device_holds_nothing():
    assert gate(card(holders=[(9, "rocm-smi", gib(0))]), []) == ""


def test_a_holder_of_an_unknown_amount_counts_as_a_holder():
    held = card(holders=[(9, "", not_allowed("another user's process", "bytes", "test"))])
    assert (
        gate(held, [])
        == "not run because a process (9) holds memory (not allowed: another user's process)"
    )


def test_one_process_seen_by_two_sources_is_one_holder():
    assert (
        gate(card(holders=[(9, "vllm", gib(2)), (9, "vllm", gib(3))]), [])
        == "not run because vllm (9) holds 3.00 GiB"
    )


@pytest.mark.parametrize(
    "hidden",
    [{"unattributed": gib(19.5)}, {"unattributed": UNKNOWN, "pools": (gib(0.1), gib(19.5))}],
)
def test_memory_in_use_without_a_visible_process_keeps_the_checks_off(hidden):
    assert (
        gate(card(**hidden), [])
        == "not run because 19.50 GiB is used, by no process that can be seen from here"
    )


def test_nothing_known_of_the_use_is_no_holder_seen():
    assert gate(card(unattributed=UNKNOWN, pools=(UNKNOWN,)), []) == ""


@pytest.mark.parametrize(
    "kind", ["gpu_reset", "vram_lost", "ring_timeout", "mes_hang", "vm_fault", "xid"]
)
def test_a_fault_in_the_kernel_log_keeps_the_checks_off(kind):
    says = f"not run because the kernel log shows {kind.replace('_', ' ')}"
    assert gate(card(), [logged(kind, "11:00:00"), logged(kind)]) == says + " at 12:03:11"
    assert gate(card(), [logged(kind, 812.4)]) == says + " 812.4 s after boot"
    assert gate(card(), [logged(kind)], force=True) == ""


def test_a_fault_of_another_card_or_boot_and_an_event_that_is_no_fault_do_not():
    others = [
        logged("gpu_reset", pci="0000:83:00.0"),
        logged("gpu_reset", boot=-1),
        logged("oom_killer", pci=""),
    ]
    assert gate(card(), others) == ""


def test_a_fault_that_names_no_card_counts_for_every_card():
    assert "ring timeout" in gate(card(), [logged("ring_timeout", pci="")])


# How a child comes to see one GPU alone.


def values(gpus, **environ):
    return [
        (t.visible_variable, t.visible_value, t.refused) for t in gpu_targets(gpus, environ=environ)
    ]


def test_rocm_cards_take_torchs_own_number():
    two = [card(torch="1", kfd_node="1"), card("0000:83:00.0", torch="0", kfd_node="2")]
    assert values(two) == [("HIP_VISIBLE_DEVICES", "1", ""), ("HIP_VISIBLE_DEVICES", "0", "")]


def test_without_torchs_number_rocm_counts_in_the_order_of_kfd_nodes():
    two = [card(kfd_node="10"), card("0000:83:00.0", kfd_node="2")]
    assert [value for _, value, _ in values(two)] == ["1", "0"]


def test_cuda_cards_count_in_pci_order_whatever_order_torch_has():
    two = [card(driver="nvidia", torch="1"), card("0000:83:00.0", driver="nvidia", torch="0")]
    assert values(two) == [("CUDA_VISIBLE_DEVICES", "0", ""), ("CUDA_VISIBLE_DEVICES", "1", "")]


def test_a_choice_made_by_the_variable_is_kept_within():
    two = [card(), card("0000:83:00.0", torch="0")]
    assert values(two, HIP_VISIBLE_DEVICES="1") == [
        (
            "HIP_VISIBLE_DEVICES",
            "",
            "not run because torch does not see this GPU (HIP_VISIBLE_DEVICES is set to '1')",
        ),
        ("HIP_VISIBLE_DEVICES", "1", ""),
    ]
    assert [refused != "" for _, _, refused in values(two, CUDA_VISIBLE_DEVICES="")] == [True, True]


def test_a_box_without_a_gpu_for_torch_is_checked_on_its_cpu():
    assert gpu_targets([]) == [Target()]
    found = gpu_targets([card(driver="i915")])
    assert [t.pci for t in found] == ["0000:03:00.0", "cpu"]
    assert found[0].refused == "not run because torch has no use for its driver i915"


def test_one_gpu_can_be_asked_for_by_its_address():
    two = [card(torch="0", holders=[(5, "vllm", gib(9))]), card("0000:83:00.0", torch="1")]
    assert [t.pci for t in gpu_targets(two, only="0000:83:00.0")] == ["0000:83:00.0"]
    assert (
        gpu_targets(two, only="0000:03:00.0")[0].refused
        == "not run because vllm (5) holds 9.00 GiB"
    )
    assert gpu_targets(two, only="0000:03:00.0", force=True)[0].refused == ""
    with pytest.raises(ValueError, match="this box has 0000:03:00.0, 0000:83:00.0"):
        gpu_targets(two, only="0000:01:00.0")


# On the CPU, with the real torch.


def test_on_a_box_without_a_gpu_the_checks_run_on_the_cpu_and_say_so():
    heard = []
    results = run_checks(sys.executable, [Target()], on_result=heard.append)
    assert sorted(heard, key=results.index) == results
    assert {result.device for result in results} == {"cpu"}
    assert as_rows(results) == [
        ["GPU", "check", "state", "says"],
        ["cpu", "enumeration", "passed", "torch works on the CPU"],
        ["cpu", "alone", "not_run", "not run because it is about GPUs and this is the CPU"],
        ["cpu", "matmul_fp32", "passed", "equal to the CPU reference within 1.5e-05"],
        ["cpu", "matmul_bf16", "passed", "equal to the CPU reference within 7.8e-03"],
        [
            "cpu",
            "network",
            "passed",
            "loss and gradients are finite and equal to the CPU's within 1.0e-04",
        ],
        ["cpu", "copy_pageable", "passed", "16 MiB there and back are bit equal"],
        [
            "cpu",
            "copy_pinned",
            "not_run",
            "not run because pinned memory is about GPUs and this is the CPU",
        ],
    ]
    named = by_name(results)
    assert 0 < named["matmul_fp32"].max_error <= 2**-16 < named["matmul_bf16"].max_error
    assert named["network"].peak_bytes.status == "not_available"
    assert "1.5e-05" in as_rows(results, people=True)[3][3]


def test_a_wrong_product_a_hang_and_a_crash_cost_one_check_each(monkeypatch):
    fake(monkeypatch, "wrong-product hangs-in-product dies-in-network")
    results = by_name(run_checks(sys.executable, [Target()], limits=Limits(check_s=3, start_s=120)))
    states = {name: result.state for name, result in results.items()}
    assert states == {
        "enumeration": "passed",
        "alone": "not_run",
        "matmul_fp32": "timed_out",
        "matmul_bf16": "failed",
        "network": "crashed",
        "copy_pageable": "passed",
        "copy_pinned": "not_run",
    }
    hung, wrong, died = results["matmul_fp32"], results["matmul_bf16"], results["network"]
    assert hung.says == "the child did not end within 3 s"
    assert "odd_product" in hung.last_words and "state S" in hung.stacks
    assert (
        wrong.says == "differs from the CPU reference by more than 7.8e-03"
        and wrong.max_error > 2**-7
    )
    assert died.says == "the child died of SIGSEGV"
    assert "Segmentation fault" in died.message and "in network" in died.last_words


def test_two_processes_sum_on_the_cpu_and_the_other_pair_checks_say_why_not():
    results = by_name(run_checks(sys.executable, [Target()], PAIRS))
    assert (
        results["all_reduce_gloo"].says == "the sum over two processes is right in both, on the CPU"
    )
    assert {results[name].says for name in PAIRS if name != "all_reduce_gloo"} == {
        "not run because this box has no GPU"
    }
    only = by_name(run_checks(sys.executable, [GPU], PAIRS))
    assert {only[name].says for name in PAIRS} == {"not run because this box has one GPU"}


def test_the_ladder_finds_where_allocation_is_refused(monkeypatch):
    fake(monkeypatch, "little-address-space")
    result = run_checks(sys.executable, [Target()], ["ladder"], Limits(to_the_limit=True))[0]
    assert result.state == "passed", result.message
    assert 128 * MIB <= result.figures["largest_bytes"] <= 600 * MIB
    assert "GiB was refused" in result.says or "stopped by itself" in result.says


# When torch is missing or broken.


def test_a_python_without_torch_is_said_once_per_check(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    results = run_checks(str(tmp_path / "bare" / "bin" / "python"), [Target()])
    assert [(r.state, r.says) for r in results] == [
        ("not_run", "not run because this Python has no torch")
    ] * len(DEFAULT)


def test_no_interpreter_at_all_is_not_an_error():
    for python in ("", "/nowhere/python"):
        results = run_checks(python, [GPU], [*DEFAULT, "ladder"])
        assert {r.says for r in results} == {"not run because no Python with torch was found"}


def test_a_torch_that_cannot_be_imported_gives_its_reason_without_a_traceback(monkeypatch):
    fake(monkeypatch, "no-library")
    first, *rest = run_checks(sys.executable, [GPU])
    assert (first.check, first.state, first.says) == (
        "enumeration",
        "failed",
        "torch cannot be imported",
    )
    assert first.message.startswith("OSError: libamdhip64.so.6: cannot open shared object file")
    assert {(r.state, r.says) for r in rest} == {
        ("not_run", "not run because torch cannot be imported")
    }


def test_a_torch_that_dies_at_import_is_tried_once(monkeypatch):
    fake(monkeypatch, "dies-at-import")
    first, *rest = run_checks(sys.executable, [GPU])
    assert (first.state, first.says) == ("crashed", "torch did not start: the child died of SIGILL")
    assert {r.says for r in rest} == {"not run because torch did not start"}


def test_a_cpu_build_on_a_box_with_a_gpu_says_so():
    first, *rest = run_checks(sys.executable, [GPU])
    assert (first.state, first.says) == ("failed", "this torch is a CPU build and cannot use a GPU")
    assert {r.says for r in rest} == {
        "not run because this torch is a CPU build and cannot use a GPU"
    }


# On a GPU (the CPU under its name).


def test_on_a_gpu_memory_is_limited_and_counted(monkeypatch):
    fake(monkeypatch, "gpu raises-in-network")
    results = by_name(run_checks(sys.executable, [GPU], limits=Limits(gpu_s=60)))
    assert {n: r.state for n, r in results.items() if r.state != "passed"} == {"network": "failed"}
    assert results["enumeration"].says == "torch sees Fake XT with 20.00 GiB"
    assert results["alone"].says == "torch sees this GPU and no other"
    assert results["network"].message == "RuntimeError: HIP error: invalid device function"
    pinned = results["copy_pinned"]
    assert (pinned.peak_bytes.value, pinned.peak_allocated_bytes.value) == (20 * MIB, 8 * MIB)
    assert results["enumeration"].peak_bytes.status == "not_available"


def test_a_card_that_is_not_the_one_asked_for_is_not_touched(monkeypatch):
    fake(monkeypatch, "gpu")
    results = by_name(
        run_checks(sys.executable, [replace(GPU, visible_value="1")], limits=Limits(gpu_s=60))
    )
    wrong = "torch sees 0000:83:00.0 here and should see 0000:03:00.0"
    assert (results["alone"].state, results["alone"].says) == ("failed", wrong)
    assert {results[name].says for name in DEFAULT if name not in LOOKS} == {
        "not run because " + wrong
    }


def test_a_hang_uses_up_the_time_of_its_gpu_and_the_rest_is_not_run(monkeypatch):
    fake(monkeypatch, "gpu hangs-in-product")
    results = by_name(run_checks(sys.executable, [GPU], limits=Limits(gpu_s=1)))
    assert (results["matmul_fp32"].state, results["matmul_fp32"].says) == (
        "timed_out",
        "the child did not end within 1 s",
    )
    assert {results[name].says for name in DEFAULT[3:]} == {
        "not run because the 1 s that the checks may take of one GPU are used up"
    }


def test_two_gpus_are_checked_as_a_pair(monkeypatch):
    fake(monkeypatch, "gpu")
    other = replace(GPU, pci="0000:83:00.0", visible_value="1")
    results = run_checks(
        sys.executable, [GPU, other], ["peer_access", "pair_copy", "all_reduce_nccl"]
    )
    assert as_rows(results)[1:] == [
        [
            "0000:03:00.0 and 0000:83:00.0",
            "peer_access",
            "passed",
            "only the first can reach the other's memory",
        ],
        [
            "0000:03:00.0 and 0000:83:00.0",
            "pair_copy",
            "passed",
            "16 MiB copied each way are bit equal",
        ],
        [
            "0000:03:00.0 and 0000:83:00.0",
            "all_reduce_nccl",
            "not_run",
            "not run because this torch was built without nccl",
        ],
    ]
    assert results[0].figures == {"first_to_second": True, "second_to_first": False}


def test_a_held_gpu_keeps_its_pairs_off_too():
    held = replace(
        GPU,
        pci="0000:83:00.0",
        visible_value="1",
        refused="not run because vllm (5) holds 9.00 GiB",
    )
    results = run_checks(sys.executable, [held], ["alone", "ladder"])
    assert {r.says for r in results} == {held.refused}
    pair = run_checks(sys.executable, [GPU, held], ["data_parallel"])
    assert [(r.pci, r.peer, r.says) for r in pair] == [
        ("0000:03:00.0", "0000:83:00.0", held.refused)
    ]


def test_an_unknown_check_is_refused():
    with pytest.raises(ValueError, match="check 'matmul': expected one of enumeration, alone"):
        run_checks(sys.executable, [Target()], ["matmul"])


def test_the_program_has_every_check_that_the_parent_names():
    assert CHECKS == (*torch_checks.LOOKS, *torch_checks.LOADS, *torch_checks.OPT_IN)


# The device, with a stand-in for torch.


def stand_in(count=1, **more):
    bus = {
        "pci_domain_id": 0,
        "pci_device_id": 0,
        "name": "a card",
        "total_memory": 20 * GIB,
        "is_integrated": 0,
    }
    cuda = types.SimpleNamespace(
        init=lambda: None,
        device_count=lambda: count,
        OutOfMemoryError=MemoryError,
        get_device_properties=lambda index: types.SimpleNamespace(pci_bus_id=3 + index, **bus),
        mem_get_info=lambda index: (19 * GIB, 20 * GIB),
        synchronize=lambda index: None,
        set_per_process_memory_fraction=lambda fraction, index: None,
        reset_peak_memory_stats=lambda index: None,
    )
    for name, value in more.items():
        setattr(cuda, name, value)
    return types.SimpleNamespace(version=types.SimpleNamespace(cuda="12.4", hip=None), cuda=cuda)


def spec(**more):
    return {"device": "cuda:0", "pci": "0000:03:00.0", "peer": "", "gpu_bytes": 256 * MIB, **more}


def test_a_gpu_build_that_sees_no_gpu_gives_the_drivers_reason():
    def refuses():
        raise RuntimeError(
            "Found no NVIDIA driver on your system.\nPlease check that you have an NVIDIA GPU"
        )

    says = "torch, built for CUDA, sees no GPU"
    assert gpu_trouble(stand_in(init=refuses)) == (says, "Found no NVIDIA driver on your system.")
    assert gpu_trouble(stand_in(count=0)) == (says, "")
    assert gpu_trouble(stand_in()) == ("", "")
    device = Device(stand_in(init=refuses), spec())
    with pytest.raises(Failed, match=says) as failed:
        torch_checks.enumeration(device)
    assert failed.value.measured == {"message": "Found no NVIDIA driver on your system."}


def test_more_or_fewer_gpus_than_asked_for_are_refused():
    assert wrong_card(stand_in(count=2), spec()) == "torch sees 2 GPUs here and should see 1"
    assert wrong_card(stand_in(count=2), spec(peer="0000:04:00.0")) == ""
    assert wrong_card(stand_in(count=1), spec()) == ""


def test_a_card_that_cannot_be_told_is_used_only_where_it_is_the_only_one():
    blank = stand_in(get_device_properties=lambda index: types.SimpleNamespace(name="old torch"))
    assert pci_address(blank, 0) == ""
    assert wrong_card(blank, spec()) == ""
    assert wrong_card(blank, spec(several=True)) == "which GPU torch sees cannot be told"


@pytest.mark.parametrize(
    ("free", "state", "says"),
    [
        (
            19 * GIB,
            "not_run",
            "not run because it needs more than the 256 MiB that a check may take",
        ),
        (100 * MIB, "failed", "there is not enough memory for it"),
    ],
)
def test_out_of_memory_tells_the_limit_of_the_check_from_a_full_card(free, state, says):
    def check(device):
        raise MemoryError("HIP out of memory. Tried to allocate 384.00 MiB")

    device = Device(stand_in(mem_get_info=lambda index: (free, 20 * GIB)), spec())
    assert torch_checks._outcome(device, check, looks=False)[:2] == (
        state,
        {"says": says, "message": "MemoryError: HIP out of memory. Tried to allocate 384.00 MiB"},
    )


def test_the_memory_limit_is_set_before_a_check_and_not_before_one_that_only_looks():
    told = []
    device = Device(
        stand_in(
            set_per_process_memory_fraction=lambda fraction, index: told.append((fraction, index)),
            max_memory_allocated=lambda index: 8,
            max_memory_reserved=lambda index: 20,
        ),
        spec(),
    )

    def check(device):
        told.append("check")
        return {"says": "fine"}

    assert torch_checks._outcome(device, check, looks=True) == ("passed", {"says": "fine"}, False)
    assert torch_checks._outcome(device, check, looks=False) == (
        "passed",
        {"says": "fine", "allocated_bytes": 8, "reserved_bytes": 20},
        False,
    )
    device.limit_memory(1 << 62)
    assert told == ["check", (256 * MIB / (20 * GIB), 0), "check", (1.0, 0)]


def real_cpu():
    import torch

    return Device(torch, {"device": "cpu", "pci": "cpu", "peer": "", "gpu_bytes": 256 * MIB})


def test_a_nan_in_a_product_fails(monkeypatch):
    device = real_cpu()
    real = device.torch.matmul
    monkeypatch.setattr(device.torch, "matmul", lambda a, b: real(a, b) * float("nan"))
    with pytest.raises(Failed, match="differs from the CPU reference"):
        torch_checks.matmul(device, "float32")


def test_tf32_accuracy_is_not_fp32_accuracy(monkeypatch):
    device = real_cpu()
    torch, real = device.torch, device.torch.matmul

    def short(x):
        return (
            (x.view(torch.int32) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x
        )

    monkeypatch.setattr(torch, "matmul", lambda a, b: real(short(a), short(b)))
    with pytest.raises(Failed, match="1.5e-05"):
        torch_checks.matmul(device, "float32")


@pytest.mark.parametrize(
    ("factor", "says"), [(1.001, "differ from the CPU's"), (float("inf"), "are not finite")]
)
def test_wrong_gradients_fail(monkeypatch, factor, says):
    device = real_cpu()
    real = device.torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        device.torch.nn.functional,
        "cross_entropy",
        lambda x, y: real(x, y) * (factor if x.dtype == device.torch.float32 else 1),
    )
    with pytest.raises(Failed, match=says):
        torch_checks.network(device)


def test_a_copy_that_loses_a_bit_fails(monkeypatch):
    device = real_cpu()
    real = device.torch.Tensor.clone

    def flipped(self):
        other = real(self)
        other[-1] ^= 1 << 30
        return other

    monkeypatch.setattr(device.torch.Tensor, "clone", flipped)
    with pytest.raises(Failed) as failed:
        torch_checks.copies(device, pinned=False)
    assert failed.value.measured["figures"]["wrong_words"] == 1
    with pytest.raises(NotRun):
        torch_checks.copies(device, pinned=True)


# The ladder.


@given(limit=st.integers(0, 1 << 36), stop=st.integers(STEP_BYTES, 1 << 35))
@settings(max_examples=60)
def test_the_ladder_ends_next_to_the_largest_size_that_fits(limit, stop):
    stop -= stop % STEP_BYTES
    held, refused, tried = climb(lambda size: size <= limit, stop)
    assert all(0 < size <= stop for size, _ in tried)
    assert held <= limit
    if refused:
        assert refused > limit
        assert refused - held <= max(2 * STEP_BYTES, refused // 128)
    else:
        assert held == stop
    assert len(tried) < 40


def test_the_ladder_leaves_half_and_two_gib_to_others():
    assert stop_bytes(20 * GIB, gpu=True) == 10 * GIB
    assert stop_bytes(3 * GIB, gpu=True) == 1 * GIB
    assert stop_bytes(1 * GIB, gpu=True) < 0
    assert stop_bytes(64 * GIB, gpu=False) == 2 * GIB


@pytest.mark.parametrize(
    ("group", "files"),
    [
        (
            "0::/box/task",
            {
                "box/memory.max": "1000000",
                "box/memory.current": "400000",
                "box/task/memory.max": "max",
                "box/task/memory.current": "1",
            },
        ),
        (
            "4:cpu,memory:/task",
            {
                "memory/task/memory.limit_in_bytes": "1000000",
                "memory/task/memory.usage_in_bytes": "400000",
            },
        ),
    ],
)
def test_a_control_groups_limit_counts_wherever_above_it_is_set(tmp_path, group, files):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8000 kB\nMemAvailable: 4000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    assert host_available_bytes(str(tmp_path)) == 4000 * 1024
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert host_available_bytes(str(tmp_path)) == 600000


# A child.


def test_a_child_that_ends_well_has_said_every_line():
    lines = []
    ended = watch([*MISBEHAVE, "talks", "3"], 30, on_line=lines.append)
    assert (ended.how, ended.exit_code, ended.signal, ended.left_pids) == ("exited", 0, "", ())
    assert lines == ["began", "0", "1", "2"]


def test_a_flood_is_read_to_its_end_and_only_its_end_is_kept():
    lines = []
    ended = watch([*MISBEHAVE, "floods"], 30, on_line=lines.append)
    assert ended.how == "exited" and len(lines[1]) == 300_000
    assert ended.last_words.endswith("the end") and len(ended.last_words) <= child.LAST_BYTES


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_the_signal_that_ended_a_child_is_named(name):
    ended = watch([*MISBEHAVE, "dies", name], 30)
    assert (ended.how, ended.exit_code, ended.signal, ended.last_words) == (
        "signalled",
        None,
        name,
        "about to fall",
    )


def test_an_exit_code_and_a_program_that_cannot_be_run_are_told_apart():
    assert watch([*MISBEHAVE, "exits", "3"], 30).exit_code == 3
    none = watch(["/nowhere/program"], 30)
    assert (
        none.exit_code == 127
        and none.last_words == "/nowhere/program: cannot be run: No such file or directory"
    )


def test_a_hang_ends_at_the_limit_with_the_threads_as_they_were():
    ended = watch([*MISBEHAVE, "hangs"], 1)
    assert (ended.how, ended.signal) == ("timed_out", "SIGTERM")
    assert "state S" in ended.stacks and "waits in" in ended.stacks


def test_a_child_deaf_to_asking_is_killed():
    ended = watch([*MISBEHAVE, "deaf"], 1, term_s=0.3)
    assert (ended.how, ended.signal) == ("timed_out", "SIGKILL")


def test_what_a_line_returns_is_the_time_left():
    ended = watch([*MISBEHAVE, "hangs"], 60, on_line=lambda line: 0.2)
    assert ended.how == "timed_out" and ended.seconds < 30


def test_a_child_left_behind_is_killed_and_not_waited_for():
    lines = []
    ended = watch([*MISBEHAVE, "leaves-a-child"], 30, on_line=lines.append)
    assert ended.how == "exited" and ended.seconds < 10
    assert not alive(int(lines[1]))


def test_a_child_that_cannot_be_killed_is_left_behind_and_named(monkeypatch):
    monkeypatch.setattr(child, "signal_group", lambda group, number: None)
    ended = watch([*MISBEHAVE, "hangs"], 0.5, term_s=0.1, grace_s=0.2)
    assert ended.how == "stuck" and ended.exit_code is None
    for pid in ended.left_pids:
        assert alive(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_stuck_child_keeps_the_other_checks_off_its_gpu(monkeypatch):
    told = child.Ended(
        "stuck",
        None,
        "",
        5.0,
        "",
        "pid 7 thread 7 python: state D, waits in amdgpu_fence_wait",
        (7,),
    )
    monkeypatch.setattr(
        "helpers.load.checks.watch",
        lambda *args, on_line, **more: (
            on_line('{"event": "ready"}'),
            on_line('{"event": "start", "check": "enumeration"}'),
            told,
        )[-1],
    )
    other = replace(GPU, pci="0000:83:00.0", visible_value="1")
    results = run_checks(sys.executable, [GPU, other], ["enumeration", "alone", "pair_copy"])
    says = {(r.pci, r.peer, r.check): r.says for r in results}
    held = "not run because a child that waits in the kernel still holds this GPU (pid 7)"
    assert (
        says["0000:03:00.0", "", "alone"]
        == held
        == says["0000:03:00.0", "0000:83:00.0", "pair_copy"]
    )
    assert says["0000:83:00.0", "", "enumeration"].endswith(
        "cannot be killed: it waits in the kernel"
    )


def test_an_interrupted_parent_leaves_no_child():
    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch([*MISBEHAVE, "leaves-a-child"], 30, on_line=interrupt)
    assert not [pid for pid in all_pids() if "misbehave.py" in arguments(pid)]


def all_pids():
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def arguments(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text() if alive(pid) else ""
    except OSError:
        return ""


def test_a_child_dies_with_its_parent():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from helpers.child import watch; "
        "watch([*sys.argv[2:], 'deaf'], 60, on_line=lambda line: print(line, flush=True))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).resolve().parents[1]), *MISBEHAVE],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout.readline() == "began\n" and parent.stdout.readline() == "ready\n"
    children = [
        pid for pid in all_pids() if "deaf" in arguments(pid) and "watch" not in arguments(pid)
    ]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 10
    while any(map(alive, children)) and time.monotonic() < until:
        time.sleep(0.05)
    assert children and not any(map(alive, children))


def test_watching_works_beside_other_threads():
    ended = []
    threads = [
        threading.Thread(
            target=lambda: ended.append(watch([*MISBEHAVE, "exits", "0"], 30).exit_code)
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [0, 0, 0, 0]
