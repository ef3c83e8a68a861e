"""Functional checks: what each failure says, and that a child which dies or hangs costs one check only."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.ground import child
from helpers.ground.child import Ended, bounded, watch
from helpers.ground.child.bounded import LAST_BYTES
from helpers.ground.units import GIB, MIB
from helpers.trials.checks import CHECKS, DEFAULT, LOOKS, CheckLimits, as_rows, run_checks
from helpers.trials.targets import Target
from helpers.trials.under_torch import checks as torch_checks
from helpers.trials.under_torch.device import (
    Device,
    Failed,
    gpu_trouble,
    pci_address,
    wrong_card,
)
from helpers.trials.under_torch.frame import NotRun
from helpers.trials.under_torch.host_memory import host_available_bytes
from helpers.trials.under_torch.ladder import STEP_BYTES, climb, stop_bytes

PROGRAMS = Path(__file__).parent / "programs"
MISBEHAVE = [sys.executable, str(PROGRAMS / "misbehave.py")]
FIRST = "0000:03:00.0"
SECOND = "0000:83:00.0"
NOWHERE = "/nowhere/program: cannot be run: No such file or directory"
GPU = Target(FIRST, "HIP_VISIBLE_DEVICES", "0", "cuda:0", several=True)
OTHER = replace(GPU, pci=SECOND, visible_value="1")
NOT_ENDED = "not run because a child that waits in the kernel still holds this GPU (pid 7)"


def by_name(results):
    return {result.check: result for result in results}


def states(results):
    return {result.check: result.state for result in results if result.state != "passed"}


@pytest.fixture
def real(monkeypatch):
    """The real torch in a child, with the damage that the words name."""

    def checked(words, names, limits=CheckLimits(start_s=120)):  # noqa: B008
        monkeypatch.setenv("PYTHONPATH", str(PROGRAMS / "fake_torch"))
        monkeypatch.setenv("FAKE_TORCH", words)
        return run_checks(sys.executable, [Target()], names, limits)

    return checked


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """An interpreter that answers as the program of checks would, without a torch."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAMS}/checks_stand_in.py "$@"\n')
    python.chmod(0o755)

    def checked(words, targets=(GPU,), names=DEFAULT, limits=CheckLimits(gpu_s=60)):  # noqa: B008
        monkeypatch.setenv("STAND_IN", words)
        return run_checks(str(python), targets, names, limits)

    return checked


def alive(pid):
    return child.process_of(pid).running


# With the real torch, on the CPU.


def test_on_a_box_without_a_gpu_the_checks_run_on_the_cpu_and_say_so(real):
    results = real("little-address-space", [*DEFAULT, "ladder"], CheckLimits(to_the_limit=True))
    assert {result.device for result in results} == {"cpu"}
    rows = {row[1]: row[2:4] for row in as_rows(results)}
    no_gpu = "is about GPUs and this is the CPU"
    rows.pop("ladder")
    assert rows == {
        "check": ["state", "says"],
        "enumeration": ["passed", "torch works on the CPU"],
        "alone": ["not run", "not run because it " + no_gpu],
        "matmul fp32": ["passed", "equal to the CPU reference within 1.5e-05"],
        "matmul bf16": ["passed", "equal to the CPU reference within 7.8e-03"],
        "network": [
            "passed",
            "loss and gradients are finite and equal to the CPU's within 1.0e-04",
        ],
        "copy pageable": ["passed", "16 MiB there and back are bit equal"],
        "copy pinned": ["not run", "not run because pinned memory " + no_gpu],
    }
    named = by_name(results)
    assert 0 < named["matmul_fp32"].max_error <= 2**-16 < named["matmul_bf16"].max_error
    assert named["network"].peak_bytes.status == "not_available"
    ladder = named["ladder"]
    assert ladder.state == "passed", ladder.message
    assert 128 * MIB <= ladder.figures["largest_bytes"] <= 600 * MIB
    assert "GiB was refused" in ladder.says or "stopped by itself" in ladder.says


