"""Figures: everything readable, nothing on top of anything else, and what is not known never drawn as a zero."""

import base64
import io
import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from page_audit import contrast
from PIL import Image
from tell_boxes import (
    APU,
    APU_PCI,
    BLIND,
    CARDS,
    HOST_POOLS,
    HOSTILE,
    at,
    event,
    pool,
    read,
)

from helpers.ground.shapes import not_allowed, not_available, seen
from helpers.ground.units import GIB
from helpers.look.gpus import Gpu
from helpers.tell import figures, sheet, tables, word_width
from helpers.tell.display import display
from helpers.tell.figure_style import ALARM, DARK, INK, MUTED, SCHEME, SERIES
from helpers.tell.shown import Shown
from helpers.tell.svg import clean_svg

ROOT = Path(__file__).resolve().parents[1]
GONE = not_available("no such file", "bytes", "/sys/x")
STRANGE = event(HOSTILE, at(1e9), 0, HOSTILE * 50, HOSTILE, 3, HOSTILE)
APU_POOLS = ["sysfs GTT total 15.24 GiB, used 9.10 GiB", "torch total not allowed", "host RAM"]
NOTHING_LOGGED = "no GPU or out-of-memory event"
DRAWN = {
    "pools of an APU": (figures.pools, [APU, *HOST_POOLS], APU_POOLS),
    "pools of two cards": (figures.pools, CARDS, ["0000:0a:00.0 sysfs VRAM"]),
    "pools nobody gives": (figures.pools, [BLIND], ["nvidia-smi total not available"]),
}


WORDS = (INK, MUTED, ALARM)


def words(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def bars(figure, height=None):
    """The boxes of a figure, or those of a height in inches."""
    found = [r for r in figure.findobj(Rectangle) if r is not figure.patch]
    tall = figure.get_figheight()
    return [r for r in found if height is None or r.get_height() * tall == pytest.approx(height)]


def laid_out(figure):
    """Every word is at least 8 pt, lies on the page and covers no other."""
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    with rc_context(fname=sheet.STYLE):
        page = figure.bbox
        places = [text.get_window_extent() for text in texts]
    for text, place in zip(texts, places, strict=True):
        assert text.get_fontsize() >= 8
        across = page.x0 <= place.x0 and place.x1 <= page.x1 + 1
        assert across and page.y0 <= place.y0 and place.y1 <= page.y1, text.get_text()
    for (text, one), (other, two) in itertools.combinations(zip(texts, places, strict=True), 2):
        across = min(one.x1, two.x1) - max(one.x0, two.x0)
        down = min(one.y1, two.y1) - max(one.y0, two.y0)
        assert across <= 1 or down <= 2, (text.get_text(), other.get_text())


@pytest.mark.parametrize("name", DRAWN)
def test_every_word_is_at_least_8_pt_lies_on_the_page_covers_no_other_and_is_said(name):
    draw, items, said = DRAWN[name]
    view = draw(items)
    assert isinstance(view, Shown) and [word for word in said if word not in view.alt] == []
    figure = view.draw()
    assert isinstance(figure, Figure)
    laid_out(figure)


def test_what_is_not_known_is_a_short_hatched_bar_with_its_reason():
    denied = not_allowed("denied", "bytes", "/dev/kfd")
    limit = read(4 * GIB, "/sys/y")
    rows = [
        pool("", "tool", GONE, GONE),
        pool("", "kfd", denied, GONE),
        pool("", "limit", limit, GONE),
    ]
    figure = figures.pools(rows).draw()
    said = {"not available", "not allowed", "4.00 GiB", "used not available: no such file"}
    assert said | {"not available: no such file", "not allowed: denied"} <= set(words(figure))
    hatched = [bar for bar in bars(figure) if bar.get_hatch()]
    wide = [bar.get_width() * sheet.WIDTH for bar in hatched]
    assert wide == pytest.approx([sheet.STUB] * 3)
    filled = [bar.get_facecolor()[:3] for bar in bars(figure)]
    assert not [face for face in filled if face == pytest.approx((0, 0.447, 0.698), abs=0.01)]


def test_a_true_zero_is_drawn_as_zero_and_not_as_unknown():
    swap = pool("", "swap", read(8 * GIB, "/proc/meminfo"), read(0, "/proc/meminfo"))
    figure = figures.pools([swap]).draw()
    assert "0 B of 8.00 GiB used" in words(figure)
    assert not [bar for bar in bars(figure) if bar.get_hatch()]


def test_bars_share_one_scale():
    sizes = (("a", 16, 4), ("b", 8, 1))
    pools = [pool("", name, read(a * GIB, "/a"), read(b * GIB, "/a")) for name, a, b in sizes]
    widths = [bar.get_width() for bar in bars(figures.pools(pools).draw(), sheet.BAR)]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 1 / 4, 1 / 2, 1 / 16])


def test_a_small_amount_does_not_read_as_nothing():
    small = pool("", "gtt", read(16 * GIB, "/a"), read(5 * 1024, "/a"))
    assert "5.00 KiB of 16.00 GiB used" in words(figures.pools([small]).draw())


