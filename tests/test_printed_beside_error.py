"""What a tool printed beside an error decides, or leaves open: holders, rooms, torch's own sums, and bytes of nobody."""

import pytest

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_message
from helpers.judge.observations import observe

BARE = "RuntimeError: CUDA error: out of memory\n"
QUERY = """\
$ nvidia-smi --query-gpu=index,memory.total,memory.used --format=csv
index, memory.total [MiB], memory.used [MiB]
0, 24564 MiB, {used} MiB
$ nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv
pid, process_name, used_gpu_memory [MiB]
{apps}
"""
TABLE = """\
|   0  Quadro RTX 6000     Off  | 00000000:41:00.0 Off |                  Off |
| 33%   31C    P8    14W / 260W |  {used}MiB / 24220MiB |      0%      Default |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|    0   N/A  N/A    640113      C   python3 serve.py            {held}MiB |
"""
SUMMARY = """\
torch.OutOfMemoryError: Allocation on device
|                  PyTorch CUDA memory summary, device ID 0                 |
|            CUDA OOMs: {ooms}            |        cudaMalloc retries: 1         |
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
| Allocated memory      |  10240 MiB |  11264 MiB |  90000 MiB |  79760 MiB |
|       from large pool |  10000 MiB |  11000 MiB |  80000 MiB |  70000 MiB |
| Reserved memory       |  14336 MiB |  14336 MiB |  14336 MiB |      0 B   |
"""
REPORT = """\
# ComfyUI Error Report
- **Exception Type:** torch.OutOfMemoryError
- **Exception Message:** Allocation on device
## Devices
- **Name:** cuda:0 NVIDIA GeForce RTX 4070 : cudaMallocAsync
  - **VRAM Total:** 12878086144
  - **VRAM Free:** {free}
  - **Torch VRAM Total:** 2147483648
  - **Torch VRAM Free:** 104857600
"""


def names(text):
    return {observation.name for observation in observe(evidence_from_message(text))}


def shown(verdict):
    return " ".join(row.says for row in verdict.evidence)


@pytest.mark.parametrize(
    "printed",
    [
        TABLE.format(used=22011, held=22000),
        QUERY.format(used=22500, apps="640113, python3, 22000 MiB"),
    ],
)
def test_the_next_step_beside_a_list_of_holders_is_the_process_and_no_other_list(printed):
    verdict = diagnose(evidence_from_message(BARE + printed))
    assert (verdict.cause, verdict.confidence) == ("external-holder", "likely")
    assert "kill -TERM 640113" in verdict.next_step.command
    commands = [verdict.next_step.command, *(row.how for row in verdict.missing)]
    assert not any("nvidia-smi" in command for command in commands)


def test_what_is_in_use_less_what_is_listed_is_held_by_none_of_them():
    printed = TABLE.format(used=22011, held=9000)
    found = observe(evidence_from_message(BARE + printed))
    (rest,) = [row.reading.bytes for row in found if row.name == "unattributed"]
    assert rest == (22011 - 9000) << 20
    assert "unattributed" not in names(BARE + TABLE.format(used=22011, held=22000))


def test_room_on_the_card_beside_a_refusal_is_said_and_decides_nothing():
    verdict = diagnose(evidence_from_message(BARE + TABLE.format(used=2200, held=9)))
    assert verdict.cause == "cannot-tell"
    assert "Free, of 23.65 GiB" in shown(verdict)
    assert "room-beside-refusal" not in names(BARE + TABLE.format(used=23000, held=9))


def test_sizes_of_torchs_summary_stand_for_those_that_the_message_lacks():
    verdict = diagnose(evidence_from_message(SUMMARY.format(ooms=1)))
    assert "reserved 14336 MiB - allocated 10240 MiB = 4.00 GiB unallocated" in shown(verdict)
    assert {row.cause for row in verdict.alternatives} == {
        "true-capacity",
        "allocator-fragmentation",
    }
    assert "the requested size" in verdict.missing[0].reading


def test_a_message_with_numbers_of_its_own_keeps_them():
    own = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.00 GiB is free. Process 7 has 22.65 GiB memory in use. Of the allocated memory 22.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.\n"  # noqa: E501
    both = evidence_from_message(own + SUMMARY.format(ooms=1))
    assert both.accounts[0].message == evidence_from_message(own).accounts[0].message


def test_a_count_of_failures_in_a_table_is_no_statement_of_a_failure():
    table = SUMMARY.format(ooms=0).partition("\n")[2]
    assert "memory-ran-out" not in names(table)


def test_a_report_that_was_made_after_the_failure_bounds_what_failed():
    verdict = diagnose(evidence_from_message(REPORT.format(free=10737418240)))
    assert verdict.cause == "cannot-tell"
    assert "Free, of 11.99 GiB" in shown(verdict) and "PyTorch then had 2.00 GiB" in shown(verdict)
    assert "caching allocator" not in shown(verdict)
    assert "room-beside-refusal" not in names(REPORT.format(free=1073741824))


