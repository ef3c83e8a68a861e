"""The kernel log as a whole: every rule has its line, no text breaks the reader, and the sieve keeps what matters.

What single lines say stands in tests/data/readers.jsonl. What is collected is tried on programs that answer as journalctl and
dmesg do.
"""

import os
import re
import stat
from collections import namedtuple

import pytest
from data_rows import read_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.ground.tables import data
from helpers.look import commands, kernel_log, kernel_log_capture, wordings
from helpers.look.earlier_boot import last_lines
from helpers.look.kernel_line import LINE_LIMIT
from helpers.look.kernel_log import parse
from helpers.look.wordings import lines

CARD = "amdgpu 0000:03:00.0: "
Tried = namedtuple("Tried", "source content status why")
LINES = [
    row["text"] for row in read_lines("readers") if row["says"] == "each message becomes its event"
]


def test_every_rule_has_a_line_here():
    examples = [row["example"] for row in wordings.table() if row.get("log")]
    texts = [*LINES, *examples]
    used = {event.row for text in texts for event in parse(text)}
    assert {rule.id for rule in lines(log=True)} == used


def test_every_word_the_rules_wait_for_gets_through_the_sieve():
    sieve = kernel_log_capture.Sieve(1 << 20)
    sieve.feed("".join(LINES).encode())
    assert sieve.text().decode() == "".join(LINES)


@pytest.mark.parametrize("words", ["Process information: process", " Process", " in process"])
def test_a_timeout_is_folded_with_the_process_in_any_of_its_wordings(words):
    timeout = f"{CARD}amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3\n"
    (event,) = parse(f"{timeout}{CARD}amdgpu: {words} comp pid 10 thread comp:cs0 pid 11\n")
    assert (event.kind, event.pid, event.process) == ("ring_timeout", 10, "comp")


def test_every_known_xid_has_its_meaning_and_others_none():
    for code, meaning in {**kernel_log.xids(), "7777": ""}.items():
        (event,) = parse(
            f"[ 1.0] NVRM: Xid (PCI:0000:01:00): {code}, pid=7, name=python3, and more"
        )
        assert (event.kind, event.detail, event.meaning) == ("xid", code, meaning)
        assert meaning or code == "7777"
    assert parse(CARD + "GPU reset begin!")[0].meaning == ""


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(LINES) | st.text(max_size=60), max_size=12).map("\n".join)
    | st.text(max_size=300)
)
def test_any_text_is_read_without_an_error_and_every_event_points_at_its_line(text):
    rows = text.split("\n")
    found = parse(text)
    assert all(event.text in rows[event.line - 1] for event in found)
    assert sum(event.count for event in found) <= len(rows)
    assert list(found) == sorted(found, key=lambda event: event.line)


PIECES = "a|[|1|ring |kernel: |process |AER: |page fault |0000:03:00.|VM memory stats for proc (|"
PIECES += "Out of memory: Killed process 1 ("


@pytest.mark.parametrize("hostile", PIECES.split("|"))
def test_a_single_line_of_ten_megabytes_is_read_to_its_cut(hostile):
    line = hostile * (10_000_000 // len(hostile))
    last = "\n[ 1.0] amdgpu: VRAM is lost due to GPU reset!\n"
    assert len(parse(f"amdgpu reset {line}{last}")) in (1, 2)
    sieve = kernel_log_capture.Sieve(1 << 20)
    sieve.feed(b"amdgpu " + line.encode() + b"\n")
    assert len(sieve.text()) == LINE_LIMIT + 1


def test_the_sieve_keeps_the_start_and_the_end_and_says_how_much_is_missing():
    sieve = kernel_log_capture.Sieve(4000)
    for n in range(1000):
        sieve.feed(b"[%5d.0] amdgpu: line\nusb noise\n" % n)
    kept = sieve.text().decode().splitlines()
    assert kept[0].startswith("[    0.0]") and kept[-1].startswith("[  999.0]")
    gap = next(line for line in kept if line.startswith("---"))
    assert gap == f"--- {sieve.left_out} lines left out ---"
    assert sieve.left_out + len(kept) - 1 == 1000
    assert len(sieve.text()) <= 4000 + len(gap) + 1


PARTS = b"amdgpu x\n|noise\n|\n|-- No entries --\n|NVRM: y|\n\n|\xff\xfe".split(b"|")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(PARTS)).map(b"".join), st.integers(1, 9))
def test_the_sieve_keeps_the_same_whatever_pieces_the_stream_comes_in(data, size):
    whole = kernel_log_capture.Sieve(1 << 16)
    pieces = kernel_log_capture.Sieve(1 << 16)
    whole.feed(data)
    for at in range(0, len(data), size):
        pieces.feed(data[at : at + size])
    expected = [line for line in data.split(b"\n") if b"amdgpu" in line or b"NVRM" in line]
    assert pieces.text() == whole.text() == b"".join(line + b"\n" for line in expected)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Stands programs of one's own in for journalctl and dmesg, and nothing for /dev/kmsg."""
    monkeypatch.setattr(commands, "search_path", lambda: str(tmp_path))
    monkeypatch.setattr(kernel_log_capture, "LIMIT_S", 5.0)

    def collect(**scripts):
        for name, script in scripts.items():
            (tmp_path / name).write_text("#!/bin/sh\nPATH=/bin:/usr/bin\n" + script)
            (tmp_path / name).chmod(stat.S_IRWXU)
        items = [Tried(*one) for one in kernel_log_capture.collect(1 << 20)]
        found = [(item.source.split(), item) for item in items]
        return {" ".join(dict.fromkeys((words[0], words[-1]))): item for words, item in found}

    return collect


