"""A trial: its outcomes, what it is given, what it leaves behind, and records that survive."""

import errno
import inspect
import json
import os
import re
import sys
from pathlib import Path

import pytest

from helpers.ground import child
from helpers.ground.child import Ended, Group, cgroup
from helpers.ground.units import MIB
from helpers.settings.presets import NONE, parse
from helpers.trials import trial as trials
from helpers.trials.leftovers import driver_used
from helpers.trials.record import TrialLimits, TrialRefused
from helpers.trials.targets import Target, environment
from helpers.trials.trial import PreparedTrial, trial
from helpers.trials.workload import BUILT_IN, WorkloadError, command, workload

QUICK = TrialLimits(seconds=20, silent_s=5)
SLOW = TrialLimits(seconds=100)
FIRST = "0000:03:00.0"


@pytest.fixture
def made(tmp_path):
    """Makes a trial of a workload, or of a program by its text or its argv, and keeps its record."""

    def one(what, preset=NONE, limits=QUICK, step="", **more):
        argv = [sys.executable, "-c", what] if isinstance(what, str) else what
        wanted = command(argv, step) if isinstance(argv, list) else what
        out = more.pop("out", tmp_path / "kept")
        given = {"python": sys.executable, "seed": 1, **more}
        return trial(PreparedTrial(wanted, preset, limits=limits, **given), out)

    return one


def evidence(record, name):
    return next(one.reading for one in record.evidence if one.id == name)


# How it ends.


def test_a_command_that_ends_well_is_ok_and_its_steps_and_losses_are_read(made):
    code = "for i in range(4): print('loss=%g' % (1 / (i + 1)), flush=True)"
    found = made(code, step=r"loss=([0-9.]+)")
    assert (found.outcome, found.complete, found.steps) == ("ok", True, 4)
    assert found.loss == [1.0, 0.5, 0.333333, 0.25]
    assert len(found.step_s) == 3, "three times lie between four steps"
    used = evidence(found, "driver_used")
    assert used.status == "not_available" and "CPU" in used.why


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.56 GiB "
    "of which 1.00 GiB is free. Of the allocated memory 21.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved "
    "by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("what", "outcome", "exit_code", "message"),
    [
        ("import nowhere", "crashed", 1, "exit code 1: ModuleNotFoundError: No module named"),
        (["no-such-program"], "crashed", 127, "exit code 127: no-such-program: cannot be run"),
        ("import os; os.kill(os.getpid(), 11)", "crashed", None, "ended by SIGSEGV"),
        (f"import sys; sys.exit({OOM!r})", "oom", 1, OOM[:70]),
        ("raise MemoryError('x')", "oom", 1, "MemoryError: x"),
        ("import sys; sys.exit('terminate called after std::bad_alloc')", "oom", 1, "terminate"),
    ],
    ids=["import", "no-program", "signal", "message", "memory-error", "bad-alloc"],
)
def test_an_end_is_told_as_what_it_is(made, what, outcome, exit_code, message):
    found = made(what)
    assert (found.outcome, found.exit_code, found.complete) == (outcome, exit_code, False)
    assert found.message.startswith(message)
    if message in OOM:
        assert evidence(found, "oom_message").value == 2 << 30


def test_a_hang_is_told_from_slowness_and_keeps_the_stacks(made):
    code = "import time\nfor i in range(3): print('step', flush=True)\ntime.sleep(60)"
    found = made(code, limits=TrialLimits(seconds=20, silent_s=1), step="step")
    assert found.outcome == "hung" and found.message == "no word for 1 s, after 2 steps"
    assert "state S" in found.stacks and "thread" in found.stacks
    code = "import time\nwhile 1: print('step', flush=True); time.sleep(.1)"
    slow = made(code, limits=TrialLimits(seconds=1.5, silent_s=1), step="step")
    assert (slow.outcome, slow.complete) == ("ok", False) and slow.steps > 3
    assert "slow, not hung" in slow.message


def test_running_into_the_host_memory_limit_is_an_out_of_memory(made):
    code = "held = []\nwhile True: held.append(bytearray(10 << 20))"
    found = made(code, limits=TrialLimits(seconds=20, host_bytes=200 * MIB))
    assert found.outcome == "oom" and found.message.startswith("MemoryError")
    assert 100 * MIB < found.rss_anon_bytes < 210 * MIB


