"""One bar a source: its pieces add up to what is in use, nothing lies on anything else, and the unknown is never a zero."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tell_boxes import HOSTILE
from test_figures import bars, laid_out, words

from helpers.ground.shapes import not_allowed, not_available, seen
from helpers.ground.units import GIB, MIB
from helpers.judge.evidence import CaseEvidence
from helpers.judge.ledger import ledgers_of
from helpers.judge.ledger_rows import DRIVER, MESSAGE, GpuLedger, LedgerRow
from helpers.look.boxes import open_box, recorded_names
from helpers.tell import figures
from helpers.tell.box import NO_LEDGER, ledger_table
from helpers.tell.figure_style import PALETTE
from helpers.tell.figures import MOST_PIECES, colours, pieces_of
from helpers.tell.sheet import MARGIN, STACKED, STUB, WIDTH


def book(rows, total=16 * GIB, account=DRIVER, **more):
    held = []
    for kind, said, size in rows:
        number = re.search(r"\((\d+)\)", said)
        reading = seen(size, "bytes", "/x") if isinstance(size, int) else size
        held.append(LedgerRow(kind, said, reading, "/x", int(number[1]) if number else 0))
    used = sum(row.bytes.value for row in held if row.bytes.ok)
    sizes = seen(total, "bytes", "/sys/t"), seen(used, "bytes", "/sys/u")
    said = more.pop("contradictions", ())
    return GpuLedger("0000:0b:00.0", account, *sizes, tuple(held), 4096, said, **more)


FULL = book(
    [
        ("process", "train (7): tensors", 9 * GIB),
        ("process", "train (7): cached by torch and unused", GIB),
        ("process", "train (7): context and libraries", 300 * MIB),
        ("other_process", "desktop (2)", 700 * MIB),
        ("outside", "process (901): a host PID", 2 * GIB),
        ("reserved", "kept by the driver for itself", 400 * MIB),
        ("unattributed", "no visible owner", 512 * MIB),
    ],
    contradictions=("HIP calls 15.00 GiB free, sysfs 2.00 GiB: " + "word " * 40,),
    notes=("Not seen: " + "x" * 90,),
)
UNMEASURED = book(
    [
        ("other_process", "job (7)", not_available("N/A", "bytes", "nvidia-smi")),
        ("other_process", "job (8)", not_allowed("denied", "bytes", "/proc/8")),
        ("unattributed", "2 process(es) that were not measured, or no visible owner", 3 * GIB),
    ]
)
AGAIN = "counted more than once, or at another moment"
TWICE = book(
    [
        ("other_process", "a (1)", 3 * GIB),
        ("other_process", "b (2)", 3 * GIB),
        ("unattributed", AGAIN, -2 * GIB),
    ]
)
NAMES = [("other_process", f"worker-{i}-{'long' * 20} ({i})", i * MIB) for i in range(1, 40)]
CROWD = book([*NAMES, ("unattributed", "used by no process", 64 * MIB)])
NOWHERE = not_available("no layer says how much is in use", "bytes", "memory pools")
UNKNOWN_USE = replace(book([]), used=NOWHERE)
SAID = {"contradictions": (HOSTILE * 9,), "notes": (HOSTILE * 9,)}
STRANGE = book([("process", HOSTILE * 9, GIB)], account=MESSAGE, **SAID)
DRAWN = {
    "full": [FULL],
    "unmeasured": [UNMEASURED],
    "twice": [TWICE],
    "crowd": [CROWD],
    "unknown": [UNKNOWN_USE],
    "strange": [STRANGE],
    "several": [FULL, replace(FULL, pci="", account=MESSAGE), UNKNOWN_USE],
}


def drawn(*books):
    return figures.ledger(books).draw()


def widths(figure):
    """The widths of the pieces of all bars, in inches."""
    return [bar.get_width() * figure.get_figwidth() for bar in bars(figure, STACKED)]


@pytest.mark.parametrize("name", DRAWN)
def test_every_word_has_its_place(name):
    laid_out(drawn(*DRAWN[name]))


@pytest.mark.parametrize("name", recorded_names())
def test_the_ledgers_of_every_recorded_box_can_be_drawn_said_and_listed(name):
    view = figures.ledger(ledgers_of(CaseEvidence(bundle=open_box(name))))
    if view.draw:
        laid_out(view.draw())
    assert all(row["GPU"] in view.alt and row["GPU"] in str(view) for row in view.rows)


KINDS = st.sampled_from(["process", "other_process", "outside", "reserved", "unattributed"])
PARTS = st.lists(st.tuples(KINDS, st.integers(1, 40 * GIB)), min_size=1, max_size=14)


@given(PARTS, st.integers(0, 8 * GIB))
@settings(max_examples=25, deadline=None)
def test_the_pieces_add_up_to_the_total_and_so_does_the_bar(parts, free):
    used = sum(size for _, size in parts)
    one = book([(kind, kind, size) for kind, size in parts], total=used + free)
    assert sum(piece.bytes for piece in pieces_of(one, colours([one]))) == used + free
    assert sum(widths(drawn(one))) == pytest.approx(WIDTH - 2 * MARGIN, rel=1e-6)


def test_bars_of_two_sources_share_one_scale():
    one = book([("process", "a", 8 * GIB)], total=8 * GIB)
    two = book([("process", "a", 2 * GIB)], total=4 * GIB, account=MESSAGE)
    first, second, free = widths(drawn(one, two))
    assert (second / first, free / first) == pytest.approx((1 / 4, 1 / 4))


def test_a_crowd_keeps_its_largest_and_counts_the_rest():
    *kept, together, nobody, free = pieces_of(CROWD, colours([CROWD]))
    assert together.words == "32 more processes" and nobody.words == "used by no process"
    assert len(kept) == MOST_PIECES - 1 and min(piece.bytes for piece in kept) == 33 * MIB
    assert sum(piece.bytes for piece in pieces_of(CROWD, colours([CROWD]))[:-1]) == CROWD.used.value
    assert free.words == "free"


def test_pieces_of_one_kind_beside_each_other_differ():
    first, second, third, *_ = (piece.look for piece in pieces_of(FULL, colours([FULL])))
    assert len({first, second, third}) == 3


def test_what_was_not_measured_is_said_and_hatched_and_takes_no_part_of_the_bar():
    figure = drawn(UNMEASURED)
    said = words(figure)
    assert "not available" in said and "not allowed" in said and "0 B" not in said
    hatched = [bar for bar in bars(figure) if bar.get_hatch() == PALETTE["not known"].hatch]
    assert len(widths(figure)) == len(hatched) == 2


def test_what_is_not_known_at_all_is_one_empty_hatched_stub():
    figure = drawn(UNKNOWN_USE)
    assert widths(figure) == pytest.approx([STUB])
    assert any("no layer says" in said for said in words(figure))


def test_a_negative_rest_is_said_and_not_drawn_as_a_part():
    figure = drawn(TWICE)
    assert "-2.00 GiB" in words(figure) and len(widths(figure)) == 3
    assert "counted more than once" in figures.ledger([TWICE]).alt


def test_contradictions_stand_in_the_picture_the_words_and_the_table():
    view = figures.ledger([FULL])
    for said in (" ".join(words(view.draw())), view.alt, str(view)):
        assert "HIP calls 15.00 GiB free" in said
    (whole,) = [row for row in view.rows if row["kind"] == "in use"]
    assert "give or take 4.00 KiB" in whole["held by"] and whole["bytes"] == FULL.used


def test_no_ledger_is_said():
    assert figures.ledger([]).draw is None and NO_LEDGER == figures.ledger([]).alt
    assert str(ledger_table([])) == NO_LEDGER


def test_a_process_has_its_colour_in_every_ledger():
    message = book([("process", "this process: tensors", 9 * GIB)], account=MESSAGE)
    figure = figures.ledger([FULL, message]).draw()
    tall = [bar.get_facecolor() for bar in bars(figure, STACKED)]
    assert tall[0] == tall[1] == tall[2] == tall[len(pieces_of(FULL, colours([FULL])))] != tall[3]
    assert figures.ledger([FULL, message]).title == "9.00 of 16.00 GiB: train (7), tensors"


def test_processes_whose_numbers_ask_for_one_colour_differ_and_keep_theirs_in_every_figure():
    one = book([("other_process", f"p ({pid})", pid * GIB) for pid in (6, 12)])
    two = book([("other_process", f"p ({pid})", GIB) for pid in (12, 18, 24)])
    of = colours([one, two])
    assert len({of[pid] for pid in (6, 12, 18, 24)}) == 4 and of == colours([two, one])
    drawn_in = [bar.get_facecolor() for bar in bars(figures.ledger([one, two]).draw(), STACKED)]
    assert drawn_in[1] == drawn_in[2 + (one.total.value > one.used.value)]
