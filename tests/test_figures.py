"""Figures: everything readable, nothing on top of anything else, and what is not known never drawn as a zero."""

import base64
import io
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image
from tell_boxes import (
    APU,
    APU_PCI,
    BLIND,
    CARDS,
    EVENTS,
    HOST_POOLS,
    HOSTILE,
    at,
    event,
    pool,
    read,
)

from helpers.look.gpus import Gpu, Holder
from helpers.look.reading import GIB, MIB, not_allowed, not_available, seen
from helpers.tell import figures, sheet
from helpers.tell.holders import parts_of

ROOT = Path(__file__).resolve().parents[1]
GONE = not_available("no such file", "bytes", "/sys/x")
CROWD = replace(
    CARDS[0],
    holders=tuple(
        Holder(
            CARDS[0].pci,
            100 + i,
            f"trainer-{i}-with-a-name-that-is-far-too-long-for-its-line",
            0,
            "S",
            read((i + 1) * 256 * MIB, "fdinfo"),
            "fdinfo",
            "a host PID",
        )
        for i in range(9)
    ),
    blind_spots=("word " * 60,),
)
DRAWN = {
    "pools of an APU": lambda: figures.pools_figure([APU, *HOST_POOLS]),
    "pools of two cards": lambda: figures.pools_figure(CARDS),
    "pools nobody gives": lambda: figures.pools_figure([BLIND]),
    "no pools": lambda: figures.pools_figure([]),
    "a GPU without pools": lambda: figures.pools_figure([replace(APU, pools=())]),
    "holders of an APU": lambda: figures.holders_figure([APU]),
    "holders of two cards": lambda: figures.holders_figure(CARDS),
    "holders nobody sees": lambda: figures.holders_figure([BLIND]),
    "many holders": lambda: figures.holders_figure([CROWD]),
    "no GPU": lambda: figures.holders_figure([]),
    "events of two boots": lambda: figures.timeline_figure(EVENTS),
    "hostile events": lambda: figures.timeline_figure(
        [event(HOSTILE, at(1e9), 0, HOSTILE * 50, HOSTILE, 3, HOSTILE)]
    ),
    "no events": lambda: figures.timeline_figure([]),
}


def words(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def bars(figure):
    return [r for r in figure.findobj(Rectangle) if r is not figure.patch]


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN.keys())
def test_every_word_is_at_least_8_pt_lies_on_the_page_and_covers_no_other(draw):
    figure = draw()
    assert isinstance(figure, Figure)
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    page, places = figure.bbox, [text.get_window_extent() for text in texts]
    for text, place in zip(texts, places, strict=True):
        assert text.get_fontsize() >= 8
        assert (
            page.x0 <= place.x0
            and place.x1 <= page.x1 + 1
            and page.y0 <= place.y0
            and place.y1 <= page.y1
        ), text.get_text()
    for (text, one), (other, two) in itertools.combinations(zip(texts, places, strict=True), 2):
        across, down = (
            min(one.x1, two.x1) - max(one.x0, two.x0),
            min(one.y1, two.y1) - max(one.y0, two.y0),
        )
        assert across <= 1 or down <= 2, (text.get_text(), other.get_text())


def test_what_is_not_known_is_a_hatched_bar_with_its_reason():
    denied = not_allowed("denied", "bytes", "/dev/kfd")
    figure = figures.pools_figure(
        [
            pool("", "tool", GONE, GONE),
            pool("", "kfd", denied, GONE),
            pool("", "limit", read(4 * GIB, "/sys/y"), GONE),
        ]
    )
    said = words(figure)
    assert (
        "not available" in said
        and "not allowed" in said
        and "4.00 GiB, used: not available" in said
    )
    assert "not available: no such file" in said and "not allowed: denied" in said
    hatched = [bar for bar in bars(figure) if bar.get_hatch()]
    assert len(hatched) == 3 and all(bar.get_width() > 0.1 for bar in hatched)
    assert not [
        bar
        for bar in bars(figure)
        if bar.get_facecolor()[:3] == pytest.approx((0, 0.447, 0.698), abs=0.01)
    ]


