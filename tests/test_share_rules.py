"""What each class of column lets through of a cell that a stranger filled in."""

import pytest

from helpers.ground.shapes import seen
from helpers.judge.evidence import CaseEvidence
from helpers.look import kernel_log
from helpers.look.gpus import Pool
from helpers.share import public, wording
from helpers.share.public_copy import PublicCopy
from helpers.tell import tables
from helpers.tell.shown import Shown
from helpers.tell.values import Column


def passes(rule, cell):
    return PublicCopy(CaseEvidence()).rules[rule](cell)


@pytest.mark.parametrize(
    ("rule", "cell"),
    [
        ("group", "render"),
        ("group", "video"),
        ("group", "vboxsf"),
        ("mode", "0660"),
        ("mode", "crw-rw----"),
        ("state", "D"),
    ],
)
def test_what_every_box_has_passes(rule, cell):
    assert passes(rule, cell) == cell


@pytest.mark.parametrize("name", ["cgroup used", "memlock soft", "commit limit", "ram total"])
def test_a_reading_keeps_its_name(name):
    assert passes("reading", name) == name


@pytest.mark.parametrize("name", ["kestrel used", "memlock", "stack"])
def test_a_name_that_no_reading_has_stays(name):
    assert not passes("reading", name)


@pytest.mark.parametrize("group", ["harbour.team.example", "sigma-pool-4", "render-31009", 30517])
def test_a_group_that_its_owner_made_is_numbered(group):
    assert passes("group", group) == "group-1"


@pytest.mark.parametrize(
    ("rule", "cell"),
    [
        ("mode", "0660+40512290"),
        ("mode", "40512290"),
        ("mode", "sigma"),
        ("state", "sigma-31009"),
        ("state", "SD"),
    ],
)
def test_what_no_kernel_prints_stays(rule, cell):
    assert passes(rule, cell) == ""


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (public.chip, "NVIDIA RTX 5000 Ada Generation"),
        (public.chip, "NVIDIA RTX PRO 5000 Blackwell Workstation Edition"),
        (public.chip, "NVIDIA A30-PCIE-24GB MIG 1g.6gb"),
        (public.chip, "Intel(R) Xeon(R) Gold 5318Y CPU @ 2.10GHz"),
        (public.chip, "11th Gen Intel(R) Core(TM) i5-11400F"),
        (public.chip, "AMD Ryzen Threadripper PRO 3955WX 16-Cores"),
        (public.chip, "AMD Ryzen 7 7800X3D 8-Core Processor"),
        (public.chip, "Apple M2 Ultra"),
        (public.version, "6.5.0-1018-azure"),
        (public.version, "6.8.0-1009-nvidia-lowlatency"),
        (public.version, "5.14.0-362.8.1.el9_3.x86_64"),
        (public.version, "6.1.0-18-cloud-amd64"),
        (public.version, "5.15.153.1-microsoft-standard-WSL2"),
        (public.version, "2.10.0.dev20251012+cu130"),
        (public.version, "2.8.0+rocm6.4"),
        (public.distribution, "Linux Mint 21.3"),
        (public.setting_value, "gfx90a;gfx1201"),
        (public.setting_value, "0,3"),
        (public.setting_value, "33554432"),
    ],
)
def test_names_of_models_releases_and_settings_stay_whole(rule, name):
    assert rule(name) == name


@pytest.mark.parametrize(
    ("rule", "text", "passing"),
    [
        (public.chip, "Max", ""),
        (public.chip, "Radeon 31009447", ""),
        (public.chip, "Radeon Plover 8060", ""),
        (public.version, "6.8.0-31009447-generic", "6.8.0"),
        (public.version, "31009447.1.2", ""),
        (public.version, "10.44.7.19", ""),
        (public.version, "2.9.0+cu31009447", "2.9.0"),
        (public.version, "2.9.0.dev31009447", "2.9.0"),
        (public.version, "2.9.0a0+git31009447", "2.9.0a0+git…"),
        (public.version, "2.9.0a0+gitdeadbee", "2.9.0a0+git…"),
        (public.version, "2.9.0a0+gitsigma", "2.9.0a0"),
        (public.version, "2.7.0a0+ecf3bae40a.nv25.02", "2.7.0a0+….nv25.02"),
        (public.distribution, "Ubuntu 31009447", "Ubuntu"),
        (public.source, "/sys/class/drm/card31009447/device/mem_info_vram_used", ""),
        (public.source, "/opt/rocm-31009447/.info/version", ""),
        (public.distribution, "Rocky Linux 9.31009447", "Rocky Linux"),
        (public.setting_value, "31009447", ""),
        (public.setting_value, "gfx90a;gfx31e7", ""),
        (public.setting_value, "max_split_size_mb:31009447", ""),
        (
            public.kernel_parameters,
            "ttm.pages_limit=31009447 ttm.pages_limit=4194304",
            "ttm.pages_limit=4194304",
        ),
    ],
)
def test_what_is_no_model_release_or_setting_of_anybody_stays(rule, text, passing):
    assert rule(text) == passing


@pytest.mark.parametrize(
    "cell",
    [
        "Delta",
        "Oracle",
        "Shell",
        "Max",
        "oracle",
        "v100-node-4",
        "render-node",
        "gfx90a-cluster",
        "0x51d2c9e4aa41f7b3",
        "KFD bank 31009447",
        "4090:44:61.2",
        "0000:03:gfx90a",
        "redis://sigma:pw@cache4.team:6379/0",
        "card@host",
        "004930123456",
    ],
)
def test_no_name_passes_as_a_word_of_a_view(cell):
    assert passes("word", cell) == ""


