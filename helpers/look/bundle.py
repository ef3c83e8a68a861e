"""The evidence bundle: a manifest and the raw text under it, as a folder, a ``.tar.gz`` or a ``.tar.zst``.

Reading a bundle never executes, imports or unpickles anything; a file that the manifest does not name, or that is not what
was captured, is refused before anything is believed. The errors are those of helpers.look.archive.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from helpers.shapes import SCHEMA_VERSION as SCHEMA_VERSION

from .archive import BundleBroken, BundleTooNew, read_files, write_files
from .reading import Reading, not_allowed, not_available, seen

KINDS = ("live", "recorded", "constructed")
ITEM_KINDS = ("file", "command")
ITEM_STATUSES = ("ok", "not_available", "not_allowed", "timeout", "truncated")


@dataclass(frozen=True)
class Item:
    """One thing that was looked at. ``source`` is the path or command line; ``path`` where its text lies, or empty.

    ``why`` says why there is no text, or what was cut; ``constructed`` marks what no machine ever printed.
    """

    # Read by pydantic where the manifest shape holds an item: unknown keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    id: str
    kind: str
    source: str
    path: str
    status: str
    exit: int | None = None
    seconds: float = 0.0
    bytes: int = 0
    sha256: str = ""
    constructed: bool = False
    why: str = ""


@dataclass(frozen=True)
class Text:
    """The text of one source, or why there is none. ``ok`` is also true for a text that was cut (status ``truncated``)."""

    text: str
    status: str
    why: str
    source: str
    item: str
    constructed: bool = False

    @property
    def ok(self) -> bool:
        return self.status in ("ok", "truncated")


@dataclass(frozen=True)
class Bundle:
    """An evidence bundle in memory. Content is addressed by its source: a path, a command line or a table's name."""

    box: str
    kind: str
    captured_at: str
    tool_version: str
    schema_version: int
    items: tuple[Item, ...]
    contents: dict[str, bytes] = field(repr=False)

    def read(self, source: str) -> Text:
        """The text captured from ``source``. A source that was never looked at reads as not available, never as empty."""
        item = self._by_source().get(source)
        if item is None:
            return Text("", "not_available", "not captured", source, "")
        text = self.contents[item.path].decode("utf-8", "replace") if item.path else ""
        return Text(text, item.status, item.why, source, item.id, item.constructed)

    def number(self, source: str, unit: str = "bytes") -> Reading:
        """The whole number that a file of one value holds, such as a sysfs counter; any other text reads as not available."""
        got = self.read(source)
        word = got.text.strip()
        if got.ok and re.fullmatch(r"-?[0-9]{1,20}", word):
            return seen(int(word), unit, source, got.item)
        return self._missing(got, unit, f"{word[:40]!r} is no whole number")

    def word(self, source: str) -> Reading:
        """The text of a file of one value, without the white space around it; an empty file reads as not available."""
        got = self.read(source)
        if got.ok and got.text.strip():
            return seen(got.text.strip(), "text", source, got.item)
        return self._missing(got, "text", "the file is empty")

    def _missing(self, got: Text, unit: str, odd: str) -> Reading:
        if got.status == "not_allowed":
            return not_allowed(got.why or "permission denied", unit, got.source, got.item)
        why = odd if got.ok else got.why or got.status.replace("_", " ")
        return not_available(why, unit, got.source, got.item)

    def table(self, source: str) -> list[dict[str, Any]]:
        """The rows of a JSON-lines table, such as ``processes``; a line that is no JSON object is left out."""
        rows = []
        for line in self.read(source).text.splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows

    def sources(self, pattern: str) -> list[str]:
        """Sources that match a shell pattern, in natural order (card2 before card10); ``*`` does not cross a slash.

        A pattern under which nothing was found is itself recorded as a source; it is no match.
        """
        depth = pattern.count("/")
        found = [i.source for i in self.items if i.source.count("/") == depth and "*" not in i.source
                 and fnmatch.fnmatchcase(i.source, pattern)]
        return sorted(found, key=natural)

    def _by_source(self) -> dict[str, Item]:
        index = self.__dict__.get("_index")
        if index is None:
            index = {item.source: item for item in self.items}
            object.__setattr__(self, "_index", index)
        return index


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key that puts card2 before card10 and never compares a number with a word."""
    parts, digits = [], ""
    for char in text:
        if char.isdigit() and char.isascii():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits), ""))
            digits = ""
        parts.append((1, 0, char))
    if digits:
        parts.append((0, int(digits), ""))
    return parts


class BundleWriter:
    """Collects items in memory and writes the bundle in one step, so that a reader never sees half of one.

    ``write`` refuses to replace anything unless ``force`` is given.
    """

    def __init__(self, box: str, kind: str, tool_version: str, captured_at: str):
        self.box, self.kind, self.tool_version, self.captured_at = box, kind, tool_version, captured_at
        self._items: list[Item] = []
        self._contents: dict[str, bytes] = {}
        self._taken: set[str] = set()
        self._files: set[str] = set()

    def add(self, kind: str, source: str, content: str | bytes | None = None, *, status: str = "ok", why: str = "",
            exit: int | None = None, seconds: float = 0.0, constructed: bool = False) -> Item:
        """Add one source. ``content`` None means there is no text; then ``status`` and ``why`` say why."""
        raw = _raw(content) if isinstance(content, str) else content
        name = self._name(kind, source)
        path = "" if raw is None else "raw/" + name
        if raw is not None:
            self._contents[path] = raw
        item = Item(name, kind, source, path, status, exit, round(seconds, 3), len(raw or b""),
                    hashlib.sha256(raw).hexdigest() if raw is not None else "", constructed, why)
        self._items.append(item)
        return item

    def _name(self, kind: str, source: str) -> str:
        words = [part for part in source.replace(" ", "_").split("/") if part not in ("", ".", "..")]
        plain = "/".join("".join(c if c.isascii() and (c.isalnum() or c in "._-:+=") else "_" for c in w[:150]) for w in words)
        plain = plain or "nameless"
        if kind == "command":
            plain = "command/" + plain.replace("/", "_")[:120]
        elif not source.startswith("/"):
            plain = "table/" + plain
        # A text must not take the name of a folder that another text lies in (/proc/1 beside /proc/1/status).
        name, number = plain, 1
        while name in self._taken or any(folder in self._files for folder in _folders(name)):
            number += 1
            name = f"{plain}~{number}" if name in self._taken else f"~{number}/{plain}"
        self._files.add(name)
        self._taken.update([name, *_folders(name)])
        return name

    def bundle(self) -> Bundle:
        """What has been added so far, as a bundle in memory."""
        return Bundle(self.box, self.kind, self.captured_at, self.tool_version, SCHEMA_VERSION,
                      tuple(self._items), dict(self._contents))

    def manifest(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "box": self.box, "captured_at": self.captured_at, "kind": self.kind,
                "tool_version": self.tool_version, "items": [asdict(item) for item in self._items]}

    def write(self, out: Path, force: bool = False) -> Path:
        """Write to a folder, or to an archive where ``out`` ends in .tar.gz, .tgz or .tar.zst; returns ``out``."""
        return write_files({"manifest.json": json.dumps(self.manifest(), indent=1).encode() + b"\n", **self._contents},
                           Path(out), force)


def _raw(text: str) -> bytes:
    """The bytes that a text was decoded from, or its nearest UTF-8 where it was not decoded from any."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _folders(name: str) -> list[str]:
    return [folder.as_posix() for folder in PurePosixPath(name).parents]


