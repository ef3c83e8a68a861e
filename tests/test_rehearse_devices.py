"""The cards that a program can be rehearsed on: the table, a size, a box's own; and which processes may use them."""

import json
from types import SimpleNamespace

import pytest
from test_rehearse import library, started, trust  # noqa: F401 -- library is a fixture

from helpers.look.bundle import open_box
from helpers.rehearse import devices
from helpers.trials.under_torch import witness

GIB = 1 << 30


def test_every_card_has_a_source_and_figures_that_can_be():
    for key, card in devices.TABLE.items():
        assert card.source and key == key.lower() and 8 * GIB < card.total_bytes < 300 * GIB
        assert 70 <= card.capability <= 120 and card.multiprocessors > 20 and card.l2_mib > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("5000",), "expected one of t4"),
        (("", ""), "no card"),
        (("", "much"), "size 'much'"),
        (("t4", "", "20GiB"), "nothing is left"),
        (("", "8GiB", "-1"), "size '-1'"),
    ],
)
def test_a_card_that_cannot_be_is_refused_in_one_line(arguments, says):
    with pytest.raises(devices.DeviceError, match=says):
        devices.device(*arguments)


def test_a_size_alone_is_a_card_and_what_others_hold_comes_off_it():
    card = devices.device("", "20GiB", "1GiB")
    assert (card.total_bytes, card.held_bytes, card.capability) == (20 * GIB, GIB, 90)
    assert "held by others" in card.words


def test_the_card_of_a_box_has_the_boxs_size_and_what_is_in_use():
    card = devices.device(bundle=open_box("cuda-24gb-tuning"))
    assert 20 * GIB < card.total_bytes < 26 * GIB and card.vendor == "cuda" and "box" in card.source
    assert devices.device(bundle=open_box("strix-halo-1-found")).vendor == "rocm"
    with pytest.raises(devices.DeviceError, match="no GPU memory"):
        devices.device(bundle=open_box("cpu-only"))
    sized = devices.device(capacity="20GiB", bundle=open_box("cpu-only"))
    assert sized.total_bytes == 20 * GIB and not sized.held_bytes


FORKS = """import ctypes, os, sys
d, size = ctypes.CDLL(sys.argv[1]), ctypes.c_size_t
def take():
    return d.cudaMalloc(ctypes.byref(ctypes.c_void_p()), size(64))
def child(does):
    pid = os.fork()
    if not pid:
        os._exit(does())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
before = child(take)
first = take()
print([before, first, child(lambda: 0), child(take), child(d.cudaLaunchKernel), take()])
"""


def test_a_process_forked_off_one_that_used_the_gpu_is_refused_it_and_counted(library, tmp_path):  # noqa: F811
    done = started("-c", FORKS, library, FAKE_PEAKS=tmp_path)
    assert json.loads(done.stdout) == [0, 0, 0, 3, 3, 0]  # cudaErrorInitializationError
    assert len(list(tmp_path.glob("*.forked"))) == 2
    says = trust({"forked": 2})
    assert says.startswith("2 processes that were forked") and "spawn" in says


def test_a_forked_process_that_starts_the_gpu_is_counted_and_one_that_only_asks_is_not():
    counted = []
    watch = object.__new__(witness.Witness)
    watch.device = SimpleNamespace(fake_forked=lambda: counted.append(1))
    cuda = SimpleNamespace(_is_in_bad_fork=lambda: True)
    watch.torch_imported(SimpleNamespace(cuda=cuda, compile=None))

    def _lazy_init():
        return cuda._is_in_bad_fork()

    assert cuda._is_in_bad_fork() and not counted
    assert _lazy_init() and counted