def test_a_true_zero_is_drawn_as_zero_and_not_as_unknown():
    figure = figures.pools_figure(
        [pool("", "swap", read(8 * GIB, "/proc/meminfo"), read(0, "/proc/meminfo"))]
    )
    assert "0 GiB of 8.00 GiB used" in words(figure)
    assert not [bar for bar in bars(figure) if bar.get_hatch()]


def test_bars_share_one_scale():
    figure = figures.pools_figure(
        [
            pool("", "a", read(16 * GIB, "/a"), read(4 * GIB, "/a")),
            pool("", "b", read(8 * GIB, "/b"), read(1 * GIB, "/b")),
        ]
    )
    widths = [
        bar.get_width()
        for bar in bars(figure)
        if bar.get_height() * figure.get_figheight() == pytest.approx(0.17)
    ]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 1 / 4, 1 / 2, 1 / 16])


def test_a_small_amount_does_not_read_as_nothing():
    assert "5.00 KiB of 16.00 GiB used" in words(
        figures.pools_figure([pool("", "gtt", read(16 * GIB, "/a"), read(5 * 1024, "/a"))])
    )


@given(
    st.lists(st.integers(0, 64 * GIB), max_size=9), st.integers(0, 8 * GIB), st.integers(0, 8 * GIB)
)
@settings(max_examples=50)
def test_the_parts_of_a_bar_account_for_every_byte_of_the_pool(held, loose, free):
    used = sum(held) + loose
    gpu = replace(
        CARDS[0],
        integrated=False,
        unattributed=read(loose, "x"),
        holders=tuple(
            Holder("0000:03:00.0", i, "p", 0, "S", read(size, "x"), "x", "")
            for i, size in enumerate(held)
        ),
        pools=(pool("0000:03:00.0", "sysfs VRAM", read(used + free, "x"), read(used, "x")),),
    )
    assert sum(part.held for part in parts_of(gpu)[1]) == used + free


def test_memory_that_the_driver_keeps_for_itself_is_neither_used_nor_free():
    vram = replace(
        pool("0000:03:00.0", "nvidia-smi", read(24 * GIB, "x"), read(20 * GIB, "x")),
        free=read(3 * GIB, "x"),
    )
    gpu = replace(
        CARDS[0],
        pools=(vram,),
        unattributed=read(0, "x"),
        holders=(Holder("0000:03:00.0", 7, "python", 0, "S", read(20 * GIB, "x"), "x", ""),),
    )
    assert [(part.words, part.value) for part in parts_of(gpu)[1]] == [
        ("python (7)", "20.00 GiB"),
        ("held, by no process seen here", "0 GiB"),
        ("neither in use nor free", "1.00 GiB"),
        ("free", "3.00 GiB"),
    ]


def test_with_a_holder_that_was_not_measured_the_rest_is_in_use_by_whom_is_not_known():
    gpu = replace(
        CARDS[0],
        unattributed=GONE,
        holders=(Holder("0000:03:00.0", 7, "python", 0, "Z", GONE, "kfd", "a host PID"),),
    )
    whole, parts = parts_of(gpu)
    assert whole.layer == "sysfs VRAM"
    assert [part.words for part in parts] == [
        "python (7): zombie, a host PID",
        "held, by no process seen here",
        "in use, by whom is not known",
        "free",
    ]
    assert [part.held for part in parts[:2]] == [None, None] and parts[2].value == "18.31 GiB"


def test_an_integrated_gpu_is_measured_against_carve_out_and_ram_together():
    whole, parts = parts_of(APU)
    assert whole.layer == "sysfs VRAM and sysfs GTT" and parts[-1].value == "6.33 GiB"


def test_the_time_line_marks_the_first_of_the_three_worst_kinds_of_each_boot():
    said = " ".join(words(figures.timeline_figure(EVENTS)))
    assert (
        "1 h 07 min 58 s GPU reset: GPU reset begin!" in said
        and "OOM killer: python (5512): Out of memory" in said
    )
    assert "memory left at exit: " not in said and "GTT ready: " not in said
    assert "the log gives no seconds since boot" in said