EMPTY = """\
|   0  NVIDIA A10G         On   | 00000000:00:1E.0 Off |                    0 |
|  0%   30C    P0    60W / 300W |  22310MiB / 23028MiB |      0%      Default |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|  No running processes found                                                 |
"""


@pytest.mark.parametrize("printed", [EMPTY, QUERY.format(used=22310, apps="")])
def test_a_full_card_with_an_empty_list_has_a_hidden_holder_or_none_and_nothing_more_is_sure(
    printed,
):
    verdict = diagnose(evidence_from_message(BARE + printed))
    assert verdict.confidence == "weak"
    causes = {verdict.cause, *(row.cause for row in verdict.alternatives)}
    assert causes >= {"external-holder", "driver-leak"}
    assert "nvidia-smi" not in verdict.next_step.command


MEMINFO = """\
MemTotal:       65612345 kB
MemFree:          {free} kB
MemAvailable:     {free} kB
Slab:           {slab} kB
SUnreclaim:     {slab} kB
"""
SMEM = """\
$ smem -k -s pss -r
  PID User     Command                         Swap      USS      PSS      RSS
 5123 ann      python load.py --all               0    58.1G    58.2G    58.3G
 1201 ann      /usr/bin/gnome-shell               0   310.2M   340.1M   420.3M
"""


def test_a_killed_process_beside_a_full_ram_is_likely_the_hosts_memory_and_its_holder_is_named():
    text = f"Killed\n{MEMINFO.format(free=412345, slab=300000)}{SMEM}"
    verdict = diagnose(evidence_from_message(text))
    assert (verdict.cause, verdict.confidence) == ("host-oom", "likely")
    assert "process 5123 python load.py --all holds 58.30 GiB" in shown(verdict)
    assert not any("MemAvailable" in row.how or "free -m" in row.how for row in verdict.missing)
    with_room = diagnose(evidence_from_message(f"Killed\n{MEMINFO.format(free=41234500, slab=9)}"))
    assert with_room.confidence == "weak"


def test_ram_that_the_kernel_holds_is_no_processs():
    text = f"Killed\n{MEMINFO.format(free=412345, slab=49123456)}"
    verdict = diagnose(evidence_from_message(text))
    assert "Held by the kernel itself, and by no process" in shown(verdict)
    assert "slabtop" in verdict.next_step.command
    slabtop = "  OBJS ACTIVE  USE OBJ SIZE  SLABS OBJ/SLAB CACHE SIZE NAME\n86123456 86100000  99%    0.25K 2691358       32  21530864K kmalloc-256\n"  # noqa: E501
    assert "kernel itself kmalloc-256" in shown(
        diagnose(evidence_from_message(f"Killed\n{slabtop}"))
    )


def test_a_container_at_its_limit_beside_a_kill_is_likely_the_hosts_memory():
    stats = "CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O\n1f2a2cd4b1e8   loader    3.10%     {}GiB / 32GiB      99.1%    1.2GB / 3MB\n"  # noqa: E501
    verdict = diagnose(evidence_from_message("Killed\n" + stats.format(31.7)))
    assert (verdict.cause, verdict.confidence) == ("host-oom", "likely")
    assert "32.00 GiB that the control group may use" in shown(verdict)
    assert diagnose(evidence_from_message("Killed\n" + stats.format(12.5))).confidence == "weak"


def test_instances_of_a_split_card_are_not_cards_and_bar1_is_not_their_memory():
    mig = """\
|  0    1   0   0  |  19870MiB / 20096MiB | 42      0 |  3   0    2    0    0 |
|                  |      0MiB / 32767MiB |           |                       |
+------------------+----------------------+-----------+-----------------------+
|  0    5   0   1  |     13MiB /  9856MiB | 14      0 |  1   0    1    0    0 |
|                  |      0MiB / 16383MiB |           |                       |
"""
    assert not names(BARE + mig) & {"some-full", "room-beside-refusal"}


def test_torchs_sums_that_a_program_prints_stand_for_those_that_the_message_lacks():
    text = "torch.OutOfMemoryError: CUDA out of memory.\nallocated: 11.50 GiB reserved: 14.00 GiB\n"
    assert "reserved 14.00 GiB - allocated 11.50 GiB = 2.50 GiB" in shown(
        diagnose(evidence_from_message(text))
    )


def test_a_display_server_is_no_holder_that_explains_a_full_card():
    text = BARE + TABLE.format(used=22011, held=22000).replace("python3 serve.py", "/usr/lib/Xorg")
    assert "process-listed" not in names(text)


