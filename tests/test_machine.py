"""The machine. Samples: a desktop without limits, containers under control groups v2 and v1, a mixed system, ZFS and zram."""

import dataclasses
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import MISSING, REFUSED, box

from helpers.look import machine

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
DESKTOP = {
    "/proc/version": "Linux version 6.14.0-37-generic (buildd@host) (gcc 13.3.0) #37-Ubuntu SMP\n",
    "/etc/os-release": 'NAME="Example OS"\nPRETTY_NAME="Example OS 24.04 LTS"\nID=example\n',
    "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: Example Ryzen 9 Processor\n\nprocessor\t: 1\n",
    "/proc/meminfo": "MemTotal:       131072000 kB\nMemFree:         1000 kB\nMemAvailable:   65536000 kB\n"
    "SwapTotal:  8388604 kB\nSwapFree:             0 kB\nHugePages_Total:     512\nHugepagesize:  2048 kB\n"
    "Hugetlb:       1048576 kB\n",
    "/proc/swaps": "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/zram0 partition\t8388604\t\t4096\t\t100\n"
    "/swapfile file\t\t2097148\t\t512\t\t-2\n",
    "/proc/spl/kstat/zfs/arcstats": "9 1 0x01 147 39984 1 2\nname type data\nhits                            4    99\n"
    "size                            4    17179869184\n",
    "/proc/sys/vm/overcommit_memory": "1\n",
    "/proc/cmdline": "quiet iommu=pt\n",
    "/sys/class/dmi/id/product_name": "Example Board 9\n",
    "/sys/class/dmi/id/sys_vendor": "Example\n",
    "/sys/class/dmi/id/bios_version": "1.07\n",
    "/proc/self/cgroup": "0::/user.slice/session-2.scope\n",
    "/sys/fs/cgroup/user.slice/session-2.scope/memory.max": "max\n",
    "/sys/fs/cgroup/user.slice/session-2.scope/memory.current": "734003200\n",
    "/sys/fs/cgroup/user.slice/memory.max": "max\n",
}


def test_the_files_of_a_desktop_become_names_and_bytes():
    read = machine.machine(box(DESKTOP))
    assert (read.kernel.value, read.distribution.value) == (
        "6.14.0-37-generic",
        "Example OS 24.04 LTS",
    )
    assert read.cpu.value == "Example Ryzen 9 Processor"
    assert read.ram_total.value == 131072000 * KIB == 125 * GIB
    assert (read.ram_available.value, read.swap_total.value, read.huge_pages.value) == (
        65536000 * KIB,
        8388604 * KIB,
        GIB,
    )
    assert read.swap_free.ok and read.swap_free.value == 0
    assert (read.zram_used.value, read.zfs_cache.value) == (4 * MIB, 16 * GIB)
    assert (
        read.cmdline.value == "quiet iommu=pt"
        and machine.page_size(box(host=[{"page_size": 4096}])).value == 4096
    )
    assert read.ram_total.source == "/proc/meminfo" and read.ram_total.item == "proc/meminfo"


def test_no_limit_is_said_as_such_and_is_not_zero():
    read = machine.machine(box(DESKTOP))
    assert (read.cgroup_limit.status, read.cgroup_limit.why) == ("not_available", "no limit is set")
    assert read.cgroup_limit.source == "/sys/fs/cgroup/user.slice/session-2.scope/memory.max"
    assert read.cgroup_used.value == 700 * MIB
    assert read.cgroup_high.why == "not captured"


def test_a_container_under_v2_sees_its_own_group_at_the_root_of_the_mount():
    read = machine.machine(
        box(
            {
                "/proc/self/cgroup": "0::/\n",
                "/sys/fs/cgroup/memory.max": f"{72 * GIB}\n",
                "/sys/fs/cgroup/memory.high": "max\n",
                "/sys/fs/cgroup/memory.current": "1048576\n",
                "/sys/fs/cgroup/memory.peak": "2097152\n",
                "/sys/fs/cgroup/memory.swap.max": "0\n",
                "/sys/fs/cgroup/memory.events": "low 0\nhigh 0\nmax 812\noom 4\noom_kill 3\noom_group_kill 0\n",
            }
        )
    )
    assert (read.cgroup_limit.value, read.cgroup_used.value) == (72 * GIB, MIB)
    assert (read.cgroup_high.why, read.cgroup_oom_kills.value) == ("no limit is set", 3)
    assert read.cgroup_oom_kills.unit == "count"