def test_a_storm_of_lines_is_a_bar_as_long_as_it_lasted():
    figure = figures.timeline_figure(
        [
            event("boot", at(0.0), 0, "Linux"),
            event("vm_fault", at(100.0), 0, "page fault", "", None, "", 40, at(200.0)),
        ]
    )
    assert "41 lines" in words(figure)
    marks = sorted(
        bar.get_width() * sheet.WIDTH
        for bar in bars(figure)
        if bar.get_height() * figure.get_figheight() == pytest.approx(0.15)
    )
    assert marks[-1] > 1.4


@pytest.mark.parametrize(
    ("alt", "holds"),
    [
        (
            lambda: figures.pools_alt([APU, *HOST_POOLS]),
            ["sysfs GTT 9.10 GiB of 15.24 GiB used", "torch not allowed", "Host: RAM"],
        ),
        (
            lambda: figures.holders_alt(CARDS),
            ["held, by no process seen here 12.07 GiB", "not seen: holders outside"],
        ),
        (
            lambda: figures.timeline_alt(EVENTS),
            ["GPU page fault 12 lines", "boot before: OOM killer 1 line"],
        ),
        (lambda: figures.pools_alt([]), ["No memory pool was found."]),
        (lambda: figures.holders_alt([]), ["No GPU was found."]),
        (lambda: figures.timeline_alt([]), ["no GPU or out-of-memory event"]),
    ],
)
def test_each_figure_has_a_twin_in_words(alt, holds):
    assert [word for word in holds if word not in alt()] == []


@pytest.mark.filterwarnings("error")
@given(st.text(alphabet=st.characters(), max_size=40))
@settings(max_examples=25, deadline=None)
def test_no_name_from_a_box_stops_or_warns_a_figure(name):
    gpu = Gpu(
        APU_PCI,
        name,
        seen(name or "x", "text", "x"),
        name,
        None,
        {},
        (pool(APU_PCI, name, read(GIB, name), GONE),),
        (Holder(APU_PCI, 1, name, None, name, read(MIB, name), name, name),),
        GONE,
        (name,),
    )
    for figure in (figures.pools_figure([gpu]), figures.holders_figure([gpu])):
        figure.canvas.draw()


def test_a_dollar_sign_is_a_dollar_sign():
    assert not any(
        text.get_parse_math()
        for text in figures.holders_figure([BLIND]).findobj(Text)
        if text.get_text()
    )


def test_a_png_is_twice_its_size_on_screen_on_white_paper_small_and_the_same_each_time():
    raw, width, height = sheet.png(figures.pools_figure([APU, *HOST_POOLS]))
    again, _, _ = sheet.png(figures.pools_figure([APU, *HOST_POOLS]))
    assert raw == again and len(raw) < 80_000
    picture = Image.open(io.BytesIO(raw))
    assert picture.size[0] // 2 == width and picture.size[1] // 2 == height
    assert picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)


def test_in_a_notebook_a_figure_is_a_picture_with_its_words(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", lambda data, **rest: shown.append((data, rest)))
    figures.show(figures.holders_figure([APU]), "who holds it")
    [(data, rest)] = shown
    assert (
        base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
        and data["text/plain"] == "who holds it"
    )
    assert rest["raw"] and rest["metadata"]["image/png"]["alt"] == "who holds it"
    assert rest["metadata"]["image/png"]["width"] == round(sheet.WIDTH * 96)


def test_outside_a_notebook_the_words_are_printed(capsys):
    figures.show(figures.holders_figure([APU]), "who holds it")
    assert capsys.readouterr().out == "who holds it\n"


def test_drawing_imports_neither_pyplot_nor_a_window_system():
    code = (
        "import sys; from helpers.tell import figures, sheet; sheet.png(figures.pools_figure([]));"
        "print([m for m in ('matplotlib.pyplot', 'tkinter') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"


def test_a_log_that_was_not_read_is_not_called_quiet():
    log = not_allowed("kernel.dmesg_restrict", "text", "dmesg")
    said = " ".join(words(figures.timeline_figure([], log)))
    assert "was not read" in said and "dmesg_restrict" in said
    assert "proves nothing" in figures.timeline_alt([], log)
    assert "no GPU or out-of-memory event" in figures.timeline_alt(
        [], seen("dmesg", "text", "dmesg")
    )