# -- what ps lists, and looks that find nobody ------------------------------------------------------
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total "
    "capacity of 31.36 GiB of which 120.00 MiB is free.{others} Including non-PyTorch memory, this "
    "process has 900.00 MiB memory in use. Of the allocated memory 400.00 MiB is allocated by "
    "PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated.\n"
)
HELD = FULL.format(others=" Process 6120 has 30.20 GiB memory in use.")
TABLES_OF_PS = {
    "the head in one order": "  PID  PPID STAT CMD\n 6120     1 {stat} ray::Trainer.fit\n",
    "the head in another order": "CMD          STAT PPID PID\nray::Trainer {stat}  1  6120\n",
    "a list in the old manner": "$ ps axo pid,stat,ppid,args | grep ray\n6120 {stat} 1 ray::Trainer --b\n",
    "the head left out by grep": "$ ps -o ppid,stat,pid,lstart,args | grep ray\n"
    "1 {stat} 6120 Mon Mar  2 01:02:03 2026 ray::Trainer --a 1,2\n",
}


@pytest.mark.parametrize("order", TABLES_OF_PS)
def test_a_holder_whose_parent_has_ended_is_an_orphan_and_a_service_is_none(order):
    orphan = diagnose(evidence_from_message(HELD + TABLES_OF_PS[order].format(stat="Sl")))
    assert (orphan.cause, orphan.confidence) == ("stale-holder", "likely")
    assert "kill -TERM 6120" in orphan.next_step.command
    service = diagnose(evidence_from_message(HELD + TABLES_OF_PS[order].format(stat="Ssl")))
    assert service.cause == "external-holder"


def test_what_the_first_program_of_a_container_started_is_no_orphan():
    listed = "PID PPID STAT CMD\n1 0 Ss python launch.py\n6120 1 Sl python worker.py\n"
    assert diagnose(evidence_from_message(HELD + listed)).cause == "external-holder"


def test_a_stopped_holder_is_continued_or_ended():
    listed = "$ ps aux | grep 6120\nann 6120 0.0 1.2 99 7 pts/0 T 10:11 0:42 python a.py\n"
    verdict = diagnose(evidence_from_message(HELD + listed))
    assert verdict.cause == "stale-holder" and "kill -CONT 6120" in verdict.next_step.command


def test_a_zombie_beside_memory_of_nobody_goes_with_its_parent():
    listed = "$ ps -ef | grep defunct\nann 7001 6990 0 10:11 ? 00:00:42 [python] <defunct>\n"
    verdict = diagnose(evidence_from_message(FULL.format(others="") + listed))
    assert verdict.cause == "stale-holder"
    assert "kill -TERM 6990" in verdict.next_step.command
    assert "kill -TERM 7001" not in verdict.next_step.command


MONITORS = {
    "short": "GPU  VRAM_USED  VRAM_FREE  VRAM_TOTAL  VRAM%\n  0    21.0 GB    27.0 GB   48.0 GB  43 %\n",
    "long": "GPU  POWER  GPU_TEMP  GFX_UTIL  GFX_CLOCK  VRAM_USED  VRAM_TOTAL     PCIE_BW\n"
    "  0   15 W     41 °C       0 %     96 MHz   21504 MB    49136 MB      0 Mb/s\n",
    "csv": "gpu,power_usage,vram_used,vram_total\n0,15,21504,49136\n",
}
LOOKS = {
    "fuser as root": "root@box:~# fuser -v /dev/kfd /dev/dri/renderD128\nroot@box:~# uptime\n",
    "sudo lsof": "$ sudo lsof /dev/kfd\n$ uptime\n",
    "the kernel's list": "$ ls /sys/class/kfd/kfd/proc\n$ uptime\n",
}
BLIND_LOOKS = {
    "no root": "$ fuser -v /dev/kfd\n$ uptime\n",
    "a container": "root@0a1b2c3d4e5f:/# fuser -v /dev/kfd\nroot@0a1b2c3d4e5f:/# ls\n",
    "somebody": "# fuser /dev/kfd\n/dev/kfd:  7001m\n# uptime\n",
}


@pytest.mark.parametrize("monitor", MONITORS)
@pytest.mark.parametrize("look", LOOKS)
def test_memory_that_a_complete_look_finds_nobody_for_is_the_drivers(monitor, look):
    printed = f"{MONITORS[monitor]}PROCESS_INFO: No running processes detected\n{LOOKS[look]}"
    verdict = diagnose(evidence_from_message(printed))
    assert (verdict.cause, verdict.confidence) == ("driver-leak", "likely")


@pytest.mark.parametrize("look", BLIND_LOOKS)
def test_a_look_that_is_not_complete_proves_no_leak(look):
    printed = f"{MONITORS['short']}{BLIND_LOOKS[look]}"
    assert diagnose(evidence_from_message(printed)).cause != "driver-leak"
