"""The kernel log. LINES holds at least one line for every rule of the reader, in the forms of different kernels and vendors
(amdgpu with and without its prefix, gfx8 to gfx11, MES and the older scheduler, NVIDIA Xid, mm, PCIe); FORMS every form of a
time stamp. What is collected is tried on programs that answer as journalctl and dmesg do."""

import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import MISSING, REFUSED, box

from helpers.look import commands, kernel_log, kernel_tap
from helpers.look.kernel_log import parse

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
CARD = "amdgpu 0000:03:00.0: "


def line(message, kind, detail="", pci=None, pid=None, process="", **facts):
    """A message and the event it is; the PCI address is the card's where the message begins with it."""
    if pci is None:
        pci = "0000:03:00.0" if message.startswith(CARD) else ""
    return message, kind, detail, pci, pid, process, facts


LINES = [
    line(CARD + "amdgpu: GPU reset begin!. Source:  3", "gpu_reset", "begin"),
    line(CARD + "amdgpu: MODE2 reset", "gpu_reset", "mode2"),
    line(CARD + "GPU smu mode1 reset", "gpu_reset", "mode1"),
    line("[drm] BACO reset", "gpu_reset", "baco"),
    line(CARD + "amdgpu: GPU reset succeeded, trying to resume", "gpu_reset", "resuming"),
    line(CARD + "amdgpu: GPU reset(3) succeeded!", "gpu_reset", "succeeded"),
    line(CARD + "amdgpu: GPU reset(2) failed", "gpu_reset", "failed"),
    line(CARD + "amdgpu: GPU reset end with ret = -110", "gpu_reset", "failed", error=-110),
    line(
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* GPU Recovery Failed: -62",
        "gpu_reset",
        "failed",
        error=-62,
    ),
    line(CARD + "amdgpu: GPU recovery disabled.", "gpu_reset", "disabled"),
    line(
        CARD + "amdgpu: Ring comp_1.0.0 reset failure",
        "gpu_reset",
        "ring failed",
        ring="comp_1.0.0",
    ),
    line(CARD + "amdgpu: VRAM is lost due to GPU reset!", "vram_lost"),
    line(
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=5, emitted seq=7",
        "ring_timeout",
        "sdma0",
    ),
    line(
        CARD + "amdgpu: ring gfx timeout, but soft recovered", "ring_timeout", "gfx soft recovered"
    ),
    line(CARD + "MES(0) failed to respond to msg=REMOVE_QUEUE", "mes_hang", "REMOVE_QUEUE"),
    line(
        "[drm:mes_v11_0_submit_pkt_and_poll.constprop.0 [amdgpu]] *ERROR* MES failed to response msg=3",
        "mes_hang",
        "3",
    ),
    line(
        "amdgpu: MES might be in unrecoverable state, issue a GPU reset",
        "mes_hang",
        "unrecoverable",
    ),
    line(
        "amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption",
        "mes_hang",
        "hardware scheduler",
    ),
    line(
        CARD
        + "amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32770, for process train loop pid 812 "
        "thread python3 pid 812)",
        "vm_fault",
        "gfxhub0",
        pid=812,
        process="train loop",
        vmid=3,
        pasid=32770,
    ),
    line(
        CARD
        + "GPU fault detected: 147 0x00010203 for process viewer pid 6200 thread viewer:cs0 pid 6207",
        "vm_fault",
        pid=6200,
        process="viewer",
    ),
    line(CARD + "amdgpu: [drm] *ERROR* Not enough memory for command submission!", "cs_enomem"),
    line(
        "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Failed to process the buffer list -12!", "cs_enomem"
    ),
    line("kfd2kgd: Failed to create BO on domain GTT. ret -12", "kfd_enomem", "GTT"),
    line(
        "amdgpu: SVM mapping failed, exceeds resident system memory limit",
        "kfd_enomem",
        "system memory",
    ),
    line(
        "[drm:amdgpu_dm_plane_helper_prepare_fb [amdgpu]] *ERROR* Failed to pin framebuffer with error -12",
        "pin_failed",
        "framebuffer",
        error=-12,
    ),
    line(CARD + "amdgpu: 00000000c0ffee01 pin failed", "pin_failed", "buffer"),
    line(
        CARD
        + "amdgpu: VM memory stats for proc shell(31)(3310) task shell:cs0(3301) is non-zero when fini",
        "nonzero_when_fini",
        pid=3301,
        process="shell(31)",
        thread=3310,
    ),
    line(CARD + "VM memory stats is non-zero when fini", "nonzero_when_fini"),
    line(
        "Out of memory: Killed process 4242 (my (odd) tool) total-vm:8388608kB, anon-rss:4194304kB, file-rss:0kB",
        "oom_killer",
        "global",
        pid=4242,
        process="my (odd) tool",
        total_vm_bytes=8 * GIB,
        anon_rss_bytes=4 * GIB,
    ),
    line(
        "Memory cgroup out of memory: Kill process 77 (worker) score 904 or sacrifice child",
        "oom_killer",
        "cgroup",
        pid=77,
        process="worker",
    ),
    line(
        "kworker/u8:3: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP)",
        "page_allocation_failure",
        process="kworker/u8:3",
        order=4,
    ),
    line(
        "pcieport 0000:00:01.1: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Receiver ID)",
        "pcie_aer",
        "uncorrected (non-fatal)",
        pci="0000:00:01.1",
    ),
    line(
        "pcieport 0000:00:01.1: AER: Correctable error message received from 0000:03:00.0",
        "pcie_aer",
        "corrected",
        pci="0000:03:00.0",
    ),
    line(CARD + "amdgpu: PCIE atomic ops is not supported", "pcie_atomics"),
    line("kfd kfd: skipped device 1002:67df, PCI rejects atomics", "pcie_atomics"),
    line(
        "NVRM: Xid (PCI:0000:0A:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "xid",
        "79",
        pci="0000:0a:00.0",
    ),
    line(
        "NVRM: Xid (PCI:0000:0a:00): 31, pid=5512, name=python3, Ch 00000008, intr 10000000.",
        "xid",
        "31",
        pci="0000:0a:00.0",
        pid=5512,
        process="python3",
    ),
    line("NVRM: Xid (0000:0a:00): 13, 0002 00000000 0000a0c0", "xid", "13", pci="0000:0a:00.0"),
    line(
        CARD
        + "[drm] GTT size has been set as 107374182400 but TTM size has been set as 33554432000, this is unusual",
        "gtt_vs_ttm_mismatch",
        gtt_bytes=107374182400,
        ttm_bytes=33554432000,
    ),
    line(
        CARD
        + "[drm] Configuring gttsize via module parameter is deprecated, please use ttm.pages_limit",
        "gttsize_deprecated",
    ),
    line(
        "amdttm: unknown parameter 'page_limit' ignored", "unknown_parameter", "amdttm.page_limit"
    ),
    line(
        CARD + "amdgpu: amdgpu: 20464M of VRAM memory ready", "vram_ready", size_bytes=20464 * MIB
    ),
    line("[drm] amdgpu: 31934M of GTT memory ready.", "gtt_ready", size_bytes=31934 * MIB),
    line(
        "[drm] vm size is 262144 GB, 4 levels, block size is 9-bit, fragment size is 9-bit",
        "vm_size",
        size_bytes=262144 * GIB,
    ),
    line(
        "INFO: task python3:main:9917 blocked for more than 122 seconds.",
        "hung_task",
        pid=9917,
        process="python3:main",
        seconds=122,
    ),
    line("[drm] amdgpu version: 6.12.12", "driver_version", "6.12.12"),
    line(
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build",
        "driver_version",
        "575.57.08",
    ),
    line(
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue",
        "driver_version",
        "580.95.05",
    ),
    line(
        "Linux version 6.14.0-37-generic (builder@nowhere) (gcc 13) #37 SMP",
        "boot",
        "6.14.0-37-generic",
    ),
]


