"""Tables for a terminal: aligned, honest about what is not known, and safe to print whatever a box calls its processes."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tell_boxes import APU, BLIND, CARDS, EVENTS, HOST_POOLS, at, event, read

from helpers.look import kernel_log
from helpers.look.gpus import Holder
from helpers.look.reading import GIB, MIB, not_allowed, not_available, seen
from helpers.tell import tables

NOT_THERE = not_available("no such file", "bytes", "/sys/x")


@given(st.text(alphabet=st.characters()))
@settings(max_examples=100)
def test_text_made_plain_holds_nothing_that_steers_a_terminal_and_stays_as_it_is(text):
    once = tables.plain(text)
    assert once.isprintable()
    once.encode("utf-8")
    assert tables.plain(once) == once


def test_control_characters_are_spelt_out_not_dropped():
    assert tables.plain("a\x1b[2Jb\u202ec\udc80\u00a0d\n") == "a\\x1b[2Jb\\u202ec\\udc80 d\\x0a"
    assert tables.uncoloured("\x1b[31mred\x1b[0m\r\n\tnext\x07") == "red\n\tnext\\x07"


def test_a_reading_without_a_value_says_why_below_the_table_and_each_reason_once():
    text = tables.table(
        [
            ["a", NOT_THERE],
            ["b", not_allowed("permission denied", "bytes", "/sys/y")],
            ["c", NOT_THERE],
            ["d", seen(0, "bytes", "/sys/z")],
        ],
        ["pool", "total"],
    )
    assert text.splitlines() == [
        "pool              total",
        "----  -----------------",
        "a     not available (a)",
        "b       not allowed (b)",
        "c     not available (a)",
        "d                   0 B",
        "(a) not available: no such file",
        "(b) not allowed: permission denied",
    ]


def test_rows_keep_the_order_they_are_given_in():
    rows = [["z", 3], ["a", 1], ["m", 2]]
    assert [line.split()[0] for line in tables.table(rows, ["name", "n"]).splitlines()[2:]] == [
        "z",
        "a",
        "m",
    ]


def test_wide_and_combining_characters_do_not_shift_a_column():
    lines = tables.table(
        [["計算", 1], ["e\u0301", 22], ["plain", 333]], ["process", "n"]
    ).splitlines()
    assert {tables.columns_of(line) for line in lines} == {tables.columns_of(lines[0])}


def test_a_long_name_is_cut_and_a_source_never():
    row = tables.table([["n" * 90, "/sys/" + "s" * 90]], ["process", "source"]).splitlines()[2]
    assert row == "n" * 47 + "…  " + "/sys/" + "s" * 90


@given(st.text(alphabet=st.characters(categories=["Lo", "Mn", "Ll"])), st.integers(2, 12))
@settings(max_examples=50)
def test_cutting_never_leaves_more_columns_than_asked_for(text, columns):
    assert tables.columns_of(tables.cut(text, columns)) <= columns


def test_an_empty_table_says_so_and_a_short_row_is_refused():
    assert tables.table([], ["pid", "name"]) == "pid  name\n(none)"
    with pytest.raises(ValueError, match="a row of 1 cells: expected 2, one for each of pid, name"):
        tables.table([[1]], ["pid", "name"])


def test_each_index_space_of_a_gpu_has_its_column():
    lines = tables.gpus_table([APU, *CARDS]).splitlines()
    head, apu = lines[0], lines[2]
    assert head.split("  ")[0] == "GPU" and "rocm-smi" in head and "torch" in head
    assert apu.startswith("0000:c5:00.0") and "integrated" in apu and apu.rstrip().endswith("-")


def test_pools_without_sources_hold_no_path():
    assert "/sys" in tables.pools_table([APU, *HOST_POOLS])
    assert "/sys" not in tables.pools_table([APU, *HOST_POOLS], sources=False)


def test_holders_name_what_nobody_seen_holds_and_what_cannot_be_seen():
    text = tables.holders_table([*CARDS, BLIND])
    rows = [line for line in text.splitlines() if "no visible process" in line]
    assert [" 12.07 GiB " in rows[0], " 20.48 MiB " in rows[1], "not available" in rows[2]] == [
        True,
        True,
        True,
    ]
    assert (
        "Not seen on 0000:03:00.0: fdinfo of 212 processes: not allowed (needs CAP_SYS_PTRACE)"
        in text
    )
    assert "\x1b" not in text and "\\x1b[31m<script>" in text


def test_events_can_leave_out_their_times():
    assert "1 h 07 min 02 s" in tables.events_table(EVENTS)
    without = tables.events_table(EVENTS, times=False)
    assert "min" not in without and "GPU page fault" in without
    assert [line for line in without.splitlines() if "page fault (src" in line][0].split()[:2] == [
        "0",
        "12",
    ]


def test_every_kind_the_kernel_log_reader_knows_has_words():
    assert {rule.kind for rule in kernel_log.rules()} <= set(tables.KIND_WORDS)
    assert set(tables.HARMLESS) < set(tables.KIND_WORDS)


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (at(0.84), "0.8 s"),
        (at(59.4), "59 s"),
        (at(245), "4 min 05 s"),
        (at(11241), "3 h 07 min 21 s"),
        (at(195_000), "2 d 06 h 10 min"),
        (at("Nov 21 03:11:02"), "Nov 21 03:11:02"),
        (
            not_available("the line has no time", "count", "dmesg"),
            "not available: the line has no time",
        ),
    ],
)
def test_a_moment_reads_as_a_person_says_it(when, words):
    assert tables.since_boot(when) == words


def test_a_process_that_several_sources_saw_counts_once_with_the_most_that_was_seen():
    def holder(pid, memory, source):
        return Holder("0000:03:00.0", pid, "python", 0, "S", memory, source, "")

    chosen = tables.one_each(
        [
            holder(1, NOT_THERE, "kfd"),
            holder(2, read(MIB, "kfd"), "kfd"),
            holder(1, read(GIB, "x"), "fdinfo"),
            holder(2, read(3 * GIB, "x"), "fdinfo"),
            holder(3, seen(0, "bytes", "x"), "fdinfo"),
        ]
    )
    assert [(h.pid, h.source) for h in chosen] == [(2, "fdinfo"), (1, "fdinfo"), (3, "fdinfo")]


def test_sources_in_one_folder_are_named_together_and_those_of_a_sum_are_taken_apart():
    a, b = (
        read(1, "/sys/device/vram_total"),
        read(1, "/sys/device/vram_total - /sys/device/vram_used"),
    )
    assert tables.one_source([a, b]) == "/sys/device/{vram_total, vram_used}"
    assert (
        tables.one_source([read(1, "/proc/meminfo"), read(1, "/proc/meminfo - /proc/meminfo")])
        == "/proc/meminfo"
    )
    assert (
        tables.one_source([read(1, "rocm-smi --json"), a])
        == "rocm-smi --json; /sys/device/vram_total"
    )


def test_a_process_named_in_the_log_is_shown_with_its_number():
    assert tables.who(EVENTS[1]) == "python (5512)"
    assert tables.who(dataclasses.replace(EVENTS[1], process="")) == "pid (5512)"
    assert tables.who(event("boot", at(0.0), 0, "Linux")) == ""