def test_the_kernels_oom_killer_is_told_apart_from_a_crash(made):
    group = Group(64 * MIB)
    if not group.path:
        pytest.skip(f"no memory limit for several processes can be set here: {group.why}")
    assert group.remove() == ""
    code = (
        "import subprocess, sys\nchild = 'b = bytearray(150 << 20)\\nfor i in range(0, len(b), 4096): b[i] = 1\\n"
        "import time; time.sleep(1)'\nparts = [subprocess.Popen([sys.executable, '-c', child]) for _ in range(2)]\n"
        "sys.exit(max(part.wait() != 0 for part in parts))"
    )
    found = made(code, limits=TrialLimits(seconds=20, host_bytes=200 * MIB))
    assert found.outcome == "host_oom" and found.clean == ""
    assert evidence(found, "oom_kill").value >= 1


def test_a_kill_that_nothing_proves_to_be_the_kernels_is_a_crash(made, monkeypatch):
    monkeypatch.setattr(cgroup, "oom_kills", lambda root=None: None)
    found = made("import os; os.kill(os.getpid(), 9)")
    assert found.outcome == "crashed" and "no counter of its kills can be read" in found.message


def test_one_that_outlives_sigkill_is_stuck_and_not_waited_for(made, monkeypatch):
    stacks = "pid 9 thread 9 x: state D, waits in fence_wait"
    ended = Ended("stuck", None, "", 1.0, "", stacks, (9,))
    monkeypatch.setattr(trials, "watch", lambda argv, limit_s, **more: ended)
    found = made("")
    assert found.outcome == "stuck" and "fence_wait" in found.message
    assert found.clean


def test_what_a_trial_leaves_running_is_ended_and_the_box_is_clean(made, tmp_path):
    where = tmp_path / "pid"
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); open(sys.argv[1], 'w').write(str(p.pid))"
    found = made([sys.executable, "-c", code, str(where)])
    assert found.outcome == "ok" and found.clean == ""
    assert not child.process_of(int(where.read_text())).running


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(sys.argv[1], "w") as file:
            file.write(str(os.getpid()))
        for end in (0, 1, 2):
            os.close(end)
        time.sleep(60)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
