"""The recorded boxes keep what the cases state to the byte, mark what was filled in, and name no person."""

from pathlib import Path

import pytest

from helpers.look import drm, framework, kfd, machine, nvidia, rocm, ttm
from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED, open_box, recorded_names

STAGES = [f"strix-halo-{stage}" for stage in ("1-found", "2-vm-size", "3-gttsize", "4-ttm")]
NAMES = ["cpu-only", "cuda-24gb-tuning", "cuda-healthy", "rx7900xt-container", *STAGES]
GIB = 1 << 30
MIB = 1 << 20


def test_the_boxes_of_the_case_studies_are_there():
    assert recorded_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_was_filled_in_is_marked(name):
    bundle = open_box(name)
    stated = [item for item in bundle.items if not item.constructed]
    if bundle.kind == "constructed":
        assert not stated
    else:
        assert stated and any(item.constructed for item in bundle.items)


@pytest.mark.parametrize("name", NAMES)
def test_a_box_names_no_person_no_host_and_no_serial(name):
    text = "\n".join(content.decode() for content in open_box(name).contents.values())
    for word in ("/home/", "hostname", "serial", "@"):
        assert word not in text.lower()


def test_two_full_cards_with_no_holder_in_the_container():
    bundle = open_box("rx7900xt-container")
    first, second = drm.cards(bundle)
    assert f"{first.vram_total.value / 1e9:.2f}" == f"{first.vram_used.value / 1e9:.2f}" == "21.46"
    assert first.vram_total.show() == "19.98 GiB"
    assert f"{second.vram_used.value / 1e9:.2f}" == "21.21"
    assert f"{second.vram_used.value / second.vram_total.value:.3f}" == "0.988"
    assert "96.00 MiB" in bundle.read("message").text and not bundle.read("message").constructed
    assert drm.clients(bundle) == ()


@pytest.mark.parametrize(
    ("name", "pages", "gtt_gib", "vm_size", "torch_gib"),
    [
        ("strix-halo-1-found", 16393924, "62.54", -1, "62.54"),
        ("strix-halo-2-vm-size", 16393924, "62.54", 131072, "62.54"),
        ("strix-halo-3-gttsize", 16393924, "120.00", 131072, "62.54"),
        ("strix-halo-4-ttm", 31457280, "120.00", 131072, "120.00"),
    ],
)
def test_the_four_stages_of_the_strix_halo_box(name, pages, gtt_gib, vm_size, torch_gib):
    bundle = open_box(name)
    live = {(p.module, p.name): p.live.value for p in ttm.parameters(bundle)}
    assert live["ttm", "pages_limit"] == pages and live["amdgpu", "vm_size"] == vm_size
    (card,) = drm.cards(bundle)
    node = next(node for node in kfd.nodes(bundle) if node.gfx)
    gpu = next(agent for agent in rocm.agents(bundle) if agent.kind == "gpu")
    (device,) = framework.framework(bundle).devices
    assert card.vram_total.value == 536870912
    assert card.gtt_total.show() == f"{gtt_gib} GiB"
    assert node.gfx == "gfx1151" and node.framebuffer.value == gpu.memory.value == pages * 4096
    assert device.total.show() == f"{torch_gib} GiB" and device.integrated is True
    assert machine.machine(bundle).ram_total.value == 131151392 * 1024


def test_the_tuning_boxs_card_adds_up():
    bundle = open_box("cuda-24gb-tuning")
    (gpu,) = nvidia.gpus(bundle)
    xorg, job = nvidia.holders(bundle)
    capacity = gpu.total.value - gpu.reserved.value
    assert f"{capacity / GIB:.2f}" == "23.56" and f"{job.memory.value / GIB:.2f}" == "22.88"
    assert gpu.free.value == 34 * MIB and xorg.memory.value + job.memory.value == gpu.used.value
    assert f"{xorg.memory.value / GIB:.2f}" == "0.65"
    item = next(item for item in bundle.items if item.source == "nvidia-smi -q -x")
    assert item.constructed and "one process" in item.why


def test_an_unknown_name_is_answered_with_the_names_there_are():
    expected = "expected live, a bundle's path, or one of cpu-only, .*strix-halo-4-ttm"
    with pytest.raises(BundleError, match=expected):
        open_box("strix-halo-5")


def test_a_text_too_long_for_a_file_name_is_answered_as_an_unknown_name_is():
    with pytest.raises(BundleError, match=r"^box 'y{39}…': expected live, a bundle's path"):
        open_box("y" * 10_000)


def test_a_bundle_is_opened_by_its_path(tmp_path):
    assert open_box(str(Path(RECORDED) / "cpu-only")).box == "cpu-only"