def test_a_log_that_was_not_read_is_not_called_quiet():
    view = tables.events_table([], not_allowed("kernel.dmesg_restrict", "text", "dmesg"))
    assert all(w in view.alt for w in ("was not read", "dmesg_restrict", "proves nothing"))
    quiet = tables.events_table([], seen("dmesg", "text", "dmesg"))
    assert NOTHING_LOGGED in quiet.alt
    boot = tables.events_table([event("boot", at(0.0), 0, "Linux")])
    assert boot.says == "No error of a GPU or of memory"


def test_of_nothing_there_is_no_figure():
    for view in (figures.pools([]), figures.pools([replace(APU, pools=())])):
        assert view.draw is None and "No memory pool was found." in (view.alt, view.nothing)
        assert "No memory pool was found." in view._repr_html_()


@pytest.mark.filterwarnings("error")
@given(st.text(alphabet=st.characters(), max_size=40))
@settings(max_examples=12, deadline=None)
def test_no_name_from_a_box_stops_or_warns_a_figure(name):
    pools = (pool(APU_PCI, name, read(GIB, name), GONE),)
    about = (APU_PCI, name, seen(name or "x", "text", "x"), name, None, {})
    gpu = Gpu(*about, pools, (), GONE, (name,))
    figures.pools([gpu]).draw().canvas.draw()


def test_a_dollar_sign_is_a_dollar_sign():
    texts = figures.pools([BLIND]).draw().findobj(Text)
    assert not any(text.get_parse_math() for text in texts if text.get_text())


def test_words_that_do_not_fit_are_cut_or_wrapped():
    assert word_width.fit("short", 3, sheet.BODY) == "short"
    long = word_width.fit("w" * 200, 1.0, sheet.BODY)
    assert long.endswith("…") and 0.9 < word_width.inches(long, sheet.BODY) <= 1.0
    assert word_width.wrap("one two", 9, sheet.BODY) == ["one two"]
    page = sheet.FigurePage()
    page.beside("word " * 60, 1.0)
    *lines, last = words(page.done())
    assert len(lines) == 3 and last == "…"
    assert all(word_width.inches(line, sheet.BODY) <= sheet.WIDTH - 1.0 for line in lines)
    assert [line[-1] for line in word_width.wrap("a " + "w" * 200, 1.0, sheet.BODY)] == ["a", "…"]


def test_a_png_is_twice_its_size_on_screen_on_white_paper_small_and_the_same_each_time():
    pictures = [figures.pools([APU, *HOST_POOLS]).draw().picture() for _ in range(2)]
    (raw, width, height), _ = pictures
    assert pictures[0] == pictures[1] and len(raw) < 80_000
    picture = Image.open(io.BytesIO(raw))
    assert picture.size[0] // 2 == width and picture.size[1] // 2 == height
    assert picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)


def test_in_a_notebook_a_figure_is_a_picture_with_its_words(monkeypatch):
    shown = []
    view = figures.pools([APU])
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", shown.append)
    display(view)
    data, more = shown[0]._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    clean, width, _ = clean_svg(data["image/svg+xml"])
    assert SCHEME in clean and width == sheet.WIDE * 72 and len(clean) < len(data["image/png"])
    assert view.title in clean and "<title>" not in clean
    about = more["image/png"]
    assert about["alt"] == data["text/plain"] == view.alt
    assert about["width"] == int(sheet.WIDE * 96)
    assert set(DisplayFormatter().format(view)[0]) == set(data)


def test_outside_a_notebook_the_words_are_printed(capsys):
    view = figures.pools([APU])
    display(view)
    assert capsys.readouterr().out == f"{view.alt}\n"


def test_a_title_states_the_answer_and_a_size_reads_as_in_the_table_beside_it():
    view = figures.pools([APU])
    assert view.title == "Fullest: sysfs GTT, 9.10 of 15.24 GiB in use"
    assert view.title in words(view.draw())
    said = "; ".join(words(view.draw()))
    every = [row[name] for row in view.rows for name in ("total", "used")]
    assert [size.show() for size in every if size.ok and size.show() not in said] == []
    assert figures.pools(CARDS).title == "Fullest: sysfs VRAM, 18.31 of 19.98 GiB in use"


def test_in_the_dark_a_figure_has_the_contrast_that_words_and_shapes_need():
    """WCAG 2.2: 4.5 to 1 for words (1.4.3), 3 to 1 for what is drawn (1.4.11)."""
    new = dict(re.findall(r"l: (#\w+)'\],\[fill='#\w+'\]{fill:(#\w+)", DARK))
    for paper in ("#ffffff", new["#ffffff"]):
        dark = paper != "#ffffff"
        shown = {old: new.get(old, old) if dark else old for old in (*WORDS, *SERIES)}
        assert all(contrast(shown[one], paper) >= 4.5 for one in WORDS)
        assert all(contrast(shown[one], paper) >= (3 if dark else 2) for one in SERIES)
        assert len(set(shown.values())) == len(shown)


def test_drawing_imports_neither_pyplot_nor_a_window_system():
    code = (
        "import sys; from helpers.tell import figures, sheet; sheet.FigurePage('a').done().picture();"
        "print([m for m in ('matplotlib.pyplot', 'tkinter') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
