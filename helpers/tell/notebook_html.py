"""An executed notebook as a piece of a page: our own template, and only outputs that cannot act or reach out.

Rendered are text, Markdown, our verdicts, PNG pictures, and HTML and SVG as helpers.tell.sanitise leaves them. JavaScript,
widgets and attachments are named or dropped. Raw HTML in Markdown is shown as text, a link as its words and address, so the
page needs no network and runs nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mistune
import nbformat
from markupsafe import Markup, escape
from nbconvert.exporters import HTMLExporter

from helpers.run.notebook import INJECTED, PARAMETERS, VERDICT
from helpers.shapes import Verdict, as_dict, from_json

from .sanitise import SHOWN, clean_html, clean_svg, cut_text, not_shown
from .tables import plain, uncoloured

TEMPLATES = Path(__file__).with_name("templates")
BANNER_TAG = "papermill-error-cell-tag"
LABELS = {INJECTED: "Parameters of this run", PARAMETERS: "Parameters"}
UNFINISHED = {
    "failed": "This cell failed",
    "pending": "Not run",
    "running": "Running when it ended",
}


@dataclass
class Room:
    """Bytes left on the page. What finds no room is named instead of shown, so a page never grows without end."""

    left: int

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


def notebook_html(
    notebook: Any,
    room: Room,
    verdict_html: Callable[[Verdict], str],
    last_words: str = "",
    failing_cell: int | None = None,
) -> str:
    """The notebook as HTML without a page around it; headings start at level 3.

    ``last_words`` is what the kernel wrote to fd 2; it stands beneath the failed cell, or at the end where none failed.
    ``failing_cell`` counts the cells of the notebook as it was written, as a run's record does.
    """
    exporter = HTMLExporter(template_name="casebook", extra_template_basedirs=[str(TEMPLATES)])
    exporter.register_filter("prose", Prose().html)
    exporter.register_filter(
        "verdict_html", lambda data: Markup(verdict_html(from_json(Verdict, data)))
    )
    html, _ = exporter.from_notebook_node(harmless(notebook, room, last_words, failing_cell))
    return html


def harmless(
    notebook: Any, room: Room, last_words: str = "", failing_cell: int | None = None
) -> Any:
    """A copy that holds only what the page shows: clean text, allowed outputs, each cell's state in words."""
    cells: list[Any] = []
    failed: Any = None
    number = -1
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if BANNER_TAG in tags:
            continue
        number += INJECTED not in tags
        if cell.cell_type == "markdown":
            cells.append(nbformat.v4.new_markdown_cell(_clipped(uncoloured(cell.source), room)))
        elif cell.cell_type == "code":
            status = cell.metadata.get("papermill", {}).get("status", "")
            clean = _code_cell(_clipped(uncoloured(cell.source), room), UNFINISHED.get(status, ""))
            clean.metadata["casebook"]["label"] = next(
                (LABELS[tag] for tag in LABELS if tag in tags), "Code"
            )
            clean.outputs = [
                shown
                for output in cell.outputs
                for shown in _allowed(output, cell.metadata.get("alt"), room)
            ]
            cells.append(clean)
            if status == "failed" or (
                failed is None and number == failing_cell and INJECTED not in tags
            ):
                failed = clean
    words = uncoloured(last_words).strip()
    if words and failed is None:
        failed = _code_cell("", "")
        cells.append(failed)
    if failed and not any(
        words in output.traceback[0] for output in failed.outputs if output.output_type == "error"
    ):
        failed.metadata["casebook"]["last_words"] = _clipped(words, room, end=True)
    return nbformat.v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}})


def _code_cell(source: str, state: str) -> Any:
    return nbformat.v4.new_code_cell(
        source, metadata={"casebook": {"state": state, "last_words": "", "label": "Code"}}
    )


