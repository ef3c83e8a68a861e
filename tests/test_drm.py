"""DRM clients: who holds what, however many descriptors and processes share it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import box

from helpers.look import drm

MIB = 1 << 20
FORM = "drm-driver: amdgpu\ndrm-pdev: 0000:0{}:00.0\ndrm-client-id: {}\ndrm-memory-vram: {} KiB\n"


def row(pid, fd, fdinfo):
    return {"pid": pid, "fd": fd, "target": "/dev/dri/renderD128", "fdinfo": fdinfo, "status": "ok"}


def test_a_client_without_device_memory_says_why():
    texts = (
        "drm-driver: nvidia-drm\ndrm-client-id: 5\ndrm-pdev: 0000:02:00.0\n",
        "drm-driver: msm\ndrm-client-id: 2\ndrm-total-memory: 9 MiB\ndrm-total-cycles-rcs: 7\n",
    )
    clients = drm.clients(box(device_files=[row(1, fd, text) for fd, text in enumerate(texts)]))
    whys = [client.region("vram").why for client in clients]
    assert whys == ["no region vram", "the driver prints no memory for this client"]


def test_resident_comes_before_memory_before_total():
    info = drm.parse_fdinfo(
        "drm-driver:\tamdgpu\ndrm-memory-vram:\t9 MiB\ndrm-total-vram:\t12 MiB\ndrm-resident-vram : 8192 KiB\n"
        "drm-total-gtt:\t7\ndrm-memory-gtt:\t6 KiB\ndrm-shared-gtt:\t5 KiB\ndrm-total-cpu:\tmany\n"
    )
    assert info.regions == {"vram": 8 * MIB, "gtt": 6 << 10}


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
