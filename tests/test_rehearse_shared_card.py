"""Processes of a rehearsal that share a card, and the cards of one job beside each other."""

from dataclasses import replace

import pytest
from test_rehearse import RUN, library, started  # noqa: F401 -- library is a fixture

from helpers.rehearse import view
from helpers.rehearse.holders import CardUse, RehearsedProcess, _side_by_side, uses_of_cards

MIB = 1 << 20
GIB = 1 << 30

HOLDS = """import ctypes, os, signal, subprocess, sys
d, does = ctypes.CDLL(sys.argv[1]), sys.argv[2]
def take(mib):
    p = ctypes.c_void_p()
    assert not d.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(mib << 20))
    return p
def other(mib):
    subprocess.run([sys.executable, __file__, sys.argv[1], "take", mib])
if does == "take":
    take(int(sys.argv[3]))
    os.kill(os.getpid(), signal.SIGKILL)
if does == "keep":
    take(100)
    other("60")
if does == "give back":
    d.cudaFree(take(100))
    other("60")
if does == "in turn":
    other("60")
    other("100")
if does == "at once":
    word = [sys.executable, __file__, sys.argv[1], "take"]
    both = [subprocess.Popen([*word, "60"]), subprocess.Popen([*word, "40"])]
    [one.wait() for one in both]
if does == "fork":
    take(100)
    if not os.fork():
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize(
    ("does", "together", "processes"),
    [
        ("keep", 160, 2),
        ("give back", 100, 1),
        ("in turn", 100, 1),
        ("at once", 100, 2),
        ("fork", 100, 1),
    ],
)
def test_processes_count_together_where_they_hold_a_card_at_the_same_time(
    library,  # noqa: F811
    tmp_path,
    does,
    together,
    processes,
):
    program = tmp_path / "holds.py"
    program.write_text(HOLDS)
    preloaded = {"LD_PRELOAD": library, "FAKE_PEAKS": tmp_path}
    started(program, library, does, **preloaded)
    [use] = uses_of_cards(tmp_path, 1)
    assert use.sum_bytes == together * MIB
    assert len(use.peak_bytes) == processes and use.in_step == (does != "keep")


def holder(pid, parent, born, last, *peaks):
    return RehearsedProcess(pid, parent, born, last, peaks)


def test_ranks_that_do_not_reach_their_peaks_together_here_do_so_on_a_card():
    def counted(*holders):
        return [one.pid for one in _side_by_side(holders, 0)]

    ranks = [holder(11, 1, 0, 50, 600), holder(12, 1, 2, 90, 500)]
    assert counted(*ranks) == [11, 12]
    earlier = holder(10, 1, -90, -20, 900)
    assert counted(earlier, *ranks) == [11, 12]
    child = holder(14, 11, 10, 40, 900)
    assert counted(*ranks, child) == [11, 12]


def used(*sums, processes=1):
    peaks = {100 + number: 0 for number in range(processes)}
    return tuple(
        CardUse(index, {pid: size // processes for pid in peaks if size}, size)
        for index, size in enumerate(sums)
    )


def test_two_processes_that_fit_one_by_one_and_not_together_do_not_fit():
    card = replace(RUN.device, total_bytes=5 * GIB)
    both = replace(RUN, device=card, devices=used(6 * GIB, 0, processes=2))
    assert not both.fits and not both.failed_otherwise and both.outcome == "runs out"
    shared, beside, *_ = view.notes(both)
    assert view.headline(both).startswith("Does not fit")
    need = "2 processes together need 6.00 GiB on card 0 (their peaks: 3.00 GiB and 3.00 GiB)"
    assert shared == f"{need}; it has 5.00 GiB"
    assert beside == "card 0 needs 6.00 GiB, card 1 holds nothing"
    assert replace(both, device=replace(card, total_bytes=7 * GIB)).fits
    held = replace(card, total_bytes=7 * GIB, held_bytes=2 * GIB)
    assert not replace(both, device=held).fits


@pytest.mark.parametrize(
    ("sums", "says"),
    [
        ((31, 0, 0, 0), "card 0 needs 31.00 GiB, cards 1 to 3 hold nothing"),
        ((8, 8, 3), "cards 0 to 1 need 8.00 GiB, card 2 needs 3.00 GiB"),
        ((0, 4), "card 0 holds nothing, card 1 needs 4.00 GiB"),
    ],
)
def test_cards_of_one_job_that_are_not_evenly_full_are_one_line(sums, says):
    run = replace(RUN, devices=used(*(size * GIB for size in sums)))
    assert view.notes(run)[0] == says


@pytest.mark.parametrize("sums", [(8,), (8, 8), (8, 7)])
def test_cards_that_are_evenly_full_are_no_line(sums):
    run = replace(RUN, devices=used(*(size * GIB for size in sums)))
    assert not any("card 0 needs" in line for line in view.notes(run))


def test_what_an_expandable_segment_asked_for_in_vain_is_no_need_of_the_card():
    card = replace(RUN.device, total_bytes=10 * GIB)
    full = replace(RUN, device=card, peak_reserved_bytes=7 * GIB, devices=used(10 * GIB))
    assert full.left_bytes == 0
    assert replace(full, expandable=True, retries=1).left_bytes == 3 * GIB
    two = replace(full, devices=used(10 * GIB, processes=2))
    assert replace(two, expandable=True, retries=1).left_bytes == 0