def test_a_wrong_product_a_hang_and_a_crash_cost_one_check_each(real):
    names = ["matmul_fp32", "matmul_bf16", "network"]
    words = "wrong-product hangs-in-product dies-in-network"
    hung, wrong, died = real(words, names, CheckLimits(check_s=3, start_s=120))
    assert (hung.state, hung.says) == ("timed_out", "the child did not end in time")
    assert "odd_product" in hung.last_words and "state S" in hung.stacks
    assert wrong.says == "differs from the CPU reference by more than 7.8e-03"
    assert wrong.state == "failed" and wrong.max_error > 2**-7
    assert (died.state, died.says) == ("crashed", "the child was ended by SIGSEGV")
    assert "Segmentation fault" in died.message and "in network" in died.last_words


# What becomes of a child, with a stand-in for its interpreter.


def test_each_check_is_told_as_it_ends(stand_in, tmp_path):
    heard = []
    results = run_checks(str(tmp_path / "python"), [Target()], on_result=heard.append)
    assert sorted(heard, key=results.index) == results and not states(results)
    assert [one.check for one in results] == list(DEFAULT)


def test_what_ends_its_child_costs_one_check_and_the_rest_goes_on(stand_in):
    results = stand_in("alone=SIGKILL network=hangs", limits=CheckLimits(check_s=0.3))
    assert states(results) == {"alone": "crashed", "network": "timed_out"}
    died = by_name(results)["alone"]
    assert died.says == "the child was ended by SIGKILL"
    assert died.message == "Fatal Python error: Segmentation fault"


def test_a_hang_uses_up_the_time_of_its_gpu_and_the_rest_is_not_run(stand_in):
    results = by_name(stand_in("matmul_fp32=hangs", limits=CheckLimits(gpu_s=1)))
    hung = results["matmul_fp32"]
    assert (hung.state, hung.says) == ("timed_out", "the child did not end in time")
    used_up = "not run because the 1 s that the checks may take of one GPU are used up"
    assert {results[name].says for name in DEFAULT[3:]} == {used_up}


def test_a_child_that_dies_after_its_last_check_leaves_that_checks_result(stand_in):
    assert stand_in("dies-at-its-end")[-1].state == "passed"


NO_TORCH = "this Python has no torch"
NO_START = "torch did not start"
BY_SIGILL = "the child was ended by SIGILL"


@pytest.mark.parametrize(
    ("word", "first", "rest"),
    [
        ("no-torch", ("not_run", f"not run because {NO_TORCH}"), NO_TORCH),
        ("broken", ("failed", "torch cannot be imported"), "torch cannot be imported"),
        ("dies-at-import", ("crashed", f"{NO_START}: {BY_SIGILL}"), NO_START),
    ],
)
def test_where_torch_does_not_start_one_check_says_how_and_the_rest_why(
    stand_in, word, first, rest
):
    one, *others = stand_in(word)
    assert (one.state, one.says) == first and len(others) == len(DEFAULT) - 1
    left_out = ("not_run", f"not run because {rest}")
    assert {(other.state, other.says) for other in others} == {left_out}
    assert one.message == ("OSError: libamdhip64.so.6" if word == "broken" else "")


def test_a_torch_that_is_missing_or_broken_is_told_by_the_program(tmp_path):
    bare = [
        sys.executable,
        "-S",
        "-c",
        "from helpers.trials.under_torch.checks import main; main()",
    ]
    env = {**os.environ, "PYTHONPATH": str(PROGRAMS.parents[1])}
    lines = []
    watch([*bare, '{"start_s": 60}'], 60, env=env, on_line=lines.append)
    assert [child.json_row(line)["missing"] for line in lines] == [True]
    (tmp_path / "torch.py").write_text("raise OSError('libamdhip64.so.6: cannot open')\n")
    env["PYTHONPATH"] += f":{tmp_path}"
    lines.clear()
    watch([*bare, '{"start_s": 60}'], 60, env=env, on_line=lines.append)
    told = child.json_row(lines[0])
    assert not told["missing"] and told["message"] == "OSError: libamdhip64.so.6: cannot open"


