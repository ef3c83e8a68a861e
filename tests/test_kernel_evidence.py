"""A line of the kernel's log is evidence only for its own process, and only near the failure."""

import box_builder as build
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, evidence_from_bundle, evidence_from_message
from helpers.look.boxes import recorded_names
from helpers.share.public_copy import HIDDEN, STEP_NOT_SHOWN, SUMMARY_NOT_SHOWN, PublicCopy

UP_S = 90_000
TORCH = (
    'Traceback (most recent call last):\n  File "fit.py", line 9, in <module>\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB. GPU 0 has a total "
    "capacity of 15.77 GiB of which {} MiB is free. Including non-PyTorch memory, this process "
    "has {} GiB memory in use. Of the allocated memory {} GiB is allocated by PyTorch, and {} MiB "
    "is reserved by PyTorch but unallocated."
)
TEXTS = [
    TORCH.format(300, 90, 15.6, 14.9, 120),
    TORCH.format(300, 90, 2.1, 1.5, 30),
    TORCH.format(300, 90, 15.6, 11.2, 3300),
    "RuntimeError: DataLoader worker (pid 5150) is killed by signal: Killed.",
    "$ python fit.py\nKilled",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
    "OSError: [Errno 28] No space left on device",
    "RuntimeError: CUDA error: out of memory",
    "something went wrong",
]
STRANGERS = [
    "Out of memory: Killed process {pid} ({name}) total-vm:9000000kB, anon-rss:8000000kB",
    "Memory cgroup out of memory: Killed process {pid} ({name}) total-vm:9000kB, anon-rss:800kB",
    "NVRM: Xid (PCI:0000:01:00): 31, pid={pid}, name={name}, Ch 00000008, intr 10000000.",
    "NVRM: Xid (PCI:0000:01:00): 79, pid={pid}, name={name}, GPU has fallen off the bus.",
    "amdgpu 0000:03:00.0: amdgpu: VM memory stats for proc {name}({pid}) task {name}({pid}) is "
    "non-zero when fini",
    "amdgpu 0000:03:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 "
    "pasid:32770, for process {name} pid {pid} thread {name} pid {pid}",
    "__vm_enough_memory: pid: {pid}, comm: {name}, bytes: 68719476736 not enough memory for the "
    "allocation",
]
FOREIGN = st.builds(
    lambda form, pid, name: form.format(pid=pid, name=name),
    st.sampled_from(STRANGERS),
    st.integers(6000, 99_999),
    st.sampled_from(["mysqld", "blender", "steam", "Xwayland", "java"]),
)
OF_ANOTHER_HOUR = st.builds(
    lambda form, pid: form.format(pid=pid, name="python3"),
    st.sampled_from(STRANGERS),
    st.integers(6000, 99_999),
)


def box(name, text, log, up_s=UP_S):
    """A recorded box with a posted text and a kernel log; it ran for ``up_s`` when it was looked at."""
    made = build.copied(name, {"message": text, "dmesg": log} if log else {"message": text})
    return made.writer.bundle()


def captured(text, *log, up_s=UP_S, groups="0::/user.slice/run-7.scope\n"):
    """A small box of one moment, with a posted text and a log of its own."""
    made = build.Box("x", "live", "2026-01-01T00:00:00Z")
    made.rows("host", [{"page_size": 4096, "boot_id": "b", "up_s": up_s}])
    made.stated("/proc/self/cgroup", groups)
    if text:
        made.stated("message", text)
    made.stated("dmesg", "".join(f"{line}\n" for line in log), kind="command")
    return evidence_from_bundle(made.writer.bundle())


def answer(evidence):
    verdict = diagnose(evidence)
    return verdict.cause, verdict.confidence


@given(st.sampled_from(TEXTS), st.sampled_from(recorded_names()), FOREIGN, st.integers(0, UP_S))
@settings(deadline=None, max_examples=examples(60))
def test_a_strangers_line_in_the_log_of_any_box_changes_no_verdict(text, name, line, second):
    stamped = f"[{second:5d}.000000] {line}\n"
    before = answer(evidence_from_bundle(box(name, text, "")))
    assert answer(evidence_from_bundle(box(name, text, stamped))) == before


@given(st.sampled_from(TEXTS), FOREIGN, st.integers(0, UP_S))
@settings(deadline=None)
def test_a_strangers_line_of_any_age_changes_no_verdict(text, line, second):
    assert answer(captured(text, f"[{second:5d}.000000] {line}")) == answer(captured(text))


