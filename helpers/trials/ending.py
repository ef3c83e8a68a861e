"""How did a trial end, and what proves it?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from helpers.ground.child import Ended, last_line
from helpers.ground.shapes import Evidence, Outcome, not_available, seen
from helpers.look.message import of_device
from helpers.look.messages import read_message
from helpers.trials.leftovers import driver_used
from helpers.trials.listener import Listener

HOST_OOM = re.compile(r"(numpy.*)?MemoryError|terminate called .*std::bad_alloc")
MESSAGE_CHARACTERS = 4000
UNCOUNTED_KILL = " (by the kernel's OOM killer or not: no counter of its kills can be read for this group alone)"


class Ending(NamedTuple):
    """The outcome, the words that say why, and whether the work came to its end."""

    outcome: Outcome
    message: str
    complete: bool = False


def ending_of(ended: Ended, listener: Listener, killed: int | None) -> Ending:
    """The ending of a trial, from its process and from what it told.

    ``killed``: how many of its processes the kernel's OOM killer ended; None where no counter
    says so.
    """
    words = f"{listener.tail}\n{ended.last_words}"
    if ended.how == "stuck":
        where = ended.stacks.partition("\n")[0]
        return Ending("stuck", f"it waits in the kernel and outlived SIGKILL: {where}")
    if "oom" in listener.events:
        return Ending(
            "oom", str(listener.events["oom"]["message"])[:MESSAGE_CHARACTERS]
        )
    if ended.how == "timed_out":
        return _hung_or_slow(listener)
    finished = "end" in listener.events or bool(listener.workload.command)
    if ended.how == "exited" and ended.exit_code == 0 and finished:
        return Ending("ok", "", complete=True)
    if killed and (ended.signal == "SIGKILL" or ended.exit_code):
        return Ending(
            "host_oom", f"the kernel's OOM killer ended {killed} of its processes"
        )
    message = _ran_out(words)
    if message:
        return Ending("oom", message)
    last = last_line(ended.last_words or listener.tail)
    if HOST_OOM.match(last) or "std::bad_alloc" in words:
        return Ending("oom", last)
    end = f"exit code {ended.exit_code}"
    if ended.signal:
        end = f"ended by {ended.signal}"
    if ended.signal == "SIGKILL" and killed is None:
        end += UNCOUNTED_KILL
    return Ending("crashed", f"{end}: {last}")


def _hung_or_slow(listener: Listener) -> Ending:
    """What a trial is that was stopped: slow where it made progress, else hung."""
    limits = listener.limits
    deadline = listener.began + limits.seconds
    if listener.ready is not None and listener.heard + limits.silent_s > deadline:
        stopped = f"stopped at its limit of {limits.seconds:g} s"
        return Ending("ok", f"{stopped} while it made progress: slow, not hung")
    silent_s = limits.start_s if listener.ready is None else limits.silent_s
    silent_s = min(silent_s, limits.seconds)
    return Ending(
        "hung", f"no word for {silent_s:g} s, after {len(listener.step_s)} steps"
    )


def _ran_out(words: str) -> str:
    """The message of a GPU out of memory that a program ended with, or empty."""
    refused = [
        message
        for message in read_message(words).messages
        if of_device(message) and message.event.startswith("refused")
    ]
    if not refused:
        return ""
    start = max(0, words.find("out of memory") - 400)
    return (refused[-1].words or words[start:])[:MESSAGE_CHARACTERS]


def evidence_of(
    listener: Listener, ending: Ending, killed: int | None
) -> Iterator[Evidence]:
    """The readings that an ending rests on: the driver's count, the message, the kernel's kills."""
    used = not_available("it never started", "bytes", "sysfs")
    if listener.sampler is not None:
        used = driver_used(listener.target.pci)
        if listener.sampler.device_bytes is not None:
            used = seen(listener.sampler.device_bytes, "bytes", used.source)
    says = "the most that the driver counted as used on the card"
    yield Evidence(id="driver_used", reading=used, says=says)
    if killed:
        says = "processes ended by the kernel's OOM killer during the trial"
        count = seen(killed, "count", "oom_kill of the cgroup")
        yield Evidence(id="oom_kill", reading=count, says=says)
    if ending.outcome != "oom":
        return
    for message in read_message(ending.message).messages[:1]:
        size = not_available("the message names no size", "bytes", "the message")
        if message.requested and message.requested.bytes is not None:
            size = seen(message.requested.bytes, "bytes", "the message")
        says = f"{message.program or 'it'} asked for that much and failed"
        yield Evidence(id="oom_message", reading=size, says=says)