def test_no_interpreter_at_all_is_not_an_error():
    for python in ("", "/nowhere/python"):
        results = run_checks(python, [GPU], [*DEFAULT, "ladder"])
        assert {r.says for r in results} == {"not run because no Python with torch was found"}


def test_a_held_gpu_is_left_alone_and_the_other_is_checked(stand_in):
    held = replace(OTHER, refused="not run because vllm (5) holds 9.00 GiB")
    results = stand_in("", [GPU, held], ["alone", "ladder"])
    assert [row[0] for row in as_rows(results)[1:]] == [FIRST, FIRST, SECOND, SECOND]
    assert {result.says for result in results if result.pci == SECOND} == {held.refused}
    assert {result.state for result in results if result.pci == FIRST} == {"passed"}


def test_a_stuck_child_keeps_the_other_checks_off_its_gpu(monkeypatch):
    stacks = "pid 7 thread 7 python: state D, waits in amdgpu_fence_wait"

    def stuck(*args, on_line, **more):
        on_line('{"event": "ready"}')
        on_line('{"event": "start", "check": "enumeration"}')
        return Ended("stuck", None, "", 5.0, "", stacks, (7,))

    monkeypatch.setattr("helpers.trials.checks.watch", stuck)
    results = run_checks(sys.executable, [GPU, OTHER], ["enumeration", "alone"])
    says = {(result.pci, result.check): result.says for result in results}
    assert says[FIRST, "alone"] == NOT_ENDED
    assert says[SECOND, "enumeration"] == "the child is stuck in the kernel"


def test_an_unknown_check_is_refused():
    with pytest.raises(ValueError, match="check 'matmul': expected one of enumeration, alone"):
        run_checks(sys.executable, [Target()], ["matmul"])


def test_the_program_has_every_check_that_the_parent_names():
    assert CHECKS == (*torch_checks.LOOKS, *torch_checks.LOADS, *torch_checks.OPT_IN)


# The program in this process: the CPU under the name of a GPU, and a stand-in for torch where no tensor is made.


def cuda_of(count=1, **more):
    """A torch.cuda of cards at 03:00.0, 04:00.0 and so on, with 20 GiB each; nothing is computed on them."""
    about = {"pci_domain_id": 0, "pci_device_id": 0, "name": "Fake XT", "is_integrated": 0}
    card = {**about, "total_memory": 20 * GIB}
    functions = {
        "init": lambda: None,
        "device_count": lambda: count,
        "OutOfMemoryError": MemoryError,
        "get_device_properties": lambda i: types.SimpleNamespace(pci_bus_id=3 + i, **card),
        "mem_get_info": lambda index=0: (19 * GIB, 20 * GIB),
        "synchronize": lambda index: None,
        "set_per_process_memory_fraction": lambda fraction, index: None,
        "reset_peak_memory_stats": lambda index: None,
        "max_memory_allocated": lambda index: 8 * MIB,
        "max_memory_reserved": lambda index: 20 * MIB,
        "is_bf16_supported": lambda including_emulation=True: True,
    }
    return {**functions, **more}


def torch_of(**more):
    version = types.SimpleNamespace(cuda="12.4", hip=None)
    return types.SimpleNamespace(version=version, cuda=types.SimpleNamespace(**cuda_of(**more)))


def spec(**more):
    limits = {"gpu_s": 60, "opt_in_s": 60, "start_s": 60, "check_s": 20, "least_s": 0.5}
    known = {"device": "cuda:0", "pci": FIRST, "gpu_bytes": 256 * MIB, "used_up": ""}
    return {**known, **limits, **more}


