"""DRM clients: who holds what, under every driver's name for its memory, however many descriptors and processes share it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import box

from helpers.look import drm

MIB = 1 << 20
FORM = "drm-driver: amdgpu\ndrm-pdev: 0000:0{}:00.0\ndrm-client-id: {}\ndrm-memory-vram: {} KiB\n"


def row(pid, fd, fdinfo):
    return {"pid": pid, "fd": fd, "target": "/dev/dri/renderD128", "fdinfo": fdinfo, "status": "ok"}


def test_device_memory_is_found_under_every_drivers_name_for_it():
    texts = (
        "drm-driver: xe\ndrm-client-id: 4\ndrm-pdev: 0000:04:00.0\ndrm-total-system: 0\ndrm-total-vram0: 51200 KiB\n"
        "drm-resident-vram0: 40 MiB\ndrm-resident-vram1: 8 MiB\ndrm-total-cycles-rcs: 7655183225\n",
        "drm-driver: i915\ndrm-client-id: 6\ndrm-pdev: 0000:03:00.0\ndrm-total-system0: 312 KiB\n"
        "drm-total-local0: 10 MiB\ndrm-resident-stolen-local0: 1 MiB\n",
        "drm-driver: nvidia-drm\ndrm-client-id: 5\ndrm-pdev: 0000:02:00.0\n",
        "drm-driver: msm\ndrm-client-id: 2\ndrm-total-memory: 9 MiB\ndrm-resident-memory: 3 MiB\n",
    )
    clients = drm.clients(box(device_files=[row(1, fd, text) for fd, text in enumerate(texts)]))
    msm, nvidia, i915, xe = (client.region("vram") for client in clients)
    assert (xe.value, i915.value) == (48 * MIB, 10 * MIB)
    assert nvidia.why == "the driver prints no memory for this client"
    assert msm.why == "no region vram"


def test_resident_comes_before_memory_before_total_and_the_first_words_of_amdgpu_are_read():
    info = drm.parse_fdinfo(
        "drm-driver:\tamdgpu\ndrm-memory-vram:\t9 MiB\ndrm-total-vram:\t12 MiB\ndrm-resident-vram : 8192 KiB\n"
        "drm-total-gtt:\t7\ndrm-memory-gtt:\t6 KiB\ndrm-shared-gtt:\t5 KiB\ndrm-total-cpu:\tmany\n"
    )
    assert info.regions == {"vram": 8 * MIB, "gtt": 6 << 10}
    early = drm.parse_fdinfo("pdev:\t0000:03:00.0\npasid:\t7\nvram mem:\t12 kB\ngtt mem:\t3 kB\n")
    assert (early.driver, early.pci, early.pasid) == ("amdgpu", "0000:03:00.0", "7")
    assert early.regions == {"vram": 12 << 10, "gtt": 3 << 10}


def naive_vram(rows):
    """The slow twin: try every pair of rows, keep one of each client, add up."""
    kept = []
    for one in rows:
        info = drm.parse_fdinfo(one["fdinfo"])
        held = info.regions.get("vram", 0)
        twins = [k for k in kept if k[0] == info.pci and k[1] == info.client_id]
        if not twins:
            kept.append([info.pci, info.client_id, held, {one["pid"]}])
            continue
        twins[0][2] = max(twins[0][2], held)
        twins[0][3].add(one["pid"])
    return sorted((pci, held, tuple(sorted(pids))) for pci, _, held, pids in kept)


SIGHTING = st.tuples(*(st.integers(*ends) for ends in ((1, 6), (3, 5), (1, 4), (0, 2), (0, 10**6))))


@settings(max_examples=50, deadline=None)
@given(st.lists(SIGHTING, max_size=12), st.randoms())
def test_clients_agree_with_the_slow_twin_in_any_order_of_rows(sightings, shuffler):
    rows = [
        row(pid, fd, FORM.format(card, client, kib)) for pid, fd, client, card, kib in sightings
    ]

    def clients():
        found = drm.clients(box(device_files=rows))
        return [(client.pci, client.region("vram").value, client.pids) for client in found]

    found = clients()
    assert sorted(found) == naive_vram(rows)
    shuffler.shuffle(rows)
    assert clients() == found