def test_both_boots_come_from_the_journal_and_dmesg_is_then_not_asked(programs):
    got = programs(
        journalctl='echo "-- Boot x --"; echo "[ 1.0] kernel: amdgpu: boot $7"; echo "[ 2.0] kernel: usb noise"\n',
        dmesg="echo '[ 1.0] amdgpu: never'\n",
    )
    assert set(got) == {"journalctl 0", "journalctl -1"}
    texts = [b"[ 1.0] kernel: amdgpu: boot %d\n" % boot for boot in (0, -1)]
    assert [(item.status, item.content) for item in got.values()] == [("ok", t) for t in texts]


def test_a_journal_that_only_hints_is_not_allowed_and_dmesg_answers(programs):
    got = programs(
        journalctl="echo 'Hint: You are currently not seeing messages from other users and the system.' >&2\n"
        "echo '-- No entries --'\n",
        dmesg="echo '[ 1.0] Linux version 6.1'\n",
    )
    now = got["journalctl 0"]
    assert (now.status, now.content) == ("not_allowed", None) and "not seeing messages" in now.why
    assert (got["dmesg"].status, got["dmesg"].content) == ("ok", b"[ 1.0] Linux version 6.1\n")


def test_a_restricted_kernel_log_is_not_allowed_everywhere(programs, monkeypatch):
    real = os.open

    def refuse(path, *args, **kwargs):
        if path == "/dev/kmsg":
            raise PermissionError(1, "Operation not permitted")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(kernel_log_capture.os, "open", refuse)
    got = programs(
        dmesg="echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n"
    )
    missing = dict.fromkeys(("journalctl 0", "journalctl -1"), "not_available")
    refused = dict.fromkeys(("dmesg", "/dev/kmsg"), "not_allowed")
    assert {name: item.status for name, item in got.items()} == {**missing, **refused}
    assert got["journalctl 0"].why == "no such program"


def test_a_program_that_hangs_costs_its_limit_and_what_it_said_is_kept(programs, monkeypatch):
    monkeypatch.setattr(kernel_log_capture, "LIMIT_S", 0.4)
    got = programs(journalctl="echo '[ 1.0] amdgpu: seen'\nexec sleep 60\n")
    now = got["journalctl 0"]
    assert (now.status, now.content) == ("truncated", b"[ 1.0] amdgpu: seen\n")
    assert now.why == "stopped after 0.4 s"


def test_an_earlier_boot_that_was_not_kept_says_so(programs):
    got = programs(
        journalctl='[ "$7" = 0 ] && echo "[ 1.0] NVRM: here" && exit 0\n'
        'echo "Specifying boot ID has no effect, no persistent journal was found." >&2\nexit 1\n'
    )
    before = got["journalctl -1"]
    assert before.status == "not_available" and "no persistent journal" in before.why


def test_a_log_without_a_line_of_interest_is_an_empty_text_and_not_a_missing_one(programs):
    got = programs(dmesg="echo '[ 1.0] usb 1-1: new device'\n")
    assert (got["dmesg"].status, got["dmesg"].content) == ("ok", b"")


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (b"6,512,5140900,-;amdgpu: here\n SUBSYSTEM=pci\n", b"[    5.140900] amdgpu: here\n"),
        (b"4,1,0,c,caller=T1;x", b"[    0.000000] x\n"),
        (b"30,5,1,-;systemd[1]: not the kernel's\n", b""),
        (b"junk", b""),
        (b"a,b,c;x", b""),
    ],
)
def test_a_record_of_dev_kmsg_becomes_a_line_as_dmesg_prints_it(record, line):
    assert kernel_log_capture.kmsg_line(record) == line


@pytest.mark.parametrize(
    ("planted", "first", "last"),
    [
        (
            {"/var/lib/systemd/pstore/7/dmesg.txt": "Panic#1 Part1\n<0>[  141.2] Kernel panic\n"},
            "from /var/lib/systemd/pstore/7/dmesg.txt:",
            "[141.2] Kernel panic",
        ),
        (
            {"/sys/fs/pstore/dmesg-efi-2": "Panic#1 Part2\n", "/sys/fs/pstore/dmesg-efi-1": "Oops#1 Part1\nBUG"},
            "from /sys/fs/pstore/dmesg-efi-1:",
            "BUG",
        ),
        ({}, "not available because pstore: the kernel left no log there since the run began", ""),
    ],
)  # fmt: skip
def test_what_the_kernel_of_an_earlier_boot_said_last_is_found_or_it_says_where_it_is_not(
    tmp_path, planted, first, last
):
    for name, text in planted.items():
        (tmp_path / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name[1:]).write_text(text)
    said = last_lines("5" * 32, 1.0, str(tmp_path))
    assert said[0].startswith(first) and said[-1].endswith(last)
    if "pstore" in str(planted):  # of an earlier fault
        (old,) = last_lines("5" * 32, 9e9, str(tmp_path))
        assert old.startswith("not available because pstore")


def test_every_row_of_the_tables_of_the_log_fits_what_it_is_for():
    known = data("look/kernel_log")
    times = "[Mon Jan  5 03:04:05 2026]|2026-01-05T03:04:05,678+00:00 |Jan  5 03:04:05 |"
    times = f"{times}1767582245.123456 |03:04:05.678 ".split("|")
    for form, time in zip(known["wall clock"], times, strict=True):
        assert re.match(form, time), form
    kinds = {rule.kind for rule in wordings.lines(log=True)}
    assert set(known["storms"].split()) <= kinds
    assert all(re.compile(form).groups == 1 for form in known["of a fault"].values())
    assert all(word == word.lower() and len(word) > 2 for word in known["kept"])
