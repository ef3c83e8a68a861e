"""One bar a source: its pieces add up to what is in use, nothing lies on anything else, and the unknown is never a zero."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tell_boxes import HOSTILE
from test_figures import bars, words
from test_figures import (
    test_every_word_is_at_least_8_pt_lies_on_the_page_and_covers_no_other as laid_out,
)

from helpers.judge.ledger import DRIVER, MESSAGE, GpuLedger, LedgerRow, ledger
from helpers.look.boxes import open_box, recorded_names
from helpers.look.reading import GIB, MIB, not_allowed, not_available, seen
from helpers.tell.ledger_figure import (
    NO_LEDGER,
    ROWS,
    ledger_alt,
    ledger_figure,
    ledger_table,
    pieces_of,
)

laid_out.__test__ = False
BAR = 0.24


def book(rows, used=None, total=16 * GIB, account=DRIVER, **more):
    held = [
        LedgerRow(
            kind,
            said,
            size if not isinstance(size, int) else seen(size, "bytes", "/sys/x"),
            "/sys/x",
        )
        for kind, said, size in rows
    ]
    used = sum(row.bytes.value for row in held if row.bytes.ok) if used is None else used
    return GpuLedger(
        "0000:0b:00.0",
        account,
        seen(total, "bytes", "/sys/t"),
        seen(used, "bytes", "/sys/u"),
        tuple(held),
        4096,
        more.pop("contradictions", ()),
        **more,
    )


FULL = book(
    [
        ("process", "train (7): tensors", 9 * GIB),
        ("process", "train (7): cached by torch and unused", GIB),
        ("process", "train (7): context and libraries", 300 * MIB),
        ("other_process", "desktop (2)", 700 * MIB),
        ("outside", "process (901): a host PID", 2 * GIB),
        ("reserved", "kept by the driver for itself", 400 * MIB),
        ("unattributed", "held by nobody who can be seen from here", 512 * MIB),
    ],
    contradictions=("HIP calls 15.00 GiB free, sysfs 2.00 GiB: " + "word " * 40,),
    notes=("Not seen: " + "x" * 90,),
)
UNMEASURED = book(
    [
        ("other_process", "job (7)", not_available("N/A", "bytes", "nvidia-smi")),
        ("other_process", "job (8)", not_allowed("denied", "bytes", "/proc/8")),
        ("unattributed", "held by 2 process(es) that were not measured, or by nobody", 3 * GIB),
    ]
)
TWICE = book(
    [
        ("other_process", "a (1)", 3 * GIB),
        ("other_process", "b (2)", 3 * GIB),
        ("unattributed", "counted more than once, or at another moment", -2 * GIB),
    ]
)
CROWD = book(
    [("other_process", f"worker-{i}-{'long' * 20} ({i})", i * MIB) for i in range(1, 40)]
    + [("unattributed", "held by no process", 64 * MIB)]
)
UNKNOWN = replace(
    book([]), used=not_available("no layer says how much is in use", "bytes", "memory pools")
)
STRANGE = book(
    [("process", HOSTILE * 9, GIB)],
    account=MESSAGE,
    contradictions=(HOSTILE * 9,),
    notes=(HOSTILE * 9,),
)
DRAWN = {
    "full": [FULL],
    "unmeasured": [UNMEASURED],
    "twice": [TWICE],
    "crowd": [CROWD],
    "unknown": [UNKNOWN],
    "strange": [STRANGE],
    "several": [FULL, replace(FULL, pci="", account=MESSAGE), UNKNOWN],
    "none": [],
}


def widths(figure):
    """The widths of the pieces of all bars, in inches."""
    return [
        b.get_width() * figure.get_figwidth()
        for b in bars(figure)
        if b.get_height() * figure.get_figheight() == pytest.approx(BAR)
    ]


@pytest.mark.parametrize("books", DRAWN.values(), ids=DRAWN.keys())
def test_every_word_has_its_place(books):
    laid_out(lambda: ledger_figure(books))


@pytest.mark.parametrize("name", recorded_names())
def test_the_ledgers_of_every_recorded_box_can_be_drawn_said_and_listed(name):
    books = ledger(open_box(name))
    laid_out(lambda: ledger_figure(books))
    assert all(one.pci in ledger_alt(books) and one.pci in ledger_table(books) for one in books)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["process", "other_process", "outside", "reserved", "unattributed"]),
            st.integers(1, 40 * GIB),
        ),
        min_size=1,
        max_size=14,
    ),
    st.integers(0, 8 * GIB),
)
@settings(max_examples=40, deadline=None)
def test_the_pieces_add_up_to_the_total_and_so_does_the_bar(parts, free):
    used = sum(size for _, size in parts)
    one = book([(kind, kind, size) for kind, size in parts], total=used + free)
    assert sum(piece.held for piece in pieces_of(one)) == used + free
    assert sum(widths(ledger_figure([one]))) == pytest.approx(5.2 - 2 * 0.12, rel=1e-6)


def test_bars_of_two_sources_share_one_scale():
    one = book([("process", "a", 8 * GIB)], total=8 * GIB)
    two = book([("process", "a", 2 * GIB)], total=4 * GIB, account=MESSAGE)
    first, second, free = widths(ledger_figure([one, two]))
    assert (second / first, free / first) == pytest.approx((1 / 4, 1 / 4))


def test_a_crowd_keeps_its_largest_and_counts_the_rest():
    pieces = pieces_of(CROWD)
    assert (
        len(pieces) == ROWS + 2
        and pieces[-3].words == "32 more processes"
        and pieces[-2].words == "held by no process"
    )
    assert sum(piece.held for piece in pieces[:-1]) == CROWD.used.value


def test_what_was_not_measured_is_said_and_hatched_and_takes_no_part_of_the_bar():
    figure = ledger_figure([UNMEASURED])
    assert (
        "not available" in words(figure)
        and "not allowed" in words(figure)
        and "0 GiB" not in words(figure)
    )
    assert len(widths(figure)) == 2 and sum(bar.get_hatch() == "/////" for bar in bars(figure)) == 2


def test_what_is_not_known_at_all_is_one_empty_hatched_bar():
    figure = ledger_figure([UNKNOWN])
    assert len(widths(figure)) == 1 and any("no layer says" in said for said in words(figure))


def test_a_negative_rest_is_said_and_not_drawn_as_a_part():
    figure = ledger_figure([TWICE])
    assert "-2.00 GiB" in words(figure) and len(widths(figure)) == 3
    assert "counted more than once" in ledger_alt([TWICE])


def test_contradictions_stand_in_the_picture_the_words_and_the_table():
    for said in (" ".join(words(ledger_figure([FULL]))), ledger_alt([FULL]), ledger_table([FULL])):
        assert "HIP calls 15.00 GiB free" in said
    assert "in use" in ledger_table([FULL]) and "give or take 4.00 KiB" in ledger_table([FULL])


def test_no_ledger_is_said():
    assert (
        ledger_alt([]) == NO_LEDGER
        and NO_LEDGER in words(ledger_figure([]))
        and "(none)" in ledger_table([])
    )