def open_bundle(path: str | Path) -> Bundle:
    """Read a bundle from a folder or an archive and check it whole. Raises a BundleError with a one-line reason."""
    path = Path(path)
    return _checked(read_files(path), path)


def _checked(files: dict[str, bytes], path: Path) -> Bundle:
    if "manifest.json" not in files:
        raise BundleBroken(f"{path}: no manifest.json; expected an evidence bundle (python -m helpers capture)")
    try:
        manifest = json.loads(files.pop("manifest.json").decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleBroken(f"{path}: manifest.json cannot be read ({type(error).__name__}); capture again") from error
    if not isinstance(manifest, dict):
        raise BundleBroken(f"{path}: manifest.json is not an object; capture again")
    version = manifest.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise BundleBroken(f"{path}: schema_version {_shown(version)}; expected a whole number; capture again")
    if version < 1:
        raise BundleBroken(f"{path}: schema_version {version}; expected 1 or more; capture again")
    if version > SCHEMA_VERSION:
        raise BundleTooNew(f"{path}: schema_version {version}; this workbook reads up to {SCHEMA_VERSION}; update the workbook")
    items = tuple(_item(raw, path) for raw in _listed(manifest, "items", path))
    strings = {key: _string(manifest, key, path) for key in ("box", "kind", "captured_at", "tool_version")}
    if strings["kind"] not in KINDS:
        raise BundleBroken(f"{path}: kind {_shown(strings['kind'])}; expected one of {', '.join(KINDS)}")
    named = {item.path for item in items if item.path}
    for item in items:
        if not item.path:
            continue
        if item.path not in files:
            raise BundleBroken(f"{path}: {_shown(item.path)} is named in the manifest and missing; copy the whole bundle again")
        if hashlib.sha256(files[item.path]).hexdigest() != item.sha256:
            raise BundleBroken(f"{path}: {_shown(item.path)} is not what was captured (sha256 differs); copy the bundle again")
    for name in files:
        if name not in named:
            raise BundleBroken(f"{path}: {_shown(name)} is not named in the manifest; expected only captured files")
    return Bundle(strings["box"], strings["kind"], strings["captured_at"], strings["tool_version"], version, items, files)


def _shown(value: Any) -> str:
    return repr(value)[:80] if isinstance(value, (str, int, float, type(None))) else type(value).__name__


def _listed(manifest: dict[str, Any], key: str, path: Path) -> list[Any]:
    value = manifest.get(key)
    if not isinstance(value, list):
        raise BundleBroken(f"{path}: manifest.json has no list {key!r}; capture again")
    return value


def _string(manifest: dict[str, Any], key: str, path: Path) -> str:
    value = manifest.get(key)
    if not isinstance(value, str):
        raise BundleBroken(f"{path}: manifest.json has no text {key!r}; capture again")
    return value


def _item(raw: Any, path: Path) -> Item:
    expected = {"id": str, "kind": str, "source": str, "path": str, "status": str, "exit": (int, type(None)),
                "seconds": (int, float), "bytes": int, "sha256": str, "constructed": bool, "why": str}
    if not isinstance(raw, dict) or not set(raw) <= set(expected) or not {"id", "kind", "source", "path", "status"} <= set(raw):
        raise BundleBroken(f"{path}: an item in manifest.json has other keys than {', '.join(expected)}; capture again")
    for key, value in raw.items():
        if not isinstance(value, expected[key]):  # type: ignore[arg-type]
            raise BundleBroken(f"{path}: item {_shown(raw['id'])}: {key} is {_shown(value)}; capture again")
    if raw["kind"] not in ITEM_KINDS or raw["status"] not in ITEM_STATUSES:
        odd = f"kind {_shown(raw['kind'])}, status {_shown(raw['status'])}"
        raise BundleBroken(f"{path}: item {_shown(raw['id'])}: {odd} are unknown; capture again")
    return Item(**raw)
