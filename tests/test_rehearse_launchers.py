"""What starts a program's work: launchers that repeat an error, a tuner that repeats a kernel."""

from test_rehearse import CARD, QUIET, library, started  # noqa: F401 -- library is a fixture

from helpers.allocator.record import Recording
from helpers.rehearse import fault, run
from helpers.rehearse.rehearsal import UNLIMITED
from helpers.rehearse.torches import Torch


def test_the_error_of_a_notebook_is_the_one_that_its_kernel_raised():
    cell = (
        "An error occurred while executing the following cell:\nimport flow\nNo module named 'flow'"
    )
    kernel = {**QUIET, "error": "ModuleNotFoundError", "message": "No module named 'flow'"}
    for launcher in ("CellExecutionError", "PapermillExecutionError"):
        reports = [{**QUIET, "error": launcher, "message": cell}, kernel]
        assert fault.errors_in_words(reports) == ["ModuleNotFoundError: No module named 'flow'"]
        assert fault.errors_in_words(reports[:1]) == [f"{launcher}: {cell}"]


def test_a_notebook_whose_kernel_a_limit_ended_did_not_fail(tmp_path):
    died = {**QUIET, "error": "DeadKernelError", "message": "Kernel died"}
    assert fault.only_a_kernel_died([died, QUIET])
    assert not fault.only_a_kernel_died([died, {**QUIET, "error": "ValueError"}])
    assert not fault.only_a_kernel_died([QUIET])
    ended = Recording(
        command=("jupyter", "execute", "train.ipynb"),
        exit_code=1,
        signal="",
        seconds=1.0,
        trace=None,
        why_no_trace="a limit ended it",
        folder=tmp_path,
        settings={},
        processes=(),
        notes=(),
    )
    for stopped, exit_code in (("--steps", 0), ("", 1)):
        reports = [died, {**QUIET, "stopped": stopped}]
        torch = Torch(tmp_path, "2", is_users=True)
        rehearsal = run._rehearsal(ended, reports, CARD, torch, "", UNLIMITED)
        assert rehearsal.exit_code == exit_code


TUNES = """
import ctypes, sys
d = ctypes.CDLL(sys.argv[1])

def milliseconds_of(launches):
    start, end, passed = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
    d.cudaEventCreate(ctypes.byref(start))
    d.cudaEventCreate(ctypes.byref(end))
    d.cudaEventRecord(start, None)
    for _ in range(launches):
        d.cuLaunchKernelEx(None, None)
    d.cudaEventRecord(end, None)
    d.cudaEventElapsedTime(ctypes.byref(passed), start, end)
    return passed.value

print(int(100 / (milliseconds_of(5) / 5)))
"""


def test_a_tuner_that_repeats_a_kernel_for_100_ms_repeats_it_100_times(library):  # noqa: F811
    assert started("-c", TUNES, library).stdout.split() == ["100"]