"""


def test_a_daemon_that_a_trial_leaves_is_ended_before_the_next_and_said(made, tmp_path):
    where = tmp_path / "pid"
    found = made([sys.executable, "-c", DAEMON, str(where)])
    assert found.outcome == "ok" and found.clean == ""
    assert not child.process_of(int(where.read_text())).running
    (line,) = found.left_behind
    assert line.startswith("left behind and ended here: python") and where.read_text() in line


def test_py_spy_is_asked_where_it_is_there(tmp_path, monkeypatch):
    fake = tmp_path / "py-spy"
    fake.write_text('#!/bin/sh\necho "asked $*"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert f"asked dump --pid {os.getpid()}" in child.stacks_of(os.getsid(0), [os.getpid()])


# What it is given.


def test_only_the_presets_settings_reach_the_trial(made, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("HSA_ENABLE_SDMA", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    names = ["GPU_MAX_HW_QUEUES", "HSA_ENABLE_SDMA", "PYTORCH_CUDA_ALLOC_CONF"]
    check = f"import os, sys; e = os.environ; sys.exit(repr([e.get(n) for n in {names} + ['CUDA_VISIBLE_DEVICES']]))"
    found = made(check, preset=parse("export GPU_MAX_HW_QUEUES=2\nexport MY_OWN=1\n", "mine"))
    assert found.message == "exit code 1: ['2', None, None, '1']"
    assert found.settings == {"GPU_MAX_HW_QUEUES": "2", "MY_OWN": "1"}
    assert found.notes == ["MY_OWN: no table of settings knows it"]


def test_a_users_package_called_helpers_is_the_users(made, tmp_path, monkeypatch):
    site = tmp_path / "site" / "helpers"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("mine = 1\n")
    program = tmp_path / "prog.py"
    program.write_text("from helpers import mine\n")
    monkeypatch.setenv("PYTHONPATH", str(site.parent))
    found = made([sys.executable, str(program)])
    assert found.outcome == "ok", found.message


@pytest.mark.parametrize("where", ["cwd", "PYTHONPATH"])
def test_a_package_called_helpers_that_lies_about_is_not_taken_for_the_workbooks(
    tmp_path, monkeypatch, where
):
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("raise SystemExit('the other helpers')\n")
    if where == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    argv = child.program(sys.executable, "helpers.trials.under_torch.workloads", "no such thing")
    cwd = tmp_path if where == "cwd" else None
    ended = child.watch(argv, 60, cwd=cwd, env=environment())
    assert "the other helpers" not in ended.last_words and "JSONDecodeError" in ended.last_words


def test_a_gpu_that_must_be_left_alone_is_not_touched(made):
    held = "not run because train (7) holds 3.00 GiB"
    target = Target(FIRST, "HIP_VISIBLE_DEVICES", "0", "cuda:0", refused=held)
    with pytest.raises(TrialRefused, match=r"GPU 0000:03:00.0: not run because train \(7\) holds"):
        made("", target=target)


def test_a_limit_that_is_not_above_zero_is_refused():
    with pytest.raises(ValueError, match="limit seconds is 0"):
        TrialLimits(seconds=0)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("trainig", {}, "expected one of training, volume"),
        ("training", {"bacth": 8}, "parameter 'bacth' is not known"),
        ("training", {"batch": "8"}, "batch is '8'"),
        ("training", {"batch": -1}, "batch is -1"),
        ("training", {"batch": 1.5}, "batch is 1.5"),
        ("training", {"batch": True}, "batch is True"),
        ("training", {"optimizer": 3}, "optimizer is 3"),
    ],
)
def test_a_workload_that_does_not_exist_is_answered_with_those_that_do(name, parameters, said):
    with pytest.raises(WorkloadError, match=said):
        workload(name, **parameters)


def test_no_command_and_a_marker_that_is_no_expression_are_refused():
    with pytest.raises(WorkloadError, match="expected one after --"):
        command([])
    with pytest.raises(WorkloadError, match="step marker"):
        command(["true"], "loss=(")


def test_every_parameter_that_a_program_takes_is_named_here_and_none_that_it_does_not():
    from helpers.trials.under_torch import workloads as programs

    def read(of):
        return set(re.findall(r"\bp\.(\w+)", inspect.getsource(of)))

    for name, known in BUILT_IN.items():
        taken = read(programs.PROGRAMS[name])
        taken |= read(programs.tidy) if known.parameters.get("gc_every") is not None else set()
        assert taken == set(known.parameters) and known.seconds > 0


# Its record.


def test_each_trial_is_run_and_its_record_kept(made, tmp_path):
    code = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    first = made(code)
    other = made(code, repeat=1)
    assert other.key != first.key and (tmp_path / "runs").read_text() == "xx"
    written = json.loads((tmp_path / f"kept/{first.key}.json").read_text())
    assert written["schema_version"] == 1 and written["seed"] == 1


def test_a_disk_that_is_full_when_the_record_is_written_loses_no_measurement(
    made, tmp_path, monkeypatch
):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    record = made("print('loss=2')", step="loss=([0-9]+)")
    assert "No space left on device; the trial was measured" in record.not_kept
    assert record.loss == [2.0] and list((tmp_path / "kept").iterdir()) == []


def test_memory_the_driver_counts_is_read_outside_the_process(tmp_path):
    card = tmp_path / f"sys/bus/pci/devices/{FIRST}"
    card.mkdir(parents=True)
    (card / "mem_info_vram_used").write_text("1000\n")
    (card / "mem_info_gtt_used").write_text("24\n")
    assert driver_used(FIRST, str(tmp_path)).value == 1024
    assert driver_used("0000:04:00.0", str(tmp_path)).why == "this driver has no such file in sysfs"


def test_a_cgroup_limits_swap_too_and_its_own_kills_alone_count(tmp_path, monkeypatch):
    box = tmp_path / "sys/fs/cgroup"
    box.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/vmstat").write_text("oom_kill 7\n")
    mkdir = Path.mkdir

    def as_the_kernel_does(path, *args, **more):
        mkdir(path, *args, **more)
        for name in ("memory.max", "memory.swap.max", "memory.events"):
            (path / name).write_text("oom_kill 0\n" if name == "memory.events" else "max\n")

    assert Group(None, tmp_path).kills() is None
    (box / "memory.events").write_text("low 0\noom_kill 2\n")
    assert Group(None, tmp_path).kills() == 2
    monkeypatch.setattr(Path, "mkdir", as_the_kernel_does)
    group = Group(64 * MIB, tmp_path)
    limits = [Path(group.path, name).read_text() for name in ("memory.max", "memory.swap.max")]
    assert limits == [str(64 * MIB), "0"] and group.kills() == 0


# The built-in workloads: a stand-in for their program, and each behaviour of the program once under the real torch.

ANSWERS = """#!/bin/sh
echo '{{"event": "ready", "torch": "2.14.1+cpu", "start_rss_bytes": 100}}'
echo 'a library speaks'
{more}
"""


@pytest.fixture
def answers(made, tmp_path):
    """A trial of the built-in churn whose program answers with these lines of a shell."""

    def one(more, **given):
        python = tmp_path / "python"
        python.write_text(ANSWERS.format(more=more))
        python.chmod(0o755)
        return made(workload("churn"), python=str(python), **given)

    return one


def test_what_a_workload_tells_is_kept(answers):
    step = """echo '{{"event": "step", "loss": 0.5, "seconds": {}}}'"""
    end = """echo '{"event": "end", "peak_rss_bytes": 350}'"""
    found = answers("\n".join([*map(step.format, (9, 0.1, 0.4, 0.2)), end]))
    assert (found.outcome, found.steps, found.loss) == ("ok", 4, [0.5] * 4)
    assert (found.work_bytes, found.build, found.device) == (250, "cpu", "cpu")
    assert found.step_seconds == 0.2, "the median without the first, which warms up"
    assert found.peak_reserved_bytes is None and found.torch == "2.14.1+cpu"


def test_an_exit_without_an_end_is_a_crash_and_a_refusal_is_told(answers):
    assert answers("exit 0").outcome == "crashed"
    with pytest.raises(TrialRefused, match="churn: this torch sees no GPU"):
        answers("""echo '{"event": "refused", "why": "this torch sees no GPU"}'""")
    oom = answers("""echo '{"event": "oom", "message": "no room", "peak_reserved_bytes": 5}'""")
    assert (oom.outcome, oom.message, oom.peak_reserved_bytes) == ("oom", "no room", 5)


def test_torchs_own_out_of_memory_on_the_host_is_read(made):
    pytest.importorskip("torch")
    large = workload("churn", live_mib=2000, steps=3)
    found = made(large, limits=TrialLimits(seconds=60, host_bytes=700 * MIB))
    assert found.outcome == "oom" and "DefaultCPUAllocator" in found.message
    assert evidence(found, "oom_message").ok


def test_a_gpu_that_is_demanded_of_a_torch_without_one_is_refused(made):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch has a GPU")
    target = Target(FIRST, "CUDA_VISIBLE_DEVICES", "0", "cuda:0")
    with pytest.raises(TrialRefused, match="churn: this torch is a CPU build|sees no GPU"):
        made(workload("churn"), limits=TrialLimits(), target=target)


@pytest.mark.slow
def test_chunks_give_the_same_profile_in_less_memory(made):
    pytest.importorskip("torch")
    whole = made(workload("volume", steps=3, ticks=60_000), limits=SLOW)
    chunked = made(workload("volume", steps=3, ticks=60_000, chunk=6000), limits=SLOW)
    assert whole.outcome == chunked.outcome == "ok" and whole.loss == chunked.loss
    assert len(whole.loss) == 3 and chunked.work_bytes < 0.6 * whole.work_bytes
    assert whole.build == "cpu" and whole.torch and whole.peak_reserved_bytes is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"accumulate": 4}, {"checkpointing": 1}, {"optimizer": "fused"}]
)
def test_what_saves_memory_in_training_learns_the_same(made, change):
    pytest.importorskip("torch")
    plain = made(workload("training", steps=3), limits=SLOW)
    changed = made(workload("training", steps=3, **change), limits=SLOW)
    assert changed.loss == pytest.approx(plain.loss, rel=1e-4) and len(plain.loss) == 3
