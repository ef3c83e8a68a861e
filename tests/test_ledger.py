"""Every byte in use stands in one row: the rows add up to what the driver, or the message, says is in use."""

import json
from dataclasses import fields, replace

import pytest
from data_rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import PCI, amd_box

from helpers.ground.shapes import seen
from helpers.ground.units import Quantity
from helpers.judge.case_names import names_of
from helpers.judge.evidence import CaseEvidence
from helpers.judge.ledger import ledgers_of
from helpers.judge.ledger_rows import DRIVER, MESSAGE
from helpers.look import rocm
from helpers.look.boxes import open_box, recorded_names
from helpers.look.bundle import BundleWriter
from helpers.look.gpus import gpus
from helpers.look.holders import holders_of, numbered_by_host
from helpers.look.layers import Layers
from helpers.look.message import Message

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
INSIDE = {"uid": 0, "container": "docker", "init_pid_ns": False}
NOTHING = Quantity(0, 0, "0 bytes")


def gib(number):
    return Quantity(round(number * GIB), round(0.005 * GIB), f"{number:.2f} GiB")


def oom(*others, backend="", device=None, **sizes):
    """A message with these sizes, in GiB, and with other processes as (pid, GiB)."""
    known = {
        name: gib(size) if isinstance(size, (int, float)) else size for name, size in sizes.items()
    }
    known.update(
        others=tuple(gib(size) for _, size in others), pids=tuple(pid for pid, _ in others)
    )
    told = {"row": "torch-oom", "program": "torch", "side": "device", "event": "refused"}
    return Message(**told, backend=backend, device=device, **known)


def ledger(bundle, message=None):
    messages = () if message is None else (message,)
    return ledgers_of(CaseEvidence(bundle=bundle, messages=messages))


def of(message):
    """The one ledger of a message without a box."""
    (book,) = ledger(None, message)
    return book


def kinds(book):
    return [(row.kind, row.bytes.value) for row in book.rows]


def nvidia_box(*, total, used, free, reserved=None, processes=()):
    rows = "".join(
        f"<process_info><pid>{pid}</pid><type>C</type><process_name>/usr/bin/job{pid}</process_name>"
        f"<used_memory>{mib if mib is None or isinstance(mib, str) else f'{mib} MiB'}</used_memory></process_info>"
        for pid, mib in processes
    )
    kept = "" if reserved is None else f"<reserved>{reserved} MiB</reserved>"
    text = (
        f'<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>Card</product_name>'
        f"<fb_memory_usage><total>{total} MiB</total>{kept}<used>{used} MiB</used><free>{free} MiB</free></fb_memory_usage>"
        f"<processes>{rows}</processes></gpu></nvidia_smi_log>\n"
    )
    writer = BundleWriter("made", "constructed", "0", "")
    writer.add("command", "nvidia-smi -q -x", text)
    return writer.bundle()


def balanced(book):
    return not book.used.ok or abs(book.sum_bytes() - book.used.value) <= book.tolerance_bytes


PIDS = st.integers(2, 20)
CLIENTS = st.tuples(st.integers(2, 9), st.integers(1, 5), st.integers(0, 8 * MIB))
KFD_ROWS = st.dictionaries(PIDS, st.integers(0, 8 * GIB), max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 20 * GIB),
    st.lists(CLIENTS, max_size=5),
    KFD_ROWS,
    st.sampled_from([None, INSIDE]),
    st.lists(st.integers(30, 40), max_size=1),
)
def test_the_rows_of_any_amd_box_add_up_to_what_is_in_use(used, fdinfo, kfd, who, refused):
    box = amd_box(used=used, fdinfo=fdinfo, kfd=[*kfd.items()], identity=who, refused=refused)
    (book,) = ledger(box)
    assert book.used.value == used and balanced(book)
    negative = [row for row in book.rows if row.bytes.ok and row.bytes.value < 0]
    assert all(row.kind == "unattributed" for row in negative)
    assert bool(negative) <= bool(book.contradictions)


