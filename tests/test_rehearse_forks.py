"""Which processes may use the card of a rehearsal, and how forked ones are counted."""

import json
from types import SimpleNamespace

from test_rehearse import library, started, trust  # noqa: F401 -- library is a fixture

from helpers.rehearse.under_torch import witness

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
    distributed = SimpleNamespace(is_available=lambda: False)
    watch.torch_imported(SimpleNamespace(cuda=cuda, compile=None, distributed=distributed))

    def _lazy_init():
        return cuda._is_in_bad_fork()

    assert cuda._is_in_bad_fork() and not counted
    assert _lazy_init() and counted