@pytest.mark.parametrize(
    "case", LINES, ids=[f"{case[1]}-{number}" for number, case in enumerate(LINES)]
)
def test_each_message_becomes_its_event(case):
    message, kind, detail, pci, pid, process, facts = case
    (event,) = parse(f"[   12.500000] {message}\n", "dmesg", "d1")
    assert (event.kind, event.detail, event.pci, event.pid, event.process) == (
        kind,
        detail,
        pci,
        pid,
        process,
    )
    assert event.facts == facts
    assert (event.when.value, event.when.unit, event.line, event.count, event.text) == (
        12.5,
        "count",
        1,
        1,
        message,
    )
    assert (event.source, event.when.item) == ("dmesg", "d1")


def test_every_rule_has_a_line_here():
    texts = [*(text for text, *_ in LINES), *(rule.example for rule in kernel_log.rules())]
    used = {event.row for text in texts for event in parse(text)}
    assert {rule.id for rule in kernel_log.rules()} == used


def test_every_word_the_rules_wait_for_gets_through_the_sieve():
    sieve = kernel_tap.Sieve(1 << 20)
    sieve.feed("".join(case[0] + "\n" for case in LINES).encode())
    assert sieve.text().decode().splitlines() == [case[0] for case in LINES]


FORMS = [
    ("[  812.004500] {}", 812.0045),
    ("[    0.000000][    T1] {}", 0.0),
    ("<3>[  812.004500] {}", 812.0045),
    ("kern  :err   : [  812.004500] {}", 812.0045),
    ("[Wed Mar 11 07:08:09 2026] {}", "Wed Mar 11 07:08:09 2026"),
    ("[三 3月 11 07:08:09 2026] {}", "三 3月 11 07:08:09 2026"),
    ("Mar 11 07:08:09.123400 box kernel: {}", "Mar 11 07:08:09.123400"),
    ("dez  4 05:06:07 box kernel: [ 1357.246800] {}", 1357.246800),
    ("10月 04 05:06:07 kernel: {}", "10月 04 05:06:07"),
    ("janv. 14 05:06:07 {}", "janv. 14 05:06:07"),
    ("2026-03-11T07:08:09+02:00 box kernel: {}", "2026-03-11T07:08:09+02:00"),
    ("2026-03-11T07:08:09,123456+02:00 {}", "2026-03-11T07:08:09,123456+02:00"),
    ("[    3.500000] kernel: {}", 3.5),
    ("[    3.500000] box kernel: {}", 3.5),
    ("1754380582.546876 box kernel: {}", "1754380582.546876"),
    ("6,512,5140900,-;{}", 5.1409),
    ("05:06:07 {}", "05:06:07"),
    ("kernel: {}", None),
    ("{}", None),
]