HELD = st.dictionaries(st.integers(2, 99), st.integers(0, 9000) | st.just("N/A"), max_size=5)


@settings(max_examples=60, deadline=None)
@given(HELD, st.integers(0, 24000), st.none() | st.integers(0, 700), st.integers(0, 900))
def test_the_rows_of_any_nvidia_box_add_up_to_what_is_in_use(held, free, reserved, more):
    sizes = [mib for mib in held.values() if mib != "N/A"]
    used = sum(sizes) + more
    kept = reserved or 0
    figures = {"total": used + free + kept, "used": used, "free": free, "reserved": reserved}
    (book,) = ledger(nvidia_box(**figures, processes=[*held.items()]))
    assert balanced(book) and book.used.value == (used + kept) * MIB
    assert book.sum_bytes("reserved") == kept * MIB
    assert sum(not row.bytes.ok for row in book.rows) == len(held) - len(sizes)


def quantity(size, precision):
    return Quantity(size, precision, f"{size} B")


QUANTITY = st.builds(quantity, st.integers(0, 48 * GIB), st.integers(0, 10 * MIB))
SIZED = (
    "capacity free process allocated reserved_unallocated reserved_total non_torch private_pools"
)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys(SIZED.split(), st.none() | QUANTITY)),
    st.lists(QUANTITY, max_size=3).map(tuple),
)
def test_the_rows_of_any_message_add_up_to_what_it_says_is_in_use(sizes, others):
    for book in ledger(None, replace(oom(**sizes), others=others)):
        assert book.account == MESSAGE and book.pci == "" and balanced(book)


@pytest.mark.parametrize("name", recorded_names())
def test_the_rows_of_every_recorded_box_add_up(name):
    bundle = open_box(name)
    books = ledger(bundle)
    assert [book.pci for book in books] == [gpu.pci for gpu in gpus(bundle)]
    assert all(map(balanced, books))


def test_a_message_is_split_into_tensors_cache_context_and_others():
    torch = {"process": 14.0, "allocated": 12.5, "reserved_unallocated": 0.75}
    book = of(oom((4711, 1.25), capacity=15.75, free=0.25, **torch))
    sizes = {row.words: round(row.bytes.value / GIB, 2) for row in book.rows}
    assert sizes == {
        "this process: tensors": 12.5,
        "this process: cached by torch and unused": 0.75,
        "this process: context and libraries": 0.75,
        "another process that the message names: 4711": 1.25,
        "others, or no owner: the message counts only what it names": 0.25,
    }
    assert book.contradictions == ()


def test_an_old_message_gives_the_cache_as_a_total_and_leaves_the_context_in_the_rest():
    book = of(oom(capacity=10.0, free=0.5, allocated=7.0, reserved_total=8.0))
    assert [round((size or 0) / GIB, 2) for _, size in kinds(book)] == [7.0, 1.0, 1.5]
    assert "outside torch" in book.rows[-1].words


def test_memory_that_no_torch_process_holds_is_the_rest_of_a_full_card():
    book = of(oom(capacity=15.98, free=NOTHING))
    assert kinds(book) == [("unattributed", round(15.98 * GIB))]


def test_a_message_that_names_its_own_process_among_the_others_counts_it_once():
    torch = {"process": 20.0, "allocated": 18.0, "reserved_unallocated": 1.0}
    book = of(oom((9001, 20.0), (9002, 3.0), capacity=24.0, free=1.0, **torch))
    assert book.sum_bytes("other_process") == 3 * GIB and not book.contradictions


@pytest.mark.parametrize("said, word", read_rows("what a message says against itself is named"))
def test_what_a_message_says_against_itself_is_named(said, word):
    book = of(oom(capacity=8, **said))
    assert any(word in against for against in book.contradictions) and balanced(book)


def test_a_message_without_amounts_has_no_ledger():
    assert ledger(None, oom(requested=1)) == ()


