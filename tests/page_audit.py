"""The rules that every page keeps: it is whole, reaches nowhere, runs one script of its own and nothing else, and says in words
what its pictures show."""

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = set("meta img br hr link input col wbr source".split())
ACTING = set("iframe object embed link base form input svg math template video".split())
NO_ATTRIBUTES = set("style background action data".split())
POLICY = "default-src 'none'; img-src data:; style-src {}; script-src {}; base-uri 'none'; form-action 'none'"
KINDS = ("data:image/png;base64", "data:image/svg+xml;base64")


class Audit(HTMLParser):
    """What a page holds: its tags with attributes, its text, its style, its headings, and tags left open."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.text = ""
        self.headings = []
        self.open = []
        self.style = self.script = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append([int(tag[1]), ""])

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, text):
        if self.open and self.open[-1] in ("style", "script"):
            setattr(self, self.open[-1], getattr(self, self.open[-1]) + text)
            return
        self.text += text
        if self.headings and any(re.fullmatch("h[1-6]", tag) for tag in self.open):
            self.headings[-1][1] += text

    def all(self, tag, name):
        return [attrs[name] for one, attrs in self.tags if one == tag and name in attrs]


def check(page, beside=()):
    """Audit a page. ``beside`` names the pages of runs that it may lead to."""
    audit = Audit(page)
    assert not audit.open and not {tag for tag, _ in audit.tags} & ACTING
    assert [attrs for tag, attrs in audit.tags if tag == "html"] == [{"lang": "en"}]
    assert "viewport" in audit.all("meta", "name")
    scripts = [attrs for tag, attrs in audit.tags if tag == "script"]
    policies = [attrs["content"] for _, attrs in audit.tags if "http-equiv" in attrs]
    hashes = [hashlib.sha256(text.encode()).digest() for text in (audit.style, audit.script)]
    allowed = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes]
    assert (scripts, policies) == ([], []) or (
        (scripts, policies)
        == ([{}], [POLICY.format(*allowed)])  # the page's own script, by its hash
    )
    ids = [attrs["id"] for _, attrs in audit.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in audit.tags:
        assert not {name for name in attrs if name.startswith("on")} | set(attrs) & NO_ATTRIBUTES
        href = attrs.get("href", "")
        assert href[1:] in ids if href.startswith("#") else not href or href in beside
        assert tag == "img" or "src" not in attrs
        assert tag == "source" or "srcset" not in attrs
        if tag in ("img", "source"):
            picture = attrs["src"] if tag == "img" else attrs["srcset"]
            kind, _, content = picture.partition(",")
            assert kind in KINDS and (tag == "source" or attrs["alt"].strip())
            assert int(attrs["width"]) > 0 and int(attrs["height"]) > 0
            drawn = base64.b64decode(content).decode("latin-1").replace("www.w3.org/2000/svg", "")
            reach = re.search(r"https?://\w|script|\son\w+=|url\((?!#)", drawn)
            assert kind == KINDS[0] or not reach
    assert not re.search(
        r"@import|url\(|https?:|//[a-z]|fetch|\bimport\b|eval", audit.style + audit.script
    )
    levels = [level for level, _ in audit.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert all(title.strip() for _, title in audit.headings)
    assert all(char.isprintable() or char in "\n\t" for char in set(page))
    assert len(page.encode()) < 3_000_000
    return audit


def in_order(text, *marks):
    """Whether the words stand in the text in this order."""
    places = [text.index(mark) for mark in marks]
    return places == sorted(places)


def luminance(color):
    """Relative luminance of a colour, #rgb or #rrggbb, as WCAG 2.2 counts it."""
    if len(color) == 4:
        color = "#" + "".join(2 * digit for digit in color[1:])
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """How far two colours are apart, as WCAG counts it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