def test_the_lowest_limit_of_all_groups_above_holds():
    read = machine.machine(
        box(
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/b/memory.max": f"{9 * GIB}\n",
                "/sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
                "/sys/fs/cgroup/memory.max": "max\n",
            }
        )
    )
    assert read.cgroup_limit.value == 4 * GIB
    assert read.cgroup_limit.source == "/sys/fs/cgroup/a/memory.max"


def test_v1_states_the_limit_of_groups_out_of_sight_and_a_huge_number_is_none():
    files = {
        "/proc/self/cgroup": "5:cpuset:/x\n4:memory,hugetlb:/docker/abc\n0::/\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "4096\n",
        "/sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
    }
    read = machine.machine(box(files))
    assert (read.cgroup_limit.why, read.cgroup_used.value) == ("no limit is set", 4096)
    assert read.cgroup_oom_kills.value == 7
    assert "v1" in read.cgroup_high.why
    stat = {"/sys/fs/cgroup/memory/memory.stat": f"cache 0\nhierarchical_memory_limit {16 * GIB}\n"}
    assert machine.machine(box({**files, **stat})).cgroup_limit.value == 16 * GIB


def test_a_mixed_system_is_read_by_the_hierarchy_that_has_the_memory_controller():
    read = machine.machine(
        box(
            {
                "/proc/self/cgroup": "4:memory:/job\n0::/job\n",
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{GIB}\n",
                "/sys/fs/cgroup/unified/job/memory.current": "1\n",
            }
        )
    )
    assert read.cgroup_limit.value == GIB


def test_refused_and_missing_files_say_so_in_the_unit_of_the_field():
    read = machine.machine(
        box({"/proc/meminfo": REFUSED, "/proc/version": MISSING, "/proc/self/cgroup": MISSING})
    )
    assert (read.ram_total.status, read.ram_total.unit) == ("not_allowed", "bytes")
    assert read.kernel.why == "no such file" and read.cgroup_limit.why == "no such file"
    assert (
        machine.machine(box({"/proc/meminfo": "MemTotal: 5 kB\n"})).ram_available.why
        == "no line MemAvailable in it"
    )


def test_a_refused_group_is_not_allowed_rather_than_without_a_limit():
    read = machine.machine(
        box({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": REFUSED})
    )
    assert read.cgroup_limit.status == "not_allowed"


def test_an_empty_bundle_gives_reasons_everywhere():
    read = machine.machine(box())
    for field in dataclasses.fields(read):
        assert getattr(read, field.name).show().startswith("not available: "), field.name


def tree(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def test_the_groups_files_are_found_from_the_process_up_and_nothing_outside(tmp_path):
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "4:memory:/job/../../etc\n0::/job/step\n",
            "/sys/fs/cgroup/job/step/memory.max": "1\n",
            "/sys/fs/cgroup/job/memory.max": "2\n",
            "/sys/fs/cgroup/job/cgroup.procs": "3\n",
            "/sys/fs/cgroup/memory/job/memory.stat": "4\n",
        },
    )
    assert machine.cgroup_files(root) == [
        "/sys/fs/cgroup/memory/job/memory.stat",
        "/sys/fs/cgroup/job/step/memory.max",
        "/sys/fs/cgroup/job/memory.max",
    ]
    assert machine.cgroup_files(tmp_path / "nothing") == []


def test_the_host_row_takes_the_kernel_of_the_tree_and_the_rest_from_here(tmp_path):
    root = tree(
        tmp_path,
        {
            "/proc/sys/kernel/osrelease": "6.8.0-55\n",
            "/proc/sys/kernel/random/boot_id": "0b0b-17\n",
        },
    )
    (row,) = machine.collect_host(root)
    assert (row["release"], row["boot_id"], row["version"]) == ("6.8.0-55", "0b0b-17", "")
    assert row["page_size"] >= 4096 and row["clock_ticks"] > 0 and row["now"].endswith("+00:00")
    assert machine.collect_host(Path("/"))[0]["release"]


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(DESKTOP)), st.text(max_size=120)), st.text(max_size=60)
)
def test_any_text_in_any_file_is_read_without_an_error(files, cgroup):
    read = machine.machine(
        box({**DESKTOP, **files, "/proc/self/cgroup": cgroup}, host=[{"page_size": cgroup}])
    )
    assert all(
        isinstance(getattr(read, field.name).show(), str) for field in dataclasses.fields(read)
    )