@pytest.mark.parametrize(("form", "when"), FORMS, ids=[form for form, _ in FORMS])
def test_every_form_of_time_stamp_leaves_the_same_message(form, when):
    message = CARD + "amdgpu: VRAM is lost due to GPU reset!"
    (event,) = parse(form.format(message))
    assert event.text == message and event.pci == "0000:03:00.0"
    assert event.when.value == when
    assert event.when.unit == ("text" if isinstance(when, str) else "count")


def test_a_fault_is_folded_with_its_process_address_status_and_client():
    text = "\n".join(
        f"[ 100.0000{n:02d}] {CARD}amdgpu: {line}"
        for n, line in enumerate(
            [
                "[gfxhub] page fault (src_id:0 ring:40 vmid:8 pasid:32773)",
                " Process my trainer pid 512 thread my trainer pid 519",
                "  in page starting at address 0x00007f00deadb000 from client 10",
                "GCVM_L2_PROTECTION_FAULT_STATUS:0x00841051",
                "\t Faulty UTCL2 client ID: TCP (0x8)",
                "\t MORE_FAULTS: 0x1",
                "\t RW: 0x1",
            ]
        )
    )
    (event,) = parse(text)
    assert (event.pid, event.process, event.count) == (512, "my trainer", 1)
    assert event.facts == {
        "vmid": 8,
        "pasid": 32773,
        "address": "0x00007f00deadb000",
        "status": "0x00841051",
        "client": "TCP (0x8)",
    }