@pytest.mark.parametrize(
    "box, kinds_and_sizes, word", read_rows("the rows of a box that is made up")
)
def test_each_byte_of_a_box_that_is_made_up_stands_in_its_row(box, kinds_and_sizes, word):
    make = nvidia_box if "total" in box else amd_box
    (book,) = ledger(make(**{**box, **({"identity": INSIDE} if "identity" in box else {})}))
    assert kinds(book) == list(map(tuple, kinds_and_sizes))
    assert word in " ".join([*(row.words for row in book.rows), *book.contradictions])


def test_a_holder_whom_only_kfd_lists_is_outside_a_container_that_holds_nothing():
    (book,) = ledger(amd_box(used=9 * GIB, kfd=[(901, 9 * GIB)], identity=INSIDE))
    assert kinds(book) == [("outside", 9 * GIB)] and book.rows[0].source == "KFD"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_number_of_amd_smi_names_no_process_of_this_container(monkeypatch, is_first):
    box = amd_box(used=9 * GIB, identity={**INSIDE, "init_pid_ns": is_first})
    size = seen(9 * GIB, "bytes", "amd-smi")
    listed = rocm.SmiProcess(pci=PCI, pid=1, name="python", vram=size)
    monkeypatch.setattr(rocm, "processes", lambda bundle: (listed,))
    no_layer = Layers(*[None] * len(fields(Layers)))
    (holder,) = holders_of(box, PCI, no_layer, False)
    assert (holder.source, holder.pid) == ("amd-smi", 1)
    assert numbered_by_host(holder) is not is_first


@pytest.mark.parametrize(
    ("size", "holder"),
    [
        ("0MiB", None),
        ("100MiB", None),
        ("9000MiB", "process 70411 python with 8.79 GiB"),
    ],
)
def test_a_process_measured_at_nothing_is_no_holder(size, holder):
    line = f"|    0   N/A  N/A     70411      C   python   {size} |"
    names = names_of(CaseEvidence(tools=(("nvidia-smi", line),)), ())
    assert names.get("holder") == holder and ("pid" in names) == (holder is not None)


def test_an_apus_two_pools_are_in_use_together_and_its_total_is_the_compute_pool():
    (book,) = ledger(open_box("strix-halo-3-gttsize"))
    assert book.used.value == 189722624 + 48 * MIB and book.total.value == 16393924 * 4096
    assert "alternatives" in book.notes[0]


def test_the_one_process_that_the_message_fits_is_split_and_others_are_not():
    running = [(31, 21504), (32, 1400)]
    box = nvidia_box(total=24564, used=23000, free=1100, reserved=464, processes=running)
    torch = {"process": 21.0, "allocated": 19.0, "reserved_unallocated": 1.5}
    message = oom(backend="cuda", device=0, capacity=23.5, free=1.0, **torch)
    of_driver, of_message = ledger(box, message)
    assert (of_driver.account, of_message.account) == (DRIVER, MESSAGE)
    assert balanced(of_driver)
    assert of_message.pci == of_driver.pci
    assert [row.words for row in of_driver.rows if row.kind == "process"] == [
        "job31 (31): tensors",
        "job31 (31): cached by torch and unused",
        "job31 (31): context and libraries",
    ]
    others = [row.words for row in of_driver.rows if row.kind == "other_process"]
    assert any(words.startswith("job32") for words in others)
    two = nvidia_box(total=24564, used=43100, free=0, processes=[(31, 21504), (32, 21504)])
    assert not any(row.kind == "process" for row in ledger(two, message)[0].rows)


def test_a_message_of_another_moment_is_kept_apart_and_said():
    torch = {"allocated": 19.0, "reserved_unallocated": 0.5}
    own, told = ledger(amd_box(used=GIB), oom(backend="hip", capacity=20.0, free=0.01, **torch))
    assert own.sum_bytes("process") == 0 and any(
        "at the capture, by the driver" in note for note in told.notes
    )


def test_a_message_that_fits_two_cards_belongs_to_none():
    message = oom(backend="hip", capacity=19.98, free=NOTHING)
    books = ledger(open_box("rx7900xt-container"), message)
    assert [book.pci for book in books] == ["0000:03:00.0", "0000:0a:00.0", ""]


