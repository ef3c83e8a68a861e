"""The evidence bundle: a manifest and the raw text under it, as a folder or a ``.tar.gz``.

Reading a bundle never executes, imports or unpickles anything; a file that the manifest does
not name, or that is not what was captured, is refused before anything is believed. The errors
are those of helpers.look.archive.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Dict, List, Literal, Optional, TypeVar, cast

from helpers.ground.contract import SCHEMA_VERSION as SCHEMA_VERSION
from helpers.ground.contract import as_dict, from_json
from helpers.ground.places import PROGRAM
from helpers.ground.shapes import NOT_ALLOWED, Reading, absent, seen
from helpers.ground.units import plain

from .archive import BundleError, read_files, write_files
from .files import natural

EMPTY = "the file is empty"
Kind = Literal["file", "command"]
BoxKind = Literal["live", "recorded", "constructed"]
Result = TypeVar("Result")
JsonRow = Dict[str, Any]  # made when imported, also on Python 3.8
"""A line of a table as a capture writes it; ``Row`` is one that is read."""
Status = Literal["ok", "not_available", "not_allowed", "timeout", "truncated"]


@dataclass(frozen=True)
class Item:
    """One thing that was looked at.

    ``source`` is the path or command line; ``path`` where its text lies, or empty.

    ``why`` says why there is no text, or what was cut; ``constructed`` marks what no machine
    ever printed.
    """

    # Read by pydantic where the manifest shape holds an item: unknown keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    id: str
    kind: Kind
    source: str
    path: str
    status: Status
    exit: Optional[int] = None
    seconds: float = 0.0
    bytes: int = 0
    sha256: str = ""
    constructed: bool = False
    why: str = ""


@dataclass(frozen=True)
class Manifest:
    """manifest.json of an evidence bundle."""

    __pydantic_config__ = {"extra": "forbid"}

    box: str
    captured_at: str
    kind: BoxKind
    tool_version: str
    items: List[Item]
    schema_version: int = field(default=SCHEMA_VERSION, metadata={"place": -1})


@dataclass(frozen=True)
class Text:
    """The text of one source, or why there is none.

    ``ok`` is also true for a text that was cut (status ``truncated``).
    """

    text: str
    status: str
    why: str
    source: str
    item: str
    constructed: bool = False

    @property
    def ok(self) -> bool:
        return self.status in ("ok", "truncated")

    def seen(self, value: int | float | str, unit: str = "text") -> Reading:
        """A value that this text holds."""
        return seen(value, unit, self.source, self.item)

    def missing(self, odd: str = "", unit: str = "text") -> Reading:
        """Why it holds no value: what kept it from being read, or ``odd`` about a text that was
        read.
        """
        if self.ok:
            return absent("", odd, unit, self.source, self.item)
        words = self.status.replace("_", " ")
        if self.status == NOT_ALLOWED:
            words = "permission denied"
        return absent(self.status, self.why or words, unit, self.source, self.item)

    def find(
        self,
        pattern: str,
        odd: str = "no such line in it",
        unit: str = "text",
        scale: int = 0,
    ) -> Reading:
        """The first group of a pattern: its words, or where ``scale`` is given its number so
        many times. ``odd``: why not.
        """
        match = re.search(pattern, self.text)
        if match and scale:
            return self.seen(int(match[1]) * scale, unit)
        if match:
            return self.seen(match[1].strip(), unit)
        if not self.text.strip():
            odd = EMPTY
        return self.missing(odd, unit)

    def refused(self, status: object, why: str, unit: str = "text") -> Reading:
        """No value, whatever became of the text: not allowed where ``status`` says so, else not
        available.
        """
        return absent(status, why, unit, self.source, self.item)

    def of(self, source: str) -> Text:
        """The same text under the path or command that a row of it speaks of."""
        return replace(self, source=source)


class Row(JsonRow):
    """An object of a JSON table, each field by the kind that is asked for: a bundle may hold
    any other.
    """

    def _of_type(self, key: str, default: Result) -> Result:
        """The value there where its type is that of ``default``, which stands for any other."""
        value = self.get(key)
        if type(value) is type(default):
            return value
        return default

    def text(self, key: str) -> str:
        """The text there, or an empty one."""
        return self._of_type(key, "")

    def number(self, key: str) -> int | None:
        """The whole number there, or None."""
        value = self.get(key)
        return value if type(value) is int else None

    def many(self, key: str) -> list[Any]:
        """The list there, or an empty one."""
        return self._of_type(key, [])

    def inner(self, key: str) -> Row:
        """The object there, or an empty one."""
        return self._of_type(key, Row())


def _sha256(content: bytes) -> str:
    import hashlib  # OpenSSL takes a while to load, and a text needs none of it

    return hashlib.sha256(content).hexdigest()


def rows(values: object) -> list[Row]:
    """The objects in a list; none where it is no list."""
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, Row)]


class Unchanging:
    """What does not change, so that what follows from it is worked out once."""

    def once(self, name: str, make: Callable[[], Result]) -> Result:
        """What ``make`` finds, worked out the first time that ``name`` is asked for."""
        results: dict[str, Any] = self.__dict__.setdefault("_results", {})
        if name not in results:
            results[name] = make()
        result: Result = results[name]
        return result


@dataclass(frozen=True)
class Bundle(Unchanging):
    """An evidence bundle in memory.

    Content is addressed by its source: a path, a command line or a table's name.
    """

    box: str
    captured_at: str
    kind: str
    tool_version: str
    items: tuple[Item, ...]
    contents: dict[str, bytes] = field(repr=False)

    def read(self, source: str) -> Text:
        """The text captured from ``source``.

        A source that was never looked at reads as not available, never as empty.
        """
        item = self._by_source.get(source)
        if item is None:
            return Text("", "not_available", "not captured", source, "")
        text = ""
        if item.path:
            text = self.contents[item.path].decode("utf-8", "replace")
        return Text(text, item.status, item.why, source, item.id, item.constructed)

    def number(self, source: str, unit: str = "bytes") -> Reading:
        """The whole number that a file of one value holds, such as a sysfs counter; any other
        text reads as not available.
        """
        got = self.read(source)
        word = got.text.strip()
        if got.ok and re.fullmatch(r"-?[0-9]{1,20}", word):
            return got.seen(int(word), unit)
        return got.missing(f"{word[:40]!r} is no whole number", unit)

    def word(self, source: str) -> Reading:
        """The text of a file of one value, without the white space around it; an empty file
        reads as not available.
        """
        got = self.read(source)
        word = got.text.strip()
        if got.ok and word:
            return got.seen(word)
        return got.missing(EMPTY)

    def table(self, source: str) -> list[Row]:
        """The rows of a JSON-lines table, such as ``processes``; a line that is no JSON object
        is left out.
        """
        objects = []
        for line in self.read(source).text.splitlines():
            try:
                row = json.loads(line, object_hook=Row)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, Row):
                objects.append(row)
        return objects

    def sources(self, pattern: str) -> list[str]:
        """Sources that match a shell pattern, in natural order (card2 before card10); ``*``
        does not cross a slash.

        A pattern under which nothing was found is itself recorded as a source; it is no match.
        """
        depth = pattern.count("/")
        level = (source for source in self._by_source if source.count("/") == depth)
        matching = (source for source in level if fnmatch.fnmatchcase(source, pattern))
        return sorted((source for source in matching if "*" not in source), key=natural)

    @cached_property
    def _by_source(self) -> dict[str, Item]:
        return {item.source: item for item in self.items}


class BundleWriter:
    """Collects items in memory and writes the bundle in one step, so that a reader never sees
    half of one.

    ``write`` refuses to replace anything unless ``force`` is given.
    """

    def __init__(self, box: str, kind: str, tool_version: str, captured_at: str):
        self.box = box
        self._head = (box, captured_at, cast("BoxKind", kind), tool_version)
        self._items: list[Item] = []
        self._contents: dict[str, bytes] = {}
        self._names: set[str] = set()
        self._files: set[str] = set()

    def add(
        self,
        kind: str,
        source: str,
        content: str | bytes | None = None,
        *,
        status: str = "ok",
        why: str = "",
        exit: int | None = None,
        seconds: float = 0.0,
        constructed: bool = False,
    ) -> Item:
        """Add one source.

        ``content`` None means there is no text; then ``status`` and ``why`` say why.
        """
        if isinstance(content, str):
            content = _raw(content)
        name = self._name(kind, source)
        path = ""
        size = 0
        digest = ""
        if content is not None:
            path = "raw/" + name
            self._contents[path] = content
            size = len(content)
            digest = _sha256(content)
        item = Item(
            id=name,
            kind=cast("Kind", kind),
            source=source,
            path=path,
            status=cast("Status", status),
            exit=exit,
            seconds=round(seconds, 3),
            bytes=size,
            sha256=digest,
            constructed=constructed,
            why=why,
        )
        self._items.append(item)
        return item

    def _name(self, kind: str, source: str) -> str:
        words = [word for word in source.split("/") if word not in ("", ".", "..")]
        plain = "/".join(
            re.sub("[^0-9A-Za-z._:+=-]", "_", word[:150]) for word in words
        )
        if not plain:
            plain = "nameless"
        if kind == "command":
            plain = "command/" + plain.replace("/", "_")[:120]
        elif not source.startswith("/"):
            plain = "table/" + plain
        # A text must not take the name of a folder that another text lies in (/proc/1 beside
        # /proc/1/status).
        name = plain
        number = 1
        while name in self._names or any(
            folder in self._files for folder in _folders(name)
        ):
            number += 1
            name = f"~{number}/{plain}"
        self._files.add(name)
        self._names.update([name, *_folders(name)])
        return name

    def bundle(self) -> Bundle:
        """What has been added so far, as a bundle in memory."""
        return Bundle(*self._head, tuple(self._items), dict(self._contents))

    def manifest(self) -> dict[str, Any]:
        return as_dict(Manifest(*self._head, self._items))

    def write(self, out: Path, force: bool = False) -> Path:
        """Write to a folder, or to an archive where ``out`` ends in .tar.gz or .tgz; returns
        ``out``.
        """
        manifest = json.dumps(self.manifest(), indent=1).encode() + b"\n"
        return write_files(
            {"manifest.json": manifest, **self._contents}, Path(out), force
        )


def _raw(text: str) -> bytes:
    """The bytes that a text was decoded from, or its nearest UTF-8 where it was not decoded
    from any.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _folders(name: str) -> list[str]:
    return [folder.as_posix() for folder in PurePosixPath(name).parents]