def test_an_older_fault_names_its_address_and_status_in_other_words():
    (event,) = parse(
        f"{CARD}GPU fault detected: 146 0x0c0d0e0f\n{CARD} Process probe pid 9 thread probe pid 9\n"
        f"{CARD}  VM_CONTEXT1_PROTECTION_FAULT_ADDR   0x00ABC123\n"
        f"{CARD}  VM_CONTEXT1_PROTECTION_FAULT_STATUS 0x10020003\n"
    )
    assert (event.pid, event.facts) == (9, {"address": "0x00ABC123", "status": "0x10020003"})


def test_a_timeout_is_folded_with_the_process_in_any_of_its_wordings():
    for words in (
        "Process information: process comp pid 10 thread comp:cs0 pid 11",
        " Process comp pid 10 thread comp:cs0 pid 11",
        " in process comp pid 10 thread comp:cs0 pid 11",
    ):
        (event,) = parse(
            f"{CARD}amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3\n{CARD}amdgpu: {words}\n"
        )
        assert (event.kind, event.pid, event.process) == ("ring_timeout", 10, "comp")


def test_a_process_line_of_another_card_or_much_later_is_not_taken():
    fault = f"{CARD}[gfxhub] page fault (src_id:0 ring:40 vmid:8 pasid:1)\n"
    for between in (
        f"{CARD.replace('03', '0a')} Process other pid 5 thread other pid 5\n",
        f"{CARD}nothing\n" * 20 + f"{CARD} Process other pid 5 thread other pid 5\n",
    ):
        assert parse(fault + between)[0].pid is None


def test_a_storm_is_one_event_with_its_count_and_end_and_two_processes_are_two():
    fault = "[{:5d}.000000] " + CARD + "[mmhub] page fault (src_id:0 ring:0 vmid:4 pasid:{})"
    text = "\n".join(fault.format(second, 7 + second % 2) for second in range(100))
    first, second = parse(text)
    assert (first.count, first.when.value, first.until.value) == (50, 0.0, 98.0)
    assert (second.count, second.facts["pasid"], second.until.value) == (50, 8, 99.0)


def test_a_reset_between_two_storms_keeps_them_apart():
    line = CARD + "[drm] *ERROR* Not enough memory for command submission!\n"
    kinds = [
        (event.kind, event.count)
        for event in parse(line * 3 + CARD + "GPU reset begin!\n" + line * 2)
    ]
    assert kinds == [("cs_enomem", 3), ("gpu_reset", 1), ("cs_enomem", 2)]


def test_a_kill_in_a_control_group_names_the_group_and_an_older_kernels_second_line_gives_the_size():
    text = (
        "[ 10.1] cp invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        "[ 10.2] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/pod/7,"
        "task_memcg=/pod/7/a,task=cp,pid=31,uid=0\n"
        "[ 10.3] Memory cgroup out of memory: Kill process 31 (cp) score 5 or sacrifice child\n"
        "[ 10.4] Killed process 31 (cp) total-vm:2048kB, anon-rss:1024kB, file-rss:1kB\n"
        "[ 11.0] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),oom_memcg=/,global_oom,task_memcg=/,task=cc,pid=32\n"
        "[ 11.1] Out of memory: Killed process 32 (cc) total-vm:4096kB, anon-rss:8kB, file-rss:1kB\n"
    )
    group, all_of_it = parse(text)
    assert (group.detail, group.pid, group.facts) == (
        "cgroup",
        31,
        {"cgroup": "/pod/7", "total_vm_bytes": 2 * MIB, "anon_rss_bytes": MIB},
    )
    assert (all_of_it.detail, all_of_it.facts["anon_rss_bytes"]) == ("global", 8 * KIB)


