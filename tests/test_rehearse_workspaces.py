"""What libraries take of which only a range is known: cuDNN's and cuFFT's workspaces."""

from test_rehearse import GIB, MIB, QUIET, library, ran, started  # noqa: F401 -- library is a fixture

from helpers.rehearse import trust as trust_module
from helpers.rehearse import view


def test_workspaces_of_which_only_a_range_is_known_make_a_tight_fit_neither_yes_nor_no(monkeypatch):
    reports = [{**QUIET, "counts": {"cudnn": 3}}]
    assert trust_module.workspace_bytes(reports, 0) == 512 * MIB
    assert not trust_module.workspace_bytes(reports, MIB)
    monkeypatch.setenv("CUDNN_CONV_WSCAP_DBG", "64")
    assert trust_module.workspace_bytes(reports, 0) == 64 * MIB
    tight = ran(size=80 * MIB, more_bytes=64 * MIB)
    assert tight.between and view.headline(tight).startswith("May not fit in 80.00 MiB")
    assert not ran(size=84 * MIB, more_bytes=64 * MIB).between
    assert not ran(size=80 * MIB, fits=False, more_bytes=64 * MIB).between


def test_a_peak_that_cudnn_decides_is_said_with_how_low_and_how_high_it_may_be():
    net = ran(size=GIB, at_once_bytes=600 * MIB, peak_allocated_bytes=15 * MIB)
    assert net.reserved_between == (15 * MIB, net.peak_reserved_bytes + 600 * MIB)
    assert "without cuDNN's workspaces, and between 15.00 MiB and 6" in view.headline(net)
    assert ran(size=80 * MIB, at_once_bytes=600 * MIB).reserved_between[1] == 80 * MIB
    assert ran().reserved_between is None
    assert "cuDNN's workspaces, and between" not in view.headline(ran())


def test_one_call_of_cudnn_may_ask_for_what_its_convolution_reads_and_writes(monkeypatch):
    large = [{**QUIET, "counts": {"cudnn": 3, "convolution_bytes": 600 * MIB}}]
    assert trust_module.cudnn_at_once(large, 0) == 600 * MIB
    assert trust_module.workspace_bytes(large, 0) == 512 * MIB
    assert trust_module.cudnn_at_once(large, MIB) == trust_module.cudnn_at_once([QUIET], 0) == 0
    monkeypatch.setenv("CUDNN_CONV_WSCAP_DBG", "64")
    assert trust_module.cudnn_at_once(large, 0) == 64 * MIB


CONVOLUTION = """
import ctypes, sys
d = ctypes.CDLL(sys.argv[1])

def part(kind, name=0, *of):
    new, many = ctypes.c_void_p(), ctypes.c_longlong(len(of))
    d.cudnnBackendCreateDescriptor(kind, ctypes.byref(new))
    if of:
        d.cudnnBackendSetAttribute(new, name, 15, many, (ctypes.c_void_p * len(of))(*of))
    return new

def tensor(data_type, *sizes):
    new, one, many = part(17), ctypes.c_longlong(1), ctypes.c_longlong(len(sizes))
    d.cudnnBackendSetAttribute(new, 901, 1, one, ctypes.byref(ctypes.c_int(data_type)))
    d.cudnnBackendSetAttribute(new, 902, 3, many, (ctypes.c_longlong * len(sizes))(*sizes))
    return new.value

for images, data_type in ((4, 0), (2, 2)):  # float32, float16
    x, w, y = tensor(data_type, images, 3, 8, 8), tensor(data_type, 5, 3, 1, 1), tensor(data_type, images, 5, 8, 8)
    search = part(4, 201, part(15, 801, part(10, 703, x, w, y).value).value)
    config, got = part(3), ctypes.c_longlong()
    d.cudnnBackendGetAttribute(search, 202, 15, ctypes.c_longlong(1), ctypes.byref(got), ctypes.byref(config))
    d.cudnnBackendExecute(None, part(5, 401, config.value), None)
print(d.fake_count(14))
"""


def test_the_largest_convolution_is_known_by_what_it_reads_and_writes(library):  # noqa: F811
    largest = 4 * (4 * 3 * 8 * 8 + 5 * 3 + 4 * 5 * 8 * 8)
    assert started("-c", CONVOLUTION, library).stdout.split() == [str(largest)]
