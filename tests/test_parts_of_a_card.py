"""A card that is cut into MIG devices, and the window to a card's memory: whose memory a failing program lacked."""

import pytest
from changed_boxes import oom
from kernel_boxes import box

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_bundle, evidence_from_message
from helpers.judge.ledger import ledgers_of
from helpers.judge.obstacles import obstacles

RDMA = "node7:52:88 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
MAPPING = "RuntimeError: CUDA error: mapping of buffer object failed\n"
PINNED = "cudaHostRegister(pages, size, flags) failed: out of memory\n"


def sizes(tag, total, used, free=None):
    free = total - used if free is None else free
    rows = (("total", total), ("reserved", 0), ("used", used), ("free", free))
    cells = "".join(
        f"<{name}>{size}{' MiB' if isinstance(size, int) else ''}</{name}>" for name, size in rows
    )
    return f"<{tag}>{cells}</{tag}>"


def mig(index, instance, total, used):
    return (
        f"<mig_device><index>{index}</index><gpu_instance_id>{instance}</gpu_instance_id>"
        f"{sizes('fb_memory_usage', total, used)}</mig_device>"
    )


def card(pci, memory, window, processes=(), devices=""):
    rows = "".join(
        f"<process_info><gpu_instance_id>{instance}</gpu_instance_id><pid>{pid}</pid>"
        f"<process_name>python3</process_name><used_memory>{mib} MiB</used_memory></process_info>"
        for pid, mib, instance in processes
    )
    return (
        f'<gpu id="00000000:{pci}"><product_name>NVIDIA A100</product_name>'
        f"<mig_devices>{devices or 'None'}</mig_devices>"
        f"{memory}{window}<processes>{rows}</processes></gpu>"
    )


def nvidia(*cards, **files):
    xml = f'<?xml version="1.0" ?><nvidia_smi_log>{"".join(cards)}</nvidia_smi_log>'
    return evidence_from_bundle(box({"nvidia-smi -q -x": xml, **files}))


def window_of(total, used, message):
    memory = sizes("fb_memory_usage", 24576, 2100)
    window = sizes("bar1_memory_usage", total, used)
    return nvidia(card("61:00.0", memory, window, [(7, 2000, "N/A")]), message=message)


@pytest.mark.parametrize("message", [RDMA, MAPPING])
def test_a_window_that_is_used_up_is_named_with_its_numbers(message):
    verdict = diagnose(window_of(256, 251, message))
    assert (verdict.cause, verdict.confidence) == ("other", "likely")
    assert "251.00 MiB" in verdict.title
    assert any("256.00 MiB window" in row.says for row in verdict.evidence)
    assert "BAR1" in verdict.next_step.command


def test_a_window_that_is_used_up_stands_against_a_limit_on_pinned_memory():
    verdict = diagnose(window_of(256, 251, PINNED))
    assert verdict.cause == "host-oom"
    assert [row.reading.show() for row in verdict.against] == ["251.00 MiB"]


@pytest.mark.parametrize(("total", "used"), [(256, 30), (32768, 32750)])
def test_a_window_with_room_or_as_large_as_the_memory_is_not_called_full(total, used):
    verdict = diagnose(window_of(total, used, RDMA))
    assert "BAR1" not in verdict.title
    assert diagnose(window_of(total, used, MAPPING)).confidence == "weak"


def test_a_printed_window_that_is_used_up_is_named():
    printed = (
        "GPU 00000000:61:00.0\n    FB Memory Usage\n        Total    : 24576 MiB\n"
        "        Used     : 2100 MiB\n        Free     : 22476 MiB\n    BAR1 Memory Usage\n"
        "        Total    : 256 MiB\n        Used     : 249 MiB\n        Free     : 7 MiB\n"
    )
    verdict = diagnose(evidence_from_message(MAPPING + printed))
    assert "249.00 MiB" in verdict.title


def cut(message, processes):
    memory = sizes("fb_memory_usage", 40960, "N/A", "N/A")
    window = sizes("bar1_memory_usage", 65536, 1)
    devices = mig(0, 2, 20096, 19800) + mig(1, 7, 4864, 4700)
    return nvidia(card("17:00.0", memory, window, processes, devices), message=message)