def test_well_known_xid_numbers_have_a_meaning_and_others_none():
    meanings = [
        parse(f"NVRM: Xid (PCI:0000:01:00): {n}, pid=1, x")[0].meaning for n in (79, 31, 119, 7777)
    ]
    assert meanings[0] == "GPU has fallen off the bus" and all(meanings[:3]) and not meanings[3]
    assert parse(CARD + "GPU reset begin!")[0].meaning == ""


def test_lines_of_other_things_are_no_events():
    assert (
        parse(
            "[ 1.0] usb 1-1: reset high-speed USB device\n[ 2.0] pcieport 0000:00:1c.0: AER: enabled with IRQ 122\n"
            "[ 3.0] snd: no memory\n[ 4.0] amdgpu 0000:03:00.0: amdgpu: SMU is resumed successfully!\n"
            "[ 5.0] PM: suspend entry (deep)\n[ 6.0] amdgpu: Virtual CRAT table created for GPU\n"
        )
        == ()
    )


BOTH = {
    "journalctl -k -b 0 -o short-monotonic": "[    9.0] kernel: amdgpu 0000:03:00.0: GPU reset begin!\n",
    "journalctl -k -b -1 -o short-monotonic": "[  500.0] kernel: amdgpu 0000:03:00.0: VRAM is lost due to GPU reset!\n",
    "dmesg": "[    9.0] amdgpu 0000:03:00.0: GPU reset begin!\n",
}


def test_two_boots_are_told_apart_and_one_boot_is_read_from_one_source():
    earlier, now = kernel_log.events(box(BOTH))
    assert (earlier.boot, earlier.kind, now.boot, now.kind) == (-1, "vram_lost", 0, "gpu_reset")
    assert now.source.startswith("journalctl") and now.when.item.startswith("command/journalctl")
    assert kernel_log.readable(box(BOTH)).value == "journalctl -k -b 0 -o short-monotonic"


def test_dmesg_serves_where_the_journal_is_missing_refused_or_empty():
    for journal in (MISSING, REFUSED, ""):
        made = box({**BOTH, "journalctl -k -b 0 -o short-monotonic": journal})
        assert [event.source for event in kernel_log.events(made)][-1] == "dmesg"
        assert kernel_log.readable(made).value == "dmesg"


def test_no_right_to_read_no_log_and_no_events_are_three_things():
    refused = kernel_log.readable(box({"journalctl -k -b 0": MISSING, "dmesg": REFUSED}))
    assert (refused.status, refused.source) == ("not_allowed", "dmesg")
    assert kernel_log.readable(box({"dmesg": MISSING})).status == "not_available"
    assert kernel_log.readable(box()).why == "not captured"
    quiet = box({"dmesg": ""})
    assert kernel_log.events(quiet) == () and kernel_log.readable(quiet).ok


def test_a_posted_log_file_is_read_too():
    (event,) = kernel_log.events(
        box({"/var/log/kern.log": "Dec  4 05:06:07 box kernel: [ 1357.2] amdgpu: VRAM is lost!\n"})
    )
    assert (event.kind, event.source) == ("vram_lost", "/var/log/kern.log")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([case[0] for case in LINES] + [form for form, _ in FORMS])
        | st.text(max_size=60),
        max_size=12,
    ).map("\n".join)
    | st.text(max_size=300)
)
def test_any_text_is_read_without_an_error_and_every_event_points_at_its_line(text):
    lines = text.split("\n")
    found = parse(text)
    assert all(event.text in lines[event.line - 1] for event in found)
    assert sum(event.count for event in found) <= len(lines)
    assert list(found) == sorted(found, key=lambda event: event.line)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([case for case in LINES]), st.data())
