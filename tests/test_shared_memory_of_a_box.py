"""Where CPU and GPU share one memory, and where the RAM is at its end: the page cache is not taken, waiting is named."""

from changed_boxes import gb10, oom
from kernel_boxes import box

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_bundle

GIB = 1 << 20
"""In KiB."""


def verdict_of(bundle):
    return diagnose(evidence_from_bundle(bundle))


def test_page_cache_that_gives_way_is_not_called_taken():
    own = " Including non-PyTorch memory, this process has 30.00 GiB memory in use."
    message = oom("6.00 GiB", "119.60 GiB", "4.20 GiB", "28.00 GiB", "300.00 MiB", own)
    verdict = verdict_of(gb10(75 * GIB, 4 * GIB, message))
    assert (verdict.cause, verdict.confidence) == ("metric-misreport", "likely")
    assert "page cache" in verdict.title
    assert "drop_caches" in verdict.next_step.command


def test_a_shared_memory_that_is_really_full_is_no_page_cache():
    own = " Including non-PyTorch memory, this process has 113.00 GiB memory in use."
    message = oom("6.00 GiB", "119.60 GiB", "1.20 GiB", "111.00 GiB", "300.00 MiB", own)
    assert verdict_of(gb10(3 * GIB, 2 * GIB, message)).cause == "true-capacity"


def host(available, swap_free, stall, message=""):
    memory = (
        f"MemTotal: {96 * GIB} kB\nMemFree: {available} kB\nMemAvailable: {available} kB\n"
        f"SwapTotal: {24 * GIB} kB\nSwapFree: {swap_free} kB\n"
    )
    pressure = f"some avg10=60.00 avg60=9.00 avg300=1.00 total=5\nfull avg10={stall} avg60=4.00 avg300=0.50 total=4\n"
    files = {"/proc/meminfo": memory, "/proc/pressure/memory": pressure}
    if message:
        files["message"] = message
    return box(files)


def test_programs_that_wait_for_pages_are_named_with_the_swap_in_use():
    verdict = verdict_of(host(2 * GIB, 3 * GIB, "41.70"))
    assert (verdict.cause, verdict.confidence) == ("host-oom", "likely")
    assert "41.70 %" in verdict.title
    assert "21.00 GiB of 24.00 GiB of swap" in verdict.title


def test_a_machine_that_only_reads_files_again_is_not_called_short_of_ram():
    assert verdict_of(host(2 * GIB, 24 * GIB, "0.80")).state == "healthy"


def test_waiting_for_ram_is_not_why_a_card_refused():
    own = " Including non-PyTorch memory, this process has 15.00 GiB memory in use."
    message = oom("3.00 GiB", "15.70 GiB", "0.40 GiB", "14.00 GiB", "200.00 MiB", own)
    assert verdict_of(host(2 * GIB, 3 * GIB, "41.70", message)).cause == "true-capacity"


def test_a_kill_beside_a_full_ram_is_said_with_what_was_available():
    verdict = verdict_of(host(2 * GIB, 3 * GIB, "0.10", "Killed\n"))
    assert verdict.cause == "host-oom"
    assert "2.00 GiB" in " ".join(row.reading.show() for row in verdict.evidence)
