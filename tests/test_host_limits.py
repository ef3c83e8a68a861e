"""RAM that the host refuses: on a box at hand the limit is read, from a text alone each answer is explained."""

import json

import pytest
from changed_boxes import changed

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_bundle, evidence_from_message

REFUSED = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 9663676416 bytes. Error code 12"
)
GIB_IN_KIB = 1 << 20


def verdict_on(addresses="unlimited", overcommit="0", ram=16, swap=2, commit=20, promised=4):
    limit = {"name": "as", "soft": addresses, "hard": addresses, "unit": "bytes"}
    sizes = {"MemTotal": ram, "MemAvailable": ram, "SwapTotal": swap, "SwapFree": swap}
    sizes.update(CommitLimit=commit, Committed_AS=promised)
    meminfo = "".join(f"{name}: {gib * GIB_IN_KIB} kB\n" for name, gib in sizes.items())
    sources = {"limits": json.dumps(limit) + "\n", "/proc/meminfo": meminfo}
    sources["/proc/sys/vm/overcommit_memory"] = f"{overcommit}\n"
    return diagnose(evidence_from_bundle(changed("cpu-only", **sources, message=REFUSED)))


@pytest.mark.parametrize(
    ("box", "headline", "command"),
    [
        (
            {"addresses": 8 << 30},
            "ulimit -v caps each program's virtual memory at 8.00 GiB",
            "ulimit -v unlimited",
        ),
        (
            {"addresses": 40 << 30},
            "ulimit -v caps each program's virtual memory at 40.00 GiB",
            "ulimit -v unlimited",
        ),
        (
            {"overcommit": "2", "promised": 18},
            "strict commit limit has only 2.00 GiB left",
            "overcommit_memory=0",
        ),
        ({"ram": 6, "swap": 1}, "RAM and swap together have only 7.00 GiB", "swapon"),
        ({}, "this machine and this shell would give it", "/proc/PID/limits"),
        (
            {"overcommit": "1", "ram": 6},
            "The operating system refused 9.00 GiB of RAM",
            "overcommit_memory",
        ),
    ],
)
def test_the_limit_that_refused_is_read_on_the_box(box, headline, command):
    verdict = verdict_on(**box)
    assert (verdict.cause, verdict.confidence) == ("host-oom", "likely")
    assert headline in verdict.headline
    assert command in verdict.next_step.command


def test_from_a_text_alone_each_command_says_what_its_answer_means():
    command = diagnose(evidence_from_message(REFUSED)).next_step.command
    for words in (
        "diagnose live --message",
        "(KiB) caps the program's virtual memory, or its data\nulimit -v; ulimit -d",
        "2 means that Linux commits no more than swap and vm.overcommit_ratio percent of the RAM",
        "9.00 GiB; else ask",
        "sysctl vm.max_map_count",
    ):
        assert words in command