def _allowed(output: Any, alt: Any, room: Room) -> list[Any]:
    """The output with one kind of data at most: the first we show. Nothing where it has none that is safe."""
    if output.output_type == "stream":
        return [
            nbformat.v4.new_output(
                "stream", name=output.name, text=_clipped(uncoloured(output.text), room)
            )
        ]
    if output.output_type == "error":
        trace = _clipped(
            uncoloured("\n".join(output.traceback) or f"{output.ename}: {output.evalue}"),
            room,
            end=True,
        )
        return [
            nbformat.v4.new_output(
                "error", ename=plain(output.ename), evalue=plain(output.evalue), traceback=[trace]
            )
        ]
    data, meta = output.get("data", {}), output.get("metadata", {})
    verdict = _verdict(data.get(VERDICT))
    if verdict and room.take(4 * len(json.dumps(verdict))):
        return [_data(VERDICT, verdict)]
    words = uncoloured(_text(data.get("text/plain", "")))
    if "image/png" in data:
        own = meta.get("image/png", {})
        own = own if isinstance(own, dict) else {}
        alt = (
            own.get("alt")
            or alt
            or ("" if words.startswith("<Figure") else words)
            or "A figure without a description"
        )
        return [_picture(_text(data["image/png"]), plain(alt), own.get("width"), room)]
    drawn = clean_svg(_text(data["image/svg+xml"])) if "image/svg+xml" in data else None
    if drawn and room.take(2 * len(drawn[0].encode())):
        alt = (
            alt
            or ("" if words.startswith("<Figure") else words)
            or "A figure without a description"
        )
        return [
            _data(
                "image/svg+xml",
                base64.b64encode(drawn[0].encode()).decode(),
                alt=plain(alt),
                width=drawn[1],
                height=drawn[2],
            )
        ]
    shown = _html(_text(data["text/html"])) if "text/html" in data else ""
    if shown and room.take(2 * len(shown.encode())):
        return [_data("text/html", shown)]
    if "text/markdown" in data:
        return [_data("text/markdown", _clipped(uncoloured(_text(data["text/markdown"])), room))]
    words = (
        words
        if words.strip()
        else "\n".join(not_shown(plain(kind), data[kind]) for kind in data if kind not in SHOWN)
    )
    return [_data("text/plain", _clipped(words, room))] if words else []


def _html(text: str) -> str:
    try:
        return plain(clean_html(text), keep="\n\t")
    except ValueError:  # too long: its text twin is shown
        return ""


def _picture(encoded: str, alt: str, wide: Any, room: Room) -> Any:
    """A PNG with its words and its size on the page; the words alone where it is no PNG or finds no room."""
    encoded = "".join(encoded.split())
    size = png_size(encoded)
    if size is None:
        return _data("text/plain", f"A picture that is not a PNG is left out. {alt}")
    if not room.take(len(encoded) + len(alt) + 200):
        return _data(
            "text/plain",
            f"This picture is left out to keep the page small; it is in notebook.ipynb. {alt}",
        )
    scale = wide / size[0] if isinstance(wide, int) and 0 < wide <= size[0] else 1
    return _data(
        "image/png", encoded, alt=alt, width=round(size[0] * scale), height=round(size[1] * scale)
    )


def png_size(encoded: str) -> tuple[int, int] | None:
    """Width and height in pixels of a base64 PNG, None where it is anything else."""
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    if raw[:8] != b"\x89PNG\r\n\x1a\n" or raw[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", raw[16:24]) if len(raw) >= 24 else (0, 0)
    return (width, height) if width and height else None


def _data(kind: str, content: Any, **about: Any) -> Any:
    return nbformat.v4.new_output("display_data", data={kind: content}, metadata=about)


def _verdict(data: Any) -> Any:
    """The data of a verdict, None where it is no verdict."""
    try:
        verdict = from_json(Verdict, data)
    except ValueError:
        return None
    return as_dict(verdict)


def _text(data: Any) -> str:
    return "".join(map(str, data)) if isinstance(data, list) else str(data)


def _clipped(text: str, room: Room, end: bool = False) -> str:
    """Text as ``cut_text`` leaves it, where the page has room for it."""
    kept = cut_text(text.strip("\n"), end)
    if not room.take(2 * len(kept.encode("utf-8", "replace")) + 300 * bool(kept)):
        return "[left out to keep the page small; it is in notebook.ipynb]"
    return kept


class Prose(mistune.HTMLRenderer):
    """Markdown to HTML that cannot act: raw HTML stays text, links and pictures become words, headings start at level 3.

    One object renders one notebook in order, because a heading may go only one level deeper than the one before.
    """

    def __init__(self) -> None:
        super().__init__(escape=True)
        self._level = 2
        self._markdown = mistune.create_markdown(renderer=self, plugins=["table", "strikethrough"])

    def html(self, source: str) -> Markup:
        return Markup(str(self._markdown(source)))

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        self._level = min(level + 2, self._level + 1, 6)
        return f"<h{self._level}>{text}</h{self._level}>\n"

    def link(self, text: str, url: str, title: str | None = None) -> str:
        address = str(escape(url))
        return text if address in ("", text) else f'{text} <span class="address">({address})</span>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return f'<span class="address">[picture: {escape(re.sub("<[^>]*>", "", text)) if text else escape(url)}]</span>'

    def block_code(self, code: str, info: str | None = None) -> str:
        return f'<div class="scroll" tabindex="0"><pre><code>{escape(code)}</code></pre></div>\n'

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0"><table>\n{text}</table></div>\n'

    def table_cell(self, text: str, align: str | None = None, head: bool = False) -> str:
        tag = "th" if head else "td"
        kind = ' class="number"' if align == "right" else ""
        return f"<{tag}{kind}>{text}</{tag}>\n"