def test_what_a_program_may_have_is_its_mig_device():
    message = oom("300.00 MiB", "4.75 GiB", "60.00 MiB", "4.10 GiB", "20.00 MiB")
    evidence = cut(message, [(31, 19700, 2), (32, 4600, 7)])
    verdict = diagnose(evidence)
    assert verdict.cause == "true-capacity"
    assert "MIG device" in verdict.title
    assert not any("31" in row.says for row in verdict.evidence)
    books = {book.place: book for book in ledgers_of(evidence) if book.account == "driver"}
    assert list(books) == ["0000:17:00.0 MIG device 0", "0000:17:00.0 MIG device 1"]
    assert [book.total.show() for book in books.values()] == ["19.62 GiB", "4.75 GiB"]
    own = [row.pid for row in books["0000:17:00.0 MIG device 1"].rows if row.pid]
    assert set(own) == {32}


@pytest.mark.parametrize(("profile", "part"), [("1g.5gb", "MIG device"), ("3g.20gb", "card")])
def test_a_list_of_mig_devices_in_the_text_counts_where_one_has_what_the_message_says(
    profile, part
):
    listed = "GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-5)\n  MIG {}  Device 0: (UUID: MIG-22bb-01)\n"
    message = oom("300.00 MiB", "4.75 GiB", "60.00 MiB", "4.10 GiB", "20.00 MiB")
    verdict = diagnose(evidence_from_message(listed.format(profile) + message))
    assert verdict.title.startswith(f"The {part} is full: this process uses 4.12 GiB of 4.75 GiB")


def test_a_process_in_another_mig_device_is_not_named_as_the_holder():
    own = " Including non-PyTorch memory, this process has 1.20 GiB memory in use."
    message = oom("600.00 MiB", "4.75 GiB", "90.00 MiB", "800.00 MiB", "10.00 MiB", own)
    verdict = diagnose(cut(message, [(31, 19700, 2)]))
    assert verdict.confidence != "confirmed"
    assert "31" not in verdict.title
    assert "kill" not in verdict.next_step.command


def test_without_a_failure_what_is_free_is_told_of_each_mig_device():
    verdict = diagnose(cut("", [(31, 19700, 2)]))
    assert verdict.state == "healthy"
    assert "296.00 MiB, 164.00 MiB of GPU memory" in verdict.title


def two_cards(used):
    own = " Including non-PyTorch memory, this process has 2.00 GiB memory in use."
    message = oom("400.00 MiB", "39.50 GiB", "150.00 MiB", "1.50 GiB", "10.00 MiB", own)
    memory = sizes("fb_memory_usage", 40960, used + 200)
    window = sizes("bar1_memory_usage", 65536, 1)
    cards = [
        card("17:00.0", sizes("fb_memory_usage", 40960, 100), window),
        card("18:00.0", memory, window, [(9, used, "N/A")]),
    ]
    return diagnose(nvidia(*cards, message=message))


def test_a_holder_on_one_of_several_cards_proves_nothing_unless_it_covers_what_is_outside():
    assert two_cards(24000).confidence != "confirmed"
    assert two_cards(38000).confidence == "confirmed"


@pytest.mark.parametrize(("value", "is_hidden"), [("MIG-11aa", True), ("MIG-22bb-0", False)])
def test_a_variable_that_names_a_mig_device_of_earlier_hides_all(value, is_hidden):
    listed = "GPU 0: NVIDIA A100 (UUID: GPU-5)\n  MIG 3g.20gb     Device  0: (UUID: MIG-22bb-01)\n"
    memory = sizes("fb_memory_usage", 40960, 100)
    xml = (
        f"<nvidia_smi_log>{card('17:00.0', memory, '', (), mig(0, 2, 20096, 10))}</nvidia_smi_log>"
    )
    sources = {"nvidia-smi -q -x": xml, "nvidia-smi -L": listed}
    environment = [{"name": "CUDA_VISIBLE_DEVICES", "value": value, "status": "ok"}]
    device = {"pci": "0000:17:00.0", "vendor": "0x10de", "class": "0x030200", "driver": "nvidia"}
    made = box(sources, environment=environment, pci_devices=[device])
    assert bool([row for row in obstacles(made, "NVIDIA") if row.path]) == is_hidden
