"""Module parameters. Samples: inbox ttm, DKMS amdttm beside ttm, a built-in ttm, /proc/modules and lsmod, modprobe.d of several
folders, a command line, a stale initramfs."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import MISSING, REFUSED, box, folder

from helpers.look import ttm

GIB, MIB = 1 << 30, 1 << 20
HOST = [{"page_size": 4096}]
TTM = "/sys/module/ttm/parameters"
AMDTTM = "/sys/module/amdttm/parameters"
AMDGPU = "/sys/module/amdgpu/parameters"
INBOX = (
    "amdgpu 20226048 31 - Live 0x0000000000000000\namdxcp 12288 1 amdgpu, Live 0x0000000000000000\n"
    "drm_ttm_helper 16384 2 amdgpu,qxl, Live 0x0\nttm 110592 2 amdgpu,drm_ttm_helper, Live 0x0\n"
)
DKMS = (
    "amdgpu 21000000 12 - Live 0x0 (OE)\namdttm 131072 2 amdgpu,amddrm_ttm_helper, Live 0x0 (OE)\n"
    "ttm 118784 1 drm_ttm_helper, Live 0x0\n"
)
LSMOD = (
    "Module                  Size  Used by\namdttm                131072  2 amdgpu,amddrm_ttm_helper\n"
    "video                  77824  0\nttm                   118784  1 drm_ttm_helper\n"
)


def parameter(made, module, name):
    return next(p for p in ttm.parameters(made) if (p.module, p.name) == (module, name))


@pytest.mark.parametrize(
    ("modules", "expected"), [(INBOX, "ttm"), (DKMS, "amdttm"), (LSMOD, "amdttm")]
)
def test_the_module_that_lists_amdgpu_as_its_user_is_the_one_that_counts(modules, expected):
    reading = ttm.ttm_module(
        box({"/proc/modules": modules, f"{TTM}/pages_limit": "1\n", f"{AMDTTM}/pages_limit": "2\n"})
    )
    assert (reading.value, reading.source) == (expected, "/proc/modules")


def test_a_built_in_ttm_is_known_by_its_folder_and_two_folders_alone_decide_nothing():
    assert (
        ttm.ttm_module(
            box({"/proc/modules": "nvme 65536 3 - Live 0x0\n", f"{TTM}/pages_limit": "5\n"})
        ).value
        == "ttm"
    )
    both = ttm.ttm_module(
        box({"/proc/modules": REFUSED, f"{TTM}/pages_limit": "5\n", f"{AMDTTM}/pages_limit": "5\n"})
    )
    assert both.why == "amdgpu uses none of amdttm, ttm by /proc/modules"
    assert (
        ttm.ttm_module(box({"/proc/modules": LSMOD.replace("amdgpu", "radeon")})).why
        == "no TTM module is loaded"
    )


def test_lsmod_and_proc_modules_read_alike():
    assert ttm.parse_modules(LSMOD) == {
        "amdttm": ("amdgpu", "amddrm_ttm_helper"),
        "video": (),
        "ttm": ("drm_ttm_helper",),
    }
    assert ttm.parse_modules(DKMS)["amdttm"] == ("amdgpu", "amddrm_ttm_helper")
    assert ttm.parse_modules("drm-kms-helper 1 -1 [permanent], Live 0x0\n") == {
        "drm_kms_helper": ()
    }


def test_live_values_carry_their_unit_and_become_bytes():
    made = box(
        {
            **folder(TTM, pages_limit="25165824\n", page_pool_size="16777216\n"),
            **folder(
                AMDGPU,
                gttsize="122880\n",
                vm_size="-1\n",
                vramlimit=REFUSED,
                no_system_mem_limit="N\n",
            ),
        },
        host=HOST,
    )
    limit = parameter(made, "ttm", "pages_limit")
    assert (limit.unit, limit.live.value, limit.live.unit, limit.live_bytes.value) == (
        "pages",
        25165824,
        "pages",
        96 * GIB,
    )
    assert parameter(made, "amdgpu", "gttsize").live_bytes.value == 120 * GIB
    assert parameter(made, "amdgpu", "vm_size").live_bytes.why == "-1: the driver chooses"
    assert parameter(made, "amdgpu", "vramlimit").live.status == "not_allowed"
    assert parameter(made, "amdgpu", "no_system_mem_limit").live.value == "N"


def test_pages_of_16_kib_and_a_page_size_nobody_captured():
    files = {f"{TTM}/pages_limit": "1048576\n"}
    assert (
        parameter(box(files, host=[{"page_size": 16384}]), "ttm", "pages_limit").live_bytes.value
        == 16 * GIB
    )
    assert "page size" in parameter(box(files), "ttm", "pages_limit").live_bytes.why


def test_vm_size_is_in_gib():
    made = box({f"{AMDGPU}/vm_size": "131072\n"})
    assert parameter(made, "amdgpu", "vm_size").live_bytes.value == 131072 * GIB


def test_modprobe_lines_with_comments_continuations_hyphens_and_quotes():
    text = (
        "# options ttm pages_limit=1\n\noptions ttm pages_limit=25165824 \\\n    page_pool_size=2\n"
        "options amd-gpu x=1\n  options amdgpu gttsize=122880 no-system-mem-limit # ninety gigabytes\n"
        'blacklist nouveau\noptions ttm\ninstall ttm /bin/true\noptions amdgpu dpm="1 2" \\'
    )
    assert ttm.parse_modprobe(text) == [
        (3, "ttm", "pages_limit", "25165824"),
        (3, "ttm", "page_pool_size", "2"),
        (5, "amd_gpu", "x", "1"),
        (6, "amdgpu", "gttsize", "122880"),
        (6, "amdgpu", "no_system_mem_limit", "1"),
        (10, "amdgpu", "dpm", "1 2"),
    ]


def test_a_command_line_stops_at_the_words_for_init():
    text = (
        "BOOT_IMAGE=/vmlinuz-6.14 root=UUID=0 ro quiet ttm.pages_limit=31457280 amdgpu.gpu-recovery=0 "
        'foo.dyndbg="file a.c +p" amdgpu.mes -- amdgpu.gttsize=5\n'
    )
    assert ttm.parse_cmdline(text) == [
        ("ttm", "pages_limit", "31457280"),
        ("amdgpu", "gpu_recovery", "0"),
        ("foo", "dyndbg", "file a.c +p"),
        ("amdgpu", "mes", "1"),
    ]


def test_files_take_effect_by_name_across_folders_and_the_command_line_last():
    made = box(
        {
            "/etc/modprobe.d/ttm.conf": "options ttm pages_limit=300\n",
            "/etc/modprobe.d/10-gpu.conf": "options ttm pages_limit=100\n",
            "/usr/lib/modprobe.d/ttm.conf": "options ttm pages_limit=999\n",
            "/lib/modprobe.d/zz-vendor.conf": "# vendor\noptions ttm pages_limit=400\n",
            "/proc/cmdline": "quiet ttm.pages_limit=500\n",
            f"{TTM}/pages_limit": "500\n",
        },
        host=HOST,
    )
    limit = parameter(made, "ttm", "pages_limit")
    assert [(s.value, s.source, s.line) for s in limit.found] == [
        ("100", "/etc/modprobe.d/10-gpu.conf", 1),
        ("300", "/etc/modprobe.d/ttm.conf", 1),
        ("400", "/lib/modprobe.d/zz-vendor.conf", 2),
        ("500", "/proc/cmdline", 1),
    ]
    assert limit.wanted.value == "500" and limit.wanted.source == "/proc/cmdline"
    assert limit.pending is None


def test_a_setting_that_is_not_live_is_pending_and_spelling_of_a_value_does_not_matter():
    made = box(
        {
            "/etc/modprobe.d/ttm.conf": "options ttm pages_limit=25165824\n",
            f"{TTM}/pages_limit": "16400000\n",
            "/etc/modprobe.d/amdgpu.conf": "options amdgpu no_system_mem_limit=1 gpu_recovery=0x1 gttsize=5\n",
            **folder(AMDGPU, no_system_mem_limit="Y\n", gpu_recovery="1\n"),
        },
        host=HOST,
    )
    assert parameter(made, "ttm", "pages_limit").pending.value == "25165824"
    assert parameter(made, "amdgpu", "no_system_mem_limit").pending is None
    assert parameter(made, "amdgpu", "gpu_recovery").pending is None
    # Not live because the module has no such file: nothing to compare with, so nothing is claimed.
    assert parameter(made, "amdgpu", "gttsize").pending is None
    assert not parameter(made, "amdgpu", "gttsize").live.ok


def test_a_setting_for_a_module_that_is_not_there_is_listed_with_no_live_value():
    made = box(
        {"/proc/cmdline": "amdttm.pages_limit=31457280\n", f"{TTM}/pages_limit": "16400000\n"},
        host=HOST,
    )
    assert parameter(made, "amdttm", "pages_limit").live.status == "not_available"
    assert parameter(made, "amdttm", "pages_limit").found[-1].value == "31457280"


def test_misspelt_parameters_are_found_with_what_was_meant():
    made = box(
        {
            "/proc/cmdline": "amdgpu.gtt_size=122880 amdgpu.gttsize=122880 ttm.page_limit=5 amdttm.pages_limit=1\n",
            **folder(AMDGPU, gttsize="-1\n", gpu_recovery="-1\n"),
            f"{TTM}/pages_limit": "16400000\n",
        }
    )
    assert [(u.setting.module, u.setting.name, u.meant) for u in ttm.unknown(made)] == [
        ("amdgpu", "gtt_size", "gttsize"),
        ("ttm", "page_limit", ""),
    ]


def test_boot_images_and_configuration_are_listed_with_their_times(tmp_path):
    boot, etc = tmp_path / "boot", tmp_path / "etc" / "modprobe.d"
    boot.mkdir()
    etc.mkdir(parents=True)
    for path, text, mtime in (
        (boot / "initrd.img-6.14.0-37", "x" * 9, 1700000000),
        (boot / "vmlinuz-6.14.0-37", "k", 5),
        (etc / "ttm.conf", "options ttm pages_limit=5\n", 1700000500),
    ):
        path.write_text(text)
        os.utime(path, (mtime, mtime))
    (boot / "initrd.img").symlink_to("initrd.img-6.14.0-37")
    times = ttm.file_times(box(initramfs=ttm.collect_initramfs(tmp_path)))
    assert [(t.path, t.mtime_s, t.is_image) for t in times] == [
        ("/boot/initrd.img-6.14.0-37", 1700000000, True),
        ("/etc/modprobe.d/ttm.conf", 1700000500, False),
    ]


def test_nothing_captured_gives_nothing_and_no_error():
    made = box({"/proc/cmdline": MISSING, f"{TTM}/*": MISSING})
    assert ttm.parameters(made) == () and ttm.unknown(made) == () and ttm.settings(made) == ((), ())
    assert (
        ttm.file_times(
            box(initramfs=[{"path": 3, "mtime": 1}, {"path": "/boot/x", "mtime": "late"}, {}])
        )
        == ()
    )


@settings(max_examples=50, deadline=None)
@given(
    st.text(alphabet=st.sampled_from('options tm_-=."\\\n#1gpu/ ') | st.characters(), max_size=200)
)
def test_any_text_is_read_without_an_error(text):
    assert all(line <= text.count("\n") + len(text) + 1 for line, *_ in ttm.parse_modprobe(text))
    made = box(
        {
            "/etc/modprobe.d/a.conf": text,
            "/proc/cmdline": text,
            "/proc/modules": text,
            f"{TTM}/pages_limit": text,
        }
    )
    assert isinstance(ttm.parameters(made), tuple) and isinstance(ttm.unknown(made), tuple)
    assert ttm.ttm_module(made).show()
    assert ttm.parse_cmdline(text) is not None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ttm", "amdgpu"]),
            st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
            st.integers(-1, 10**9),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_what_was_written_is_read_back_from_a_file_and_from_a_command_line(
    given_settings, continued
):
    gap = " \\\n  " if continued else " "
    conf = "\n".join(
        f"options{gap}{module}{gap}{name}={value}" for module, name, value in given_settings
    )
    expected = [(module, name, str(value)) for module, name, value in given_settings]
    assert [found[1:] for found in ttm.parse_modprobe(conf)] == expected
    assert (
        ttm.parse_cmdline(
            " ".join(f"{module}.{name}={value}" for module, name, value in given_settings)
        )
        == expected
    )