@pytest.mark.parametrize(
    "cell",
    [
        "sysfs VRAM",
        "KFD bank",
        "not allowed",
        "0000:0a:00.0",
        "effective",
        "16.50 GiB",
        "/dev/kfd",
        "ttm.pages_limit",
    ],
)
def test_the_workbooks_own_words_pass_in_a_view(cell):
    assert passes("word", cell) == cell


@pytest.mark.parametrize(
    "name", ["redis://sigma:pw@cache4.team:6379/0", "31009447", "rtx-5083", "a/b", "Oracle"]
)
def test_a_column_whose_heading_is_none_of_ours_is_left_out(name):
    view = Shown("x", [Column("layer", passes="word"), Column(name, passes="number")], [["GTT", 4]])
    passing = view.passing(PublicCopy(CaseEvidence()).rules)
    assert [column.name for column in passing.columns] == ["layer"]


@pytest.mark.parametrize("process", ["sigma-31009447", "oracle", "python3"])
def test_a_line_of_the_kernel_is_printed_anew_without_the_name_in_it(process):
    line = (
        f"Memory cgroup out of memory: Killed process 2718 ({process}) total-vm:9kB, anon-rss:7kB"
    )
    copy = PublicCopy(CaseEvidence()).of(seen(line, "text", "dmesg"))
    assert "kernel killed one of its processes" in copy.value
    assert process not in copy.value
    assert "2718" not in copy.value


def test_the_number_of_a_process_is_replaced_in_a_sentence_and_its_size_stays():
    copies = PublicCopy(CaseEvidence())
    assert copies.text("process 31009447 has 1.50 GiB") == "process-1 has 1.50 GiB"
    assert copies.text("this process 1.50 GiB") == "this process 1.50 GiB"


def test_an_address_that_no_card_has_is_on_no_figure():
    pool = Pool("31009447:01:00.0", "nvidia-smi", *3 * [seen(4 << 30, "bytes", "nvidia-smi")])
    assert PublicCopy(CaseEvidence()).of(pool).pci == ""


def test_the_pages_of_a_refused_request_are_on_the_page_whatever_their_number():
    line = "cma: cma_alloc: reserved: alloc failed, req-size: 310097 pages, ret: -12"
    copies = PublicCopy(CaseEvidence())
    events = copies.of(kernel_log.parse(line))
    (row,) = tables.events_table(events).passing(copies.rules).cells
    assert "requested pages 310,097" in str(row[-1])
    assert "reserved" not in str(row[-1])


@pytest.mark.parametrize(
    "signs", ["\u2708\u270c", "\u030c\u0308", "\u20a4\u20a9", "\ue003", "\u2020\u2021", "\u0664"]
)
@pytest.mark.parametrize("cell", ["{}", "/dev/kfd{}", "/dev/kfd {}", "4 {}", "4{}"])
@pytest.mark.parametrize("rule", ["word", "value", "mode", "state", "version", "chip", "source"])
def test_signs_that_are_no_words_are_names_all_the_same(rule, cell, signs):
    assert signs not in str(passes(rule, cell.format(signs)))


def test_a_list_of_sizes_has_sizes_alone():
    assert public.setting_value("roundup_power2_divisions:[256:4,>:8]")
    assert not public.setting_value("roundup_power2_divisions:[31009447:4,>:8]")


@pytest.mark.parametrize(
    "junk",
    ["21.04.1911", "21.04.11", "(310) 9447", "31009@2099.981", "310,44,97", "; : ; :", "- + = -"],
)
@pytest.mark.parametrize("cell", ["{}", "0x1002 {}", "0x1002\n{}", "docker {}", "/dev/kfd {}"])
@pytest.mark.parametrize(
    "rule", "word holder pci driver index native ends version chip setting value state mode".split()
)
def test_numbers_and_marks_without_a_word_of_ours_are_in_no_column_of_texts(rule, cell, junk):
    assert junk not in str(passes(rule, cell.format(junk)))


@pytest.mark.parametrize("field", ["4110", "amdgpu sigma", "0000:03:00.0 4110", "\\|/"])
@pytest.mark.parametrize("rule", sorted(public.GRAMMARS))
def test_a_cell_fits_its_grammar_as_a_whole(rule, field):
    assert passes(rule, f"{field} 31009447") == ""


def test_a_number_with_zeros_before_it_is_somebodys():
    assert passes("native", "0031009447") == ""
    assert passes("native", "16393924 pages") == "16393924 pages"
    assert not wording.is_ours("0031009447 bytes")


@pytest.mark.parametrize("cell", [["gannet"], {"gannet": 1}])
@pytest.mark.parametrize("rule", sorted(PublicCopy(CaseEvidence()).rules))
def test_a_cell_of_a_foreign_notebook_that_is_no_value_is_no_fault(rule, cell):
    assert "gannet" not in str(passes(rule, cell))


@pytest.mark.parametrize("marks", ["=+*=+*", "|/\\||/", "%%,,%%", "'\"`'\"`", "][}[[(]]["])
def test_a_row_of_marks_is_no_sentence(marks):
    assert not wording.is_ours(marks)
    assert not wording.is_ours(f"docker{marks}")
    assert not wording.is_ours(f"0x1002 {marks}")
