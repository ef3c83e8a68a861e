"""A trial: its outcomes, what it is given, what it leaves behind, and records that survive."""

import errno
import json
import os
import sys
import time
from pathlib import Path

import pytest

from helpers import child
from helpers.child import Ended, Group
from helpers.load import targets
from helpers.load import trial as trials
from helpers.load.box import torch_files
from helpers.load.targets import Target
from helpers.load.trial import Limits, RecordNotKept, TrialError, TrialRefused, driver_used, trial
from helpers.load.workloads import WorkloadError, command, workload
from helpers.look.reading import MIB
from helpers.settings.presets import NONE, Preset, parse

QUICK = Limits(seconds=20, silent_s=5)


def run(code, tmp_path, limits=QUICK, preset=NONE, step="", **more):
    return trial(
        command([sys.executable, "-c", code], step),
        preset,
        python=sys.executable,
        seed=1,
        limits=limits,
        out=tmp_path,
        **more,
    )


def built_in(name, tmp_path, limits=Limits(seconds=100), **parameters):  # noqa: B008
    return trial(
        workload(name, **parameters),
        NONE,
        python=sys.executable,
        seed=1,
        limits=limits,
        out=tmp_path,
    )


def test_a_command_that_ends_well_is_ok_and_its_steps_and_losses_are_read(tmp_path):
    found = run(
        "import time\nfor i in range(4): print('loss=%g' % (1 / (i + 1)), flush=True); time.sleep(.05)",
        tmp_path,
        step=r"loss=([0-9.]+)",
    )
    assert (found.outcome, found.complete, found.steps) == ("ok", True, 4)
    assert found.loss == [1.0, 0.5, 0.333333, 0.25] and 0.04 < found.step_seconds < 1
    assert (
        found.evidence[0].reading.status == "not_available"
        and "CPU" in found.evidence[0].reading.why
    )


def test_a_workload_that_cannot_be_imported_is_named(tmp_path):
    found = run("import nowhere_to_be_found", tmp_path)
    assert found.outcome == "crashed" and found.exit_code == 1
    assert (
        found.message == "exit code 1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    )


def test_a_program_that_is_not_there_is_named(tmp_path):
    found = trial(command(["no-such-program"]), NONE, python="", seed=1, limits=QUICK, out=tmp_path)
    assert found.outcome == "crashed" and "no-such-program: cannot be run" in found.message


def test_a_signal_is_a_crash(tmp_path):
    found = run("import os; os.kill(os.getpid(), 11)", tmp_path)
    assert (found.outcome, found.signal) == ("crashed", "SIGSEGV")


def test_a_hang_is_told_from_slowness_and_keeps_the_stacks(tmp_path):
    code = "import time\nfor i in range(3): print('step', flush=True)\ntime.sleep(60)"
    found = run(code, tmp_path, Limits(seconds=20, silent_s=1), step="step")
    assert found.outcome == "hung" and found.message == "no word for 1 s, after 2 steps"
    assert "state S" in found.stacks and "thread" in found.stacks
    slow = run(
        "import time\nwhile 1: print('step', flush=True); time.sleep(.1)",
        tmp_path,
        Limits(seconds=1.5, silent_s=1),
        step="step",
    )
    assert (
        (slow.outcome, slow.complete) == ("ok", False)
        and "slow, not hung" in slow.message
        and slow.steps > 3
    )


def test_a_program_of_which_no_word_is_expected_may_be_silent(tmp_path):
    found = run(
        "import time; time.sleep(30)", tmp_path, Limits(seconds=0.7, silent_s=None, start_s=0.1)
    )
    assert (found.outcome, found.complete) == (
        "ok",
        False,
    ) and "progress was not watched" in found.message


def test_running_into_the_host_memory_limit_is_an_out_of_memory(tmp_path):
    found = run(
        "held = []\nwhile True: held.append(bytearray(10 << 20))",
        tmp_path,
        Limits(seconds=20, host_bytes=200 * MIB),
    )
    assert found.outcome == "oom" and found.message.startswith("MemoryError")
    assert 100 * MIB < found.rss_anon_bytes < 210 * MIB


def test_a_message_of_a_program_that_ran_out_is_kept_and_read(tmp_path):
    words = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.56 GiB "
        "of which 1.00 GiB is free. Of the allocated memory 21.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved "
        "by PyTorch but unallocated."
    )
    found = run(f"import sys; sys.exit({words!r})", tmp_path)
    assert found.outcome == "oom" and "Tried to allocate 2.00 GiB" in found.message
    assert next(one for one in found.evidence if one.id == "oom_message").reading.value == 2 << 30