def open_bundle(path: str | Path) -> Bundle:
    """Read a bundle from a folder or an archive and check it whole.

    Raises a BundleError with a one-line reason.
    """
    path = Path(path)
    files = read_files(path)
    if "manifest.json" not in files:
        expected = f"expected an evidence bundle ({PROGRAM} capture)"
        raise BundleError(f"{path}: no manifest.json; {expected}")
    manifest = _manifest(files.pop("manifest.json"), path)
    digests = {item.path: item.sha256 for item in manifest.items if item.path}
    for name in {**digests, **files}:
        if name not in digests:
            why = "is not named in the manifest; expected only captured files"
        elif name not in files:
            why = "is named in the manifest and missing; copy the whole bundle again"
        elif _sha256(files[name]) != digests[name]:
            why = "is not what was captured (sha256 differs); copy the bundle again"
        else:
            continue
        raise BundleError(f"{path}: {name[:80]!r} {why}")
    return Bundle(
        box=plain(manifest.box),
        captured_at=plain(manifest.captured_at),
        kind=manifest.kind,
        tool_version=plain(manifest.tool_version),
        items=tuple(manifest.items),
        contents=files,
    )


def _manifest(content: bytes, path: Path) -> Manifest:
    try:
        data = json.loads(content.decode("utf-8"))
        version = None
        if isinstance(data, dict):
            version = data.get("schema_version")
        if type(version) is not int or version < SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {str(version)[:60]!r}; expected {SCHEMA_VERSION}"
            )
        if version == SCHEMA_VERSION:
            return from_json(Manifest, data, "manifest.json")
    except (ValueError, RecursionError) as error:
        why = " ".join((str(error) or type(error).__name__).split())[:300]
        raise BundleError(f"{path}: {why}; capture again") from error
    advice = f"this workbook reads up to {SCHEMA_VERSION}; update the workbook"
    raise BundleError(f"{path}: schema_version {version}; {advice}")