def test_a_line_that_was_cut_anywhere_gives_its_event_or_none(case, data):
    cut = data.draw(st.integers(0, len(case[0])))
    assert len(parse(case[0][:cut])) <= 1


@pytest.mark.parametrize(
    "hostile",
    [
        "a",
        "[",
        "VM memory stats for proc (",
        "ring ",
        "kernel: ",
        "1",
        "process ",
        "AER: ",
        "Out of memory: Killed process 1 (",
        "page fault ",
        "0000:03:00.",
    ],
)
def test_a_single_line_of_ten_megabytes_is_read_to_its_cut(hostile):
    line = hostile * (10_000_000 // len(hostile))
    assert len(
        parse("amdgpu reset " + line + "\n[ 1.0] amdgpu: VRAM is lost due to GPU reset!\n")
    ) in (1, 2)
    sieve = kernel_tap.Sieve(1 << 20)
    sieve.feed(b"amdgpu " + line.encode() + b"\n")
    assert len(sieve.text()) == kernel_tap.LINE_LIMIT_BYTES + 1


def test_the_sieve_keeps_the_start_and_the_end_and_says_how_much_is_missing():
    sieve = kernel_tap.Sieve(4000)
    for n in range(1000):
        sieve.feed(b"[%5d.0] amdgpu: line\nusb noise\n" % n)
    lines = sieve.text().decode().splitlines()
    assert lines[0].startswith("[    0.0]") and lines[-1].startswith("[  999.0]")
    gap = next(line for line in lines if line.startswith("---"))
    assert (
        gap == f"--- {sieve.left_out} lines left out ---"
        and sieve.left_out + len(lines) - 1 == 1000
    )
    assert len(sieve.text()) <= 4000 + len(gap) + 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                b"amdgpu x\n",
                b"noise\n",
                b"\n",
                b"-- No entries --\n",
                b"NVRM: y",
                b"\n\n",
                b"\xff\xfe",
            ]
        )
    ),
    st.integers(1, 9),
)
def test_the_sieve_keeps_the_same_whatever_pieces_the_stream_comes_in(parts, size):
    whole, pieces = kernel_tap.Sieve(1 << 16), kernel_tap.Sieve(1 << 16)
    data = b"".join(parts)
    whole.feed(data)
    for at in range(0, len(data), size):
        pieces.feed(data[at : at + size])
    expected = [line for line in data.split(b"\n") if b"amdgpu" in line or b"NVRM" in line]
    assert pieces.text() == whole.text() == b"".join(line + b"\n" for line in expected)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Stands programs of one's own in for journalctl and dmesg, and nothing for /dev/kmsg."""
    monkeypatch.setattr(commands, "search_path", lambda: str(tmp_path))
    monkeypatch.setattr(kernel_tap, "LIMIT_S", 5.0)

    def write(**scripts):
        for name, script in scripts.items():
            (tmp_path / name).write_text("#!/bin/sh\nPATH=/bin:/usr/bin\n" + script)
            (tmp_path / name).chmod(stat.S_IRWXU)
        return {
            item.source.split()[0]
            + (" " + item.source.split()[-1] if " " in item.source else ""): item
            for item in kernel_tap.collect(1 << 20)
        }

    return write


def test_every_known_xid_has_its_meaning():
    for code, meaning in kernel_log.xids().items():
        (event,) = parse(
            f"[ 1.0] NVRM: Xid (PCI:0000:01:00): {code}, pid=7, name=python3, and more\n"
        )
        assert (event.kind, event.detail, event.meaning) == ("xid", code, meaning) and meaning
    (rare,) = parse("[ 1.0] NVRM: Xid (PCI:0000:01:00): 999, pid=7, name=python3, and more\n")
    assert rare.meaning == ""