def test_the_kernels_oom_killer_is_told_apart_from_a_crash(tmp_path):
    group = Group(64 * MIB)
    if not group.path:
        pytest.skip(f"no memory limit for several processes can be set here: {group.why}")
    assert group.remove() == ""
    code = (
        "import subprocess, sys\nchild = 'b = bytearray(150 << 20)\\nfor i in range(0, len(b), 4096): b[i] = 1\\n"
        "import time; time.sleep(1)'\nparts = [subprocess.Popen([sys.executable, '-c', child]) for _ in range(2)]\n"
        "sys.exit(max(part.wait() != 0 for part in parts))"
    )
    found = run(code, tmp_path, Limits(seconds=20, host_bytes=200 * MIB))
    assert found.outcome == "host_oom" and found.clean == ""
    assert next(one for one in found.evidence if one.id == "oom_kill").reading.value >= 1


def test_one_that_outlives_sigkill_is_stuck_and_not_waited_for(tmp_path, monkeypatch):
    def stuck(argv, limit_s, **more):
        return Ended(
            "stuck", None, "", 1.0, "", "pid 9 thread 9 x: state D, waits in fence_wait", (9,)
        )

    monkeypatch.setattr(trials, "watch", stuck)
    found = run("", tmp_path)
    assert (
        found.outcome == "stuck"
        and "fence_wait" in found.message
        and found.left_pids == [9]
        and found.clean
    )


def test_what_a_trial_leaves_running_is_ended_and_the_box_is_clean(tmp_path):
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); open(sys.argv[1], 'w').write(str(p.pid))"
    where = tmp_path / "pid"
    found = trial(
        command([sys.executable, "-c", code, str(where)]),
        NONE,
        python="",
        seed=1,
        limits=QUICK,
        out=tmp_path,
    )
    assert found.outcome == "ok" and found.clean == ""
    stat = f"/proc/{where.read_text()}/stat"
    assert not os.path.exists(stat) or open(stat).read().rpartition(")")[2].split()[0] == "Z"


def test_only_the_presets_settings_reach_the_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("HSA_ENABLE_SDMA", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    preset = parse("export GPU_MAX_HW_QUEUES=2\nexport MY_OWN=1\n", "mine")
    check = (
        "import os, sys; e = os.environ; sys.exit(0 if e.get('GPU_MAX_HW_QUEUES') == '2' and 'HSA_ENABLE_SDMA' not in e "
        "and 'PYTORCH_CUDA_ALLOC_CONF' not in e and e['CUDA_VISIBLE_DEVICES'] == '1' else 3)"
    )
    found = run(check, tmp_path, preset=preset)
    assert found.outcome == "ok", found.message
    assert found.settings == {"GPU_MAX_HW_QUEUES": "2", "MY_OWN": "1"}
    assert found.notes == ["MY_OWN: no table of settings knows it"]


def test_a_finished_trial_is_not_run_again_and_another_repeat_is(tmp_path):
    code = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    first, second, other = run(code, tmp_path), run(code, tmp_path), run(code, tmp_path, repeat=1)
    assert first == second and other.key != first.key
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_program_that_changed_is_run_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "part.py").write_text("words = 'first'\n")
    (tmp_path / "train.py").write_text("import part; print(part.words)\n")
    wanted = command([sys.executable, "train.py"])

    def outcome():
        return trial(
            wanted, NONE, python=sys.executable, seed=1, limits=QUICK, out=tmp_path / "kept"
        ).outcome

    assert outcome() == outcome() == "ok" and len(list((tmp_path / "kept").iterdir())) == 1
    (tmp_path / "part.py").write_text("raise SystemExit('broken')\n")
    assert outcome() == "crashed"
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    assert outcome() == "crashed" and len(list((tmp_path / "kept").iterdir())) == 3


def test_another_torch_is_another_trial(tmp_path, monkeypatch):
    for folder, version in (("old", "2.6.0+cu124"), ("new", "2.14.1+cu128")):
        package = tmp_path / folder / "torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "version.py").write_text(f"__version__ = '{version}'\n")
    keys = set()
    for folder in ("old", "new"):
        python = tmp_path / f"python-{folder}"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / folder} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        (tmp_path / "python").unlink(missing_ok=True)
        (tmp_path / "python").symlink_to(python)
        torch_files.cache_clear()
        keys.add(
            trial(
                command([str(tmp_path / "python"), "-c", ""]),
                NONE,
                python="",
                seed=1,
                limits=QUICK,
                out=tmp_path / "kept",
            ).key
        )
    assert len(keys) == 2