@given(st.sampled_from(TEXTS), OF_ANOTHER_HOUR, st.integers(0, UP_S - 3600))
@settings(deadline=None)
def test_a_line_of_another_hour_changes_no_verdict_whatever_its_name(text, line, second):
    assert answer(captured(text, f"[{second:5d}.000000] {line}")) == answer(captured(text))


@given(st.sampled_from(TEXTS), FOREIGN)
@settings(deadline=None)
def test_a_strangers_line_pasted_under_the_error_or_as_a_tool_changes_no_verdict(text, line):
    before = answer(evidence_from_message(text))
    if text == TEXTS[-1]:
        return  # a text without a failure: the pasted line is what is asked about
    assert answer(evidence_from_message(f"{text}\n{line}\n")) == before
    asked = {"error_text": text, "tool_outputs": {"dmesg": line}}
    without = {"error_text": text, "tool_outputs": {"dmesg": "usb 1-2: new device"}}
    assert answer(case_evidence(asked)) == answer(case_evidence(without))


@pytest.mark.parametrize(
    "line",
    [
        f"[{UP_S - 60}.5] Out of memory: Killed process 81 (python3) total-vm:9kB, anon-rss:8kB",
        f"[{UP_S - 60}.5] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,"
        "mems_allowed=0,oom_memcg=/user.slice/run-7.scope,task_memcg=/user.slice/run-7.scope,"
        "task=fit,pid=81,uid=0",
    ],
)
def test_the_kill_of_the_program_itself_a_minute_ago_is_the_cause(line):
    assert answer(captured("$ python fit.py\nKilled", line))[0] == "host-oom"


def test_the_killed_worker_is_known_by_its_number_whenever_it_was():
    text = "RuntimeError: DataLoader worker (pid 5150) is killed by signal: Killed."
    line = "[ 5.0] Out of memory: Killed process 5150 (python3) total-vm:9kB, anon-rss:8kB"
    assert answer(captured(text, line)) == ("host-oom", "confirmed")


def test_a_log_alone_is_what_is_asked_about_and_its_age_is_shown():
    line = "[ 86400.0] Out of memory: Killed process 81 (python3) total-vm:9kB, anon-rss:8kB"
    verdict = diagnose(captured("", line))
    assert verdict.cause == "host-oom"
    assert "60 min before this capture" in verdict.evidence[0].says
    assert answer(captured("", line.replace("86400", "100"), up_s=400_000))[0] != "host-oom"


@pytest.mark.parametrize("stamps", [("",), ("[86400.0] ",), ("[80000.0] ", "[86400.0] ")])
@pytest.mark.parametrize("form", STRANGERS[:-1])
def test_what_the_judge_says_of_a_kernel_log_is_on_a_shared_page(form, stamps):
    lines = [stamp + form.format(pid=5150, name="python3") for stamp in stamps]
    evidence = captured("", *lines)
    verdict = diagnose(evidence)
    copy = PublicCopy(evidence).verdict(verdict)
    assert verdict.summary and copy.summary != SUMMARY_NOT_SHOWN
    assert HIDDEN not in [row.says for row in copy.evidence]
    assert copy.next_step.what != STEP_NOT_SHOWN
    assert bool(copy.next_step.command) == bool(verdict.next_step.command)


def test_of_several_xids_the_first_is_the_cause_in_a_log_and_in_a_text():
    fault = "NVRM: Xid (PCI:0000:01:00): 31, pid=9, name=python3, Ch 00000008, intr 10000000."
    lost = "NVRM: Xid (PCI:0000:01:00): 79, pid=9, name=python3, GPU has fallen off the bus."
    for first, second in ((fault, lost), (lost, fault)):
        alone = diagnose(captured("", f"[ 89000.0] {first}")).title
        assert diagnose(captured("", f"[ 89000.0] {first}", f"[ 89003.0] {second}")).title == alone
        assert diagnose(evidence_from_message(f"{first}\n{second}")).title == alone


@pytest.mark.parametrize("text", TEXTS[:8])
def test_a_box_without_a_gpu_explains_no_failure_that_a_program_printed_of_another_kind(text):
    beside = answer(evidence_from_bundle(box("cpu-only", text, "")))
    assert beside == answer(evidence_from_message(text))