def told_by(device, *names):
    """The ends of these checks, by name, as the program tells them."""
    device.spec["names"] = names
    rows = [row for row in torch_checks.checks(device) if row.pop("event") == "end"]
    return {row.pop("check"): row for row in rows}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def gpu(torch, monkeypatch):
    """The real torch on the CPU, under the name of two GPUs of ROCm."""
    from torch.overrides import TorchFunctionMode

    class CudaIsTheCpu(TorchFunctionMode):
        """Every device argument that names cuda becomes the CPU."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            def plain(value):
                named = isinstance(value, (str, torch.device)) and str(value).startswith("cuda:")
                return "cpu" if named else value

            more = {key: plain(value) for key, value in (kwargs or {}).items()}
            more.pop("pin_memory", None)
            return function(*map(plain, args), **more)

    for name, value in cuda_of(2, OutOfMemoryError=torch.cuda.OutOfMemoryError).items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "hip", "6.3.0")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    with CudaIsTheCpu():
        yield torch


def test_on_a_gpu_memory_is_limited_and_counted_and_an_odd_error_ends_the_child(gpu, monkeypatch):
    limits = []
    words = "HIP error: invalid device function\nCompile with TORCH_USE_HIP_DSA"
    monkeypatch.setattr(gpu.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu.cuda, "set_per_process_memory_fraction", lambda *a: limits.append(a))
    ends = told_by(Device(gpu, spec()), *(name for name in DEFAULT if name != "network"))
    assert {name: end for name, end in ends.items() if end["state"] != "passed"} == {}
    assert ends["enumeration"]["says"] == "torch sees Fake XT with 20.00 GiB"
    assert ends["alone"]["says"] == "torch sees this GPU and no other"
    pinned = ends["copy_pinned"]
    assert (pinned["reserved_bytes"], pinned["allocated_bytes"]) == (20 * MIB, 8 * MIB)
    assert set(limits) == {(256 * MIB / (20 * GIB), 0)} and len(limits) == len(DEFAULT) - 3
    assert "reserved_bytes" not in ends["enumeration"]

    def raises(*args):
        raise RuntimeError(words)

    monkeypatch.setattr(gpu.nn.functional, "cross_entropy", raises)
    ends = told_by(Device(gpu, spec()), "network", "copy_pageable")
    assert list(ends) == ["network"] and ends["network"]["state"] == "failed"
    assert ends["network"]["message"] == "RuntimeError: HIP error: invalid device function"


def test_a_cpu_build_on_a_box_with_a_gpu_says_so(torch):
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch is no CPU build")
    says = "this torch is a CPU build and cannot use a GPU"
    first, *rest = told_by(Device(torch, spec()), *DEFAULT).values()
    assert (first["state"], first["says"]) == ("failed", says)
    assert {one["says"] for one in rest} == {"not run because " + says}


def test_a_card_that_is_not_the_one_asked_for_is_not_touched():
    ends = told_by(Device(torch_of(), spec(pci=SECOND)), *DEFAULT)
    wrong = f"torch sees {FIRST} here and should see {SECOND}"
    assert (ends["alone"]["state"], ends["alone"]["says"]) == ("failed", wrong)
    loads = {ends[name]["says"] for name in DEFAULT if name not in LOOKS}
    assert loads == {"not run because " + wrong}


def test_a_gpu_build_that_sees_no_gpu_gives_the_drivers_reason():
    reason = "Found no NVIDIA driver on your system."

    def refuses():
        raise RuntimeError(reason + "\nPlease check that you have an NVIDIA GPU")

    says = "torch, built for CUDA, sees no GPU"
    assert gpu_trouble(torch_of(init=refuses)) == (says, reason)
    assert gpu_trouble(torch_of(count=0)) == (says, "") and gpu_trouble(torch_of()) == ("", "")
    with pytest.raises(Failed, match=says) as failed:
        torch_checks.enumeration(Device(torch_of(init=refuses), spec()))
    assert failed.value.measured == {"message": reason}


def test_more_or_fewer_gpus_than_asked_for_are_refused():
    assert wrong_card(torch_of(count=2), spec()) == "torch sees 2 GPUs here and should see 1"
    assert wrong_card(torch_of(count=1), spec()) == ""


def test_a_card_that_cannot_be_told_is_used_only_where_it_is_the_only_one():
    blank = torch_of(get_device_properties=lambda index: types.SimpleNamespace(name="old torch"))
    assert pci_address(blank, 0) == "" and wrong_card(blank, spec()) == ""
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
def test_out_of_memory_tells_the_limit_of_the_check_from_a_full_card(
    monkeypatch, free, state, says
):
    message = "HIP out of memory. Tried to allocate 384.00 MiB"

    def check(device):
        raise MemoryError(message)

    monkeypatch.setitem(torch_checks.LOADS, "network", check)
    device = Device(torch_of(mem_get_info=lambda index: (free, 20 * GIB)), spec())
    end = told_by(device, "network")["network"]
    assert (end["state"], end["says"], end["message"]) == (state, says, f"MemoryError: {message}")


def test_a_limit_larger_than_the_card_is_the_card():
    limits = []
    device = Device(torch_of(set_per_process_memory_fraction=lambda *a: limits.append(a)), spec())
    device.limit_memory(1 << 62)
    assert limits == [(1.0, 0)]


@pytest.fixture
def cpu(torch):
    return Device(torch, spec(device="cpu", pci="cpu"))


def test_a_nan_and_the_accuracy_of_tf32_in_a_product_fail(cpu, monkeypatch):
    torch = cpu.torch
    matmul = cpu.torch.matmul

    def short(x):
        short = x.dtype == torch.float32
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32) if short else x

    for odd in (lambda a, b: matmul(a, b) * float("nan"), lambda a, b: matmul(short(a), short(b))):
        monkeypatch.setattr(torch, "matmul", odd)
        with pytest.raises(Failed, match="differs from the CPU reference by more than 1.5e-05"):
            torch_checks.matmul(cpu, "float32")


@pytest.mark.parametrize(
    ("factor", "says"), [(1.001, "differ from the CPU's"), (float("inf"), "are not finite")]
)
def test_wrong_gradients_fail(cpu, monkeypatch, factor, says):
    functional = cpu.torch.nn.functional
    single = cpu.torch.float32
    right = functional.cross_entropy

    def wrong(x, y):
        return right(x, y) * (factor if x.dtype == single else 1)

    monkeypatch.setattr(functional, "cross_entropy", wrong)
    with pytest.raises(Failed, match=says):
        torch_checks.network(cpu)


def test_a_copy_that_loses_a_bit_fails(cpu, monkeypatch):
    clone = cpu.torch.Tensor.clone

    def flipped(self):
        other = clone(self)
        other[-1] ^= 1 << 30
        return other

    monkeypatch.setattr(cpu.torch.Tensor, "clone", flipped)
    with pytest.raises(Failed) as failed:
        torch_checks.copies(cpu, pinned=False)
    assert failed.value.measured["figures"]["wrong_words"] == 1
    with pytest.raises(NotRun):
        torch_checks.copies(cpu, pinned=True)


# The ladder.


@given(limit=st.integers(0, 1 << 36), stop=st.integers(STEP_BYTES, 1 << 35))
@settings(max_examples=60)
def test_the_ladder_ends_next_to_the_largest_size_that_fits(limit, stop):
    stop -= stop % STEP_BYTES
    climbed = climb(lambda size: size <= limit, stop)
    held = climbed.held_bytes
    refused = climbed.refused_bytes
    assert all(0 < size <= stop for size, _ in climbed.tried)
    assert held <= limit and len(climbed.tried) < 40
    if refused:
        assert limit < refused <= held + max(2 * STEP_BYTES, refused // 128)
    else:
        assert held == stop


@pytest.mark.parametrize(
    ("free_gib", "gpu", "stop_gib"), [(20, True, 10), (3, True, 1), (1, True, -1), (64, False, 2)]
)
def test_the_ladder_leaves_half_and_two_gib_to_others(free_gib, gpu, stop_gib):
    assert stop_bytes(free_gib * GIB, gpu) == stop_gib * GIB


V2 = {"box/memory.max": "1000000", "box/memory.current": "400000"}
V2_BELOW = {"box/task/memory.max": "max", "box/task/memory.current": "1"}
V1 = {"limit": "1000000", "usage": "400000"}


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/box/task", {**V2, **V2_BELOW}),
        ("4:cpu,memory:/task", {f"memory/task/memory.{k}_in_bytes": v for k, v in V1.items()}),
    ],
)
def test_a_control_groups_limit_counts_wherever_above_it_is_set(tmp_path, group, files):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8000 kB\nMemAvailable: 4000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    assert host_available_bytes(tmp_path) == 4000 * 1024
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert host_available_bytes(tmp_path) == 600000


# A child.


@pytest.mark.parametrize(
    ("argv", "how", "exit_code", "signal_name", "last_words"),
    [
        ([*MISBEHAVE, "talks", "3"], "exited", 0, "", ""),
        ([*MISBEHAVE, "exits", "3"], "exited", 3, "", ""),
        ([*MISBEHAVE, "dies", "SIGSEGV"], "signalled", None, "SIGSEGV", "about to fall"),
        ([*MISBEHAVE, "dies", "SIGABRT"], "signalled", None, "SIGABRT", "about to fall"),
        ([*MISBEHAVE, "dies", "SIGKILL"], "signalled", None, "SIGKILL", "about to fall"),
        (["/nowhere/program"], "exited", 127, "", NOWHERE),
    ],
)
def test_how_a_child_ended_is_told(argv, how, exit_code, signal_name, last_words):
    lines = []
    ended = watch(argv, 30, on_line=lines.append)
    assert (ended.how, ended.exit_code, ended.signal) == (how, exit_code, signal_name)
    assert ended.last_words == last_words and ended.left_pids == ()
    if "talks" in argv:
        assert lines == ["began", "0", "1", "2"]


def test_a_flood_is_read_to_its_end_and_only_its_end_is_kept():
    lines = []
    ended = watch([*MISBEHAVE, "floods"], 30, on_line=lines.append)
    assert ended.how == "exited" and len(lines[1]) == 300_000
    assert ended.last_words.endswith("the end") and len(ended.last_words) <= LAST_BYTES


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
    assert ended.how == "exited" and ended.seconds < 10 and not alive(int(lines[1]))


def test_a_child_that_cannot_be_killed_is_left_behind_and_named(monkeypatch):
    monkeypatch.setattr(bounded, "signal_group", lambda group, number: None)
    ended = watch([*MISBEHAVE, "hangs"], 0.5, term_s=0.1, grace_s=0.2)
    assert ended.how == "stuck" and ended.exit_code is None and ended.left_pids
    for pid in ended.left_pids:
        assert alive(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_an_interrupted_parent_leaves_no_child():
    pids = []

    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch([*MISBEHAVE, "leaves-a-child"], 30, on_line=interrupt, on_start=pids.append)
    assert pids and not child.session_pids(pids[0])


def test_a_child_dies_with_its_parent():
    code = (
        "import sys; from helpers.ground.child import watch; watch(sys.argv[1:], 60, "
        "on_start=lambda pid: print(pid, flush=True), on_line=lambda line: print(line, flush=True))"
    )
    argv = [sys.executable, "-c", code, *MISBEHAVE, "deaf"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        pid, began, ready = (parent.stdout.readline().strip() for _ in range(3))
        assert (began, ready) == ("began", "ready") and alive(int(pid))
        parent.kill()
    until = time.monotonic() + 10
    while alive(int(pid)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(int(pid))


def test_watching_works_beside_other_threads():
    ended = []

    def one():
        ended.append(watch([*MISBEHAVE, "exits", "0"], 30).exit_code)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [0, 0, 0, 0]


def test_a_transcript_has_every_answer_and_nothing_else_of_stdout(tmp_path):
    rows = '{"event": "ready", "n": 1}\nnoise\n{"no": "event"}\n{"event": "end", "n": 2}'
    told = child.transcript([shutil.which("echo"), rows], 30, {"ready": 10}, env=os.environ)
    assert [row["n"] for row in told.rows] == [1, 2] and told.last("end") == told.rows[1]
    assert told.last("step") == {} and told.ended.exit_code == 0
    late = ["sh", "-c", 'echo \'{"event": "ready"}\'; sleep 60']
    assert child.transcript(late, 30, {"ready": 0.2}, env=os.environ).ended.how == "timed_out"