def test_a_users_package_called_helpers_is_the_users(tmp_path, monkeypatch):
    site = tmp_path / "site" / "helpers"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("mine = 1\n")
    program = tmp_path / "prog.py"
    program.write_text("from helpers import mine\n")
    monkeypatch.setenv("PYTHONPATH", str(site.parent))
    found = trial(
        command([sys.executable, str(program)]),
        NONE,
        python="",
        seed=1,
        limits=QUICK,
        out=tmp_path / "kept",
    )
    assert found.outcome == "ok", found.message


@pytest.mark.parametrize("where", ["cwd", "PYTHONPATH"])
def test_a_package_called_helpers_that_lies_about_is_not_taken_for_the_workbooks(
    tmp_path, monkeypatch, where
):
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("raise SystemExit('the other helpers')\n")
    if where == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    argv = child.program(sys.executable, "helpers.torchside.workloads", "no such thing")
    ended = child.watch(
        argv, 60, cwd=tmp_path if where == "cwd" else None, env=targets.environment()
    )
    assert "the other helpers" not in ended.last_words and "JSONDecodeError" in ended.last_words


def test_settings_under_which_no_limit_holds_reach_no_child(monkeypatch):
    for name in (
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    ):
        monkeypatch.setenv(name, "1")
    assert not [name for name in targets.environment() if name.startswith("PYTORCH_")]


def test_a_cgroup_limits_swap_too_and_its_own_kills_alone_count(tmp_path, monkeypatch):
    box = tmp_path / "sys/fs/cgroup"
    box.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/vmstat").write_text("oom_kill 7\n")
    made = Path.mkdir

    def as_the_kernel_does(path, *args, **more):
        made(path, *args, **more)
        for name in ("memory.max", "memory.swap.max", "memory.events"):
            (path / name).write_text("oom_kill 0\n" if name == "memory.events" else "max\n")

    assert Group(None, tmp_path).kills() is None
    (box / "memory.events").write_text("low 0\noom_kill 2\n")
    assert Group(None, tmp_path).kills() == 2
    monkeypatch.setattr(Path, "mkdir", as_the_kernel_does)
    group = Group(64 * MIB, tmp_path)
    assert (
        Path(group.path, "memory.max").read_text(),
        Path(group.path, "memory.swap.max").read_text(),
    ) == (str(64 * MIB), "0")
    assert group.kills() == 0


def test_a_kill_that_nothing_proves_to_be_the_kernels_is_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "oom_kills", lambda root=None: None)
    found = run("import os; os.kill(os.getpid(), 9)", tmp_path)
    assert found.outcome == "crashed" and "no counter of its kills can be read" in found.message


def test_what_differs_in_anything_given_is_another_trial(tmp_path):
    keys = {
        run("", tmp_path, **more).key
        for more in (
            {},
            {"repeat": 1},
            {"limits": Limits(seconds=21, silent_s=5)},
            {"preset": Preset("none", {"A": "1"}, {})},
        )
    }
    assert len(keys) == 4


def test_a_torn_record_is_named(tmp_path):
    found = run("", tmp_path)
    (tmp_path / f"{found.key}.json").write_text('{"schema_version": 1, "wor')
    with pytest.raises(TrialError, match=f"{found.key}.json.*remove it to run it again"):
        run("", tmp_path)


def test_a_disk_that_is_full_when_the_record_is_written_loses_no_measurement(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        RecordNotKept, match="No space left on device; the trial was measured"
    ) as caught:
        run("print('loss=2')", tmp_path, step="loss=([0-9]+)")
    assert caught.value.record.loss == [2.0] and list(tmp_path.iterdir()) == []


def test_a_gpu_that_must_be_left_alone_is_not_touched(tmp_path):
    target = Target(
        "0000:03:00.0",
        "HIP_VISIBLE_DEVICES",
        "0",
        "cuda:0",
        refused="not run because train (7) holds 3.00 GiB",
    )
    with pytest.raises(TrialRefused, match=r"GPU 0000:03:00.0: not run because train \(7\) holds"):
        run("", tmp_path, target=target)


def test_memory_the_driver_counts_is_read_outside_the_process(tmp_path):
    card = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    card.mkdir(parents=True)
    (card / "mem_info_vram_used").write_text("1000\n")
    (card / "mem_info_gtt_used").write_text("24\n")
    assert driver_used("0000:03:00.0", str(tmp_path)).value == 1024
    assert driver_used("0000:04:00.0", str(tmp_path)).why == "this driver has no such file in sysfs"