def rows(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def torch_on(box, **fields):
    device = {"index": 0, "pci": PCI, "name": "x", **fields}
    build = {"status": "ok", "torch": "2.9.0", "hip": "7", "devices_taken": True}
    box.add("file", "torch", rows({**build, "devices": [device]}))
    return box.bundle()


def amd_writer(used=0):
    writer = BundleWriter("made", "constructed", "0", "")
    card = "/sys/class/drm/card1/device/"
    node = "/sys/class/kfd/kfd/topology/nodes/1/"
    for path, text in {
        card + "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={PCI}\n",
        card + "vendor": "0x1002\n",
        card + "device": "0x744c\n",
        card + "mem_info_vram_total": f"{16 * GIB}\n",
        card + "mem_info_vram_used": f"{used}\n",
        node + "gpu_id": "9\n",
        node
        + "properties": "simd_count 96\ngfx_target_version 110000\nlocation_id 768\ndomain 0\n",
        node + "mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {16 * GIB}\n",
    }.items():
        writer.add("file", path, text)
    return writer


@pytest.mark.parametrize(
    "used, total, free, word", read_rows("figures that cannot both be right are named")
)
def test_figures_that_cannot_both_be_right_are_named(used, total, free, word):
    fields = {"total_bytes": total * GIB} | ({"free_bytes": free * GIB} if free else {})
    (book,) = ledger(torch_on(amd_writer(used * GIB), **fields))
    assert any(word in against for against in book.contradictions)


def test_layers_that_agree_are_no_contradiction():
    sizes = {"total_bytes": 16 * GIB - MIB, "free_bytes": 15 * GIB}
    (book,) = ledger(torch_on(amd_writer(GIB), **sizes))
    assert book.contradictions == ()


def test_a_box_where_nothing_says_what_is_in_use_has_no_rest():
    writer = BundleWriter("made", "constructed", "0", "")
    display = {"pci": PCI, "class": "0x030000", "vendor": "0x1002", "device": "0x744c"}
    writer.add("file", "pci_devices", rows({**display, "driver": "", "path": ""}))
    (book,) = ledger(writer.bundle())
    assert not book.used.ok and book.rows == () and replace(book, rows=()).sum_bytes() == 0


def test_a_difference_that_rounding_explains_is_no_contradiction():
    (book,) = ledger(nvidia_box(total=8192, used=1000, free=7192, processes=[(7, 1001)]))
    assert book.contradictions == () and kinds(book) == [("other_process", 1001 * MIB)]
    size = 2 * GIB + MIB
    box = amd_box(used=size, fdinfo=[(10, 1, 2 * MIB)], kfd=[(901, size)], identity=INSIDE)
    assert [row.kind for row in ledger(box)[0].rows] == ["other_process", "unattributed"]


def test_figures_of_nvidia_smi_that_leave_a_gap_are_named():
    (book,) = ledger(nvidia_box(total=8192, used=1000, free=5000))
    assert any("2.14 GiB of 8.00 GiB unexplained" in against for against in book.contradictions)


def test_a_message_of_another_card_is_named_and_the_drivers_reserve_is_no_difference():
    box = amd_writer().bundle()
    other, same = (ledger(box, oom(backend="hip", capacity=n, free=n))[1] for n in (12, 16))
    assert any("another GPU or another boot" in against for against in other.contradictions)
    assert not same.contradictions
    green = nvidia_box(total=24564, used=20480, free=3620, reserved=464, processes=[(31, 20480)])
    told = ledger(green, oom(backend="cuda", capacity=23.5, free=3.5))[1]
    assert told.notes == ()


def test_an_absurd_size_of_the_process_is_not_taken_into_the_sum():
    book = of(oom(capacity=8, free=1, allocated=5, process=17179869184.0))
    assert book.sum_bytes() == 7 * GIB and book.rows[0].bytes.value == 5 * GIB