def test_both_boots_come_from_the_journal_and_dmesg_is_then_not_asked(programs):
    got = programs(
        journalctl='echo "-- Boot x --"; echo "[ 1.0] kernel: amdgpu: boot $7"; echo "[ 2.0] kernel: usb noise"\n',
        dmesg="echo '[ 1.0] amdgpu: never'\n",
    )
    assert set(got) == {"journalctl 0", "journalctl -1"}
    assert [(item.status, item.content) for item in got.values()] == [
        ("ok", b"[ 1.0] kernel: amdgpu: boot 0\n"),
        ("ok", b"[ 1.0] kernel: amdgpu: boot -1\n"),
    ]


def test_a_journal_that_only_hints_is_not_allowed_and_dmesg_answers(programs):
    got = programs(
        journalctl="echo 'Hint: You are currently not seeing messages from other users and the system.' >&2\n"
        "echo '-- No entries --'\n",
        dmesg="echo '[ 1.0] Linux version 6.1'\n",
    )
    assert (
        got["journalctl 0"].status == "not_allowed"
        and "not seeing messages" in got["journalctl 0"].why
    )
    assert got["journalctl 0"].content is None
    assert (got["dmesg"].status, got["dmesg"].content) == ("ok", b"[ 1.0] Linux version 6.1\n")


def test_a_restricted_kernel_log_is_not_allowed_everywhere(programs, monkeypatch):
    real = os.open

    def refuse(path, *args, **kwargs):
        if path == "/dev/kmsg":
            raise PermissionError(1, "Operation not permitted")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(kernel_tap.os, "open", refuse)
    got = programs(
        dmesg="echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n"
    )
    assert [(name, item.status) for name, item in got.items()] == [
        ("journalctl 0", "not_available"),
        ("journalctl -1", "not_available"),
        ("dmesg", "not_allowed"),
        ("/dev/kmsg", "not_allowed"),
    ]
    assert got["journalctl 0"].why == "no such program"


def test_a_program_that_hangs_costs_its_limit_and_what_it_said_is_kept(programs, monkeypatch):
    monkeypatch.setattr(kernel_tap, "LIMIT_S", 0.4)
    got = programs(journalctl="echo '[ 1.0] amdgpu: seen'\nexec sleep 60\n")
    assert (got["journalctl 0"].status, got["journalctl 0"].content) == (
        "truncated",
        b"[ 1.0] amdgpu: seen\n",
    )
    assert got["journalctl 0"].why == "stopped after 0.4 s"


def test_an_earlier_boot_that_was_not_kept_says_so(programs):
    got = programs(
        journalctl='[ "$7" = 0 ] && echo "[ 1.0] NVRM: here" && exit 0\n'
        'echo "Specifying boot ID has no effect, no persistent journal was found." >&2\nexit 1\n'
    )
    assert (
        got["journalctl -1"].status == "not_available"
        and "no persistent journal" in got["journalctl -1"].why
    )


def test_a_log_without_a_line_of_interest_is_an_empty_text_and_not_a_missing_one(programs):
    got = programs(dmesg="echo '[ 1.0] usb 1-1: new device'\n")
    assert (got["dmesg"].status, got["dmesg"].content) == ("ok", b"")


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (b"6,512,5140900,-;amdgpu: here\n SUBSYSTEM=pci\n", b"[    5.140900] amdgpu: here\n"),
        (b"4,1,0,c,caller=T1;x", b"[    0.000000] x\n"),
        (b"30,5,1,-;systemd[1]: not the kernel's\n", b""),
        (b"junk", b""),
        (b"a,b,c;x", b""),
    ],
)
def test_a_record_of_dev_kmsg_becomes_a_line_as_dmesg_prints_it(record, line):
    assert kernel_tap.kmsg_line(record) == line