def test_py_spy_is_asked_where_it_is_there(tmp_path, monkeypatch):
    fake = tmp_path / "py-spy"
    fake.write_text('#!/bin/sh\necho "asked $*"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert f"asked dump --pid {os.getpid()}" in child.stacks_of(os.getsid(0), [os.getpid()])


def test_a_gpu_that_is_demanded_of_a_torch_without_one_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch has a GPU")
    with pytest.raises(TrialRefused, match="churn: this torch is a CPU build|sees no GPU"):
        trial(
            workload("churn"),
            NONE,
            python=sys.executable,
            seed=1,
            limits=Limits(),
            out=tmp_path,
            target=Target("0000:03:00.0", "CUDA_VISIBLE_DEVICES", "0", "cuda:0"),
        )


def test_chunks_give_the_same_profile_in_less_memory(tmp_path):
    pytest.importorskip("torch")
    whole = built_in("volume", tmp_path, steps=3, ticks=60_000)
    chunked = built_in("volume", tmp_path, steps=3, ticks=60_000, chunk=6000)
    assert (
        whole.outcome == chunked.outcome == "ok"
        and whole.loss == chunked.loss
        and len(whole.loss) == 3
    )
    assert chunked.work_bytes < 0.6 * whole.work_bytes
    assert (
        whole.build == "cpu"
        and whole.torch
        and whole.device == "cpu"
        and whole.peak_reserved_bytes is None
    )


def test_torchs_own_out_of_memory_on_the_host_is_read(tmp_path):
    pytest.importorskip("torch")
    found = built_in(
        "churn", tmp_path, Limits(seconds=60, host_bytes=700 * MIB), live_mib=2000, steps=3
    )
    assert found.outcome == "oom" and "DefaultCPUAllocator" in found.message
    assert next(one for one in found.evidence if one.id == "oom_message").reading.ok


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("trainig", {}, "expected one of training, volume"),
        ("training", {"bacth": 8}, "parameter 'bacth' is not known"),
        ("training", {"batch": "8"}, "batch is '8'"),
        ("training", {"batch": -1}, "batch is -1"),
        ("training", {"batch": 1.5}, "batch is 1.5"),
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


def test_a_limit_that_is_not_above_zero_is_refused():
    with pytest.raises(ValueError, match="limit seconds is 0"):
        Limits(seconds=0)


def test_the_parameters_named_here_are_those_of_the_programs():
    import inspect

    from helpers.load.workloads import BUILT_IN
    from helpers.torchside import workloads as programs

    keep, planted = (
        {"empty_cache_every": 0, "gc_every": 0, "double": 0},
        {"ballast_mib": 0, "slow": 1.0},
    )
    for name, known in BUILT_IN.items():
        found = {
            key: one.default
            for key, one in inspect.signature(programs.PROGRAMS[name]).parameters.items()
            if one.kind is one.KEYWORD_ONLY and key not in ("seed", "first")
        }
        found |= keep if "empty_cache_every" in known.parameters else {}
        found |= {"recycle_every": 0, "parallel": 1} if name == "tuning" else {}
        assert {**found, **planted} == dict(known.parameters)


@pytest.mark.slow
def test_fresh_processes_make_the_same_steps_and_hold_less(tmp_path):
    pytest.importorskip("torch")
    one = built_in("tuning", tmp_path, leak_mib=64)
    fresh = built_in("tuning", tmp_path, leak_mib=64, recycle_every=4)
    assert one.loss == fresh.loss and len(fresh.loss) == 12
    assert fresh.rss_anon_bytes < 0.8 * one.rss_anon_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"accumulate": 4}, {"checkpointing": 1}, {"optimizer": "fused"}]
)
def test_what_saves_memory_in_training_learns_the_same(tmp_path, change):
    pytest.importorskip("torch")
    plain = built_in("training", tmp_path, steps=3)
    changed = built_in("training", tmp_path, steps=3, **change)
    assert changed.loss == pytest.approx(plain.loss, rel=1e-4) and len(plain.loss) == 3


def test_a_record_is_whole_json_with_a_schema_version(tmp_path):
    began = time.monotonic()
    found = run("", tmp_path)
    written = json.loads((tmp_path / f"{found.key}.json").read_text())
    assert written["schema_version"] == 1 and written["seconds"] <= time.monotonic() - began
