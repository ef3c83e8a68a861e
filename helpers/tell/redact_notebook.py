"""A notebook, or any data of JSON, without the values that must not leave: keys and values, at any depth."""

from __future__ import annotations

import base64
import binascii
import copy
import re
from typing import Any

from .redact_known import Known
from .redact_pictures import without_words
from .redact_views import JOINT
from .redact_words import Replaced, decoded_base64, learn, replace

_NAMED = re.compile(
    r"pass|pwd|secret|token|key|credential|psk|session|serial|unique|tag$|host|node|user|login|owner|account"
    r"|uuid|machine|boot|container|ssid|cookie|auth",
    re.IGNORECASE,
)
"""Names whose values are read together with their name."""
_BINARY = re.compile(
    r"(?:image|audio|video|font)/(?!svg)|application/(?:pdf|octet-stream|zip|gzip|x-tar|vnd\.apache\.parquet)"
)


def redact_notebook(nb: Any, known: Known, allow_binary: bool = False) -> tuple[Any, Replaced]:
    """A copy of a notebook (nbformat 4, node or plain dict) with pseudonyms, and what was replaced.

    Pictures lose their metadata. A picture whose own words held a value is left out, as its pixels may hold it too, and so is
    data that cannot be read; ``allow_binary`` keeps both.
    """
    nb = copy.deepcopy(nb)
    learn_data(nb, known)
    walk = _Walk(known, Replaced(), allow_binary)
    metadata = nb.get("metadata", {})
    nb["metadata"] = walk.data(metadata, "notebook metadata")
    for number, cell in enumerate(nb.get("cells", [])):
        for key in list(cell):
            if key != "outputs":
                cell[key] = walk.item(key, cell[key], f"cell {number} {key}")
        # The code that drew a picture may have written the value into it.
        marked = bool(
            {where for _, where in walk.replaced.counts}
            & {f"cell {number} source", f"cell {number} metadata"}
        )
        cell_outputs = cell.get("outputs", [])
        for index, output in enumerate(cell_outputs):
            cell_outputs[index] = _output(output, walk, f"cell {number} output {index}", marked)
    return nb, walk.replaced


def redact_data(
    data: Any, known: Known, replaced: Replaced, where: str, allow_binary: bool = False
) -> Any:
    """Data of JSON with pseudonyms in keys and values; what it tells by its context is learnt first."""
    learn_data(data, known)
    return _Walk(known, replaced, allow_binary).data(data, where)


def learn_data(data: Any, known: Known, key: str = "") -> None:
    """Remember what texts, keys and names before values tell."""
    if isinstance(data, dict):
        if data.get("_model_name") == "PasswordModel" and isinstance(data.get("value"), str):
            known.add("password", data["value"])
        for name, value in data.items():
            learn(str(name), known)
            learn_data(value, known, str(name))
    elif isinstance(data, (list, tuple)) and data and all(isinstance(one, str) for one in data):
        learn(("" if key in _LINES else JOINT).join(data), known)
    elif isinstance(data, (list, tuple)):
        for one in data:
            learn_data(one, known, key)
    elif isinstance(data, str) and not (_BINARY.match(key)):
        learn(data, known)
        if _NAMED.search(key):
            learn(f"{key}={data!r}" if "'" not in data else f'"{key}": "{data}"', known)
    elif isinstance(data, int) and not isinstance(data, bool) and _NAMED.search(key):
        learn(f'"{key}": {data}', known)


_LINES = (
    "source",
    "text",
    "text/plain",
    "text/html",
    "text/markdown",
    "text/latex",
    "image/svg+xml",
    "application/javascript",
)
"""Keys under which nbformat keeps one text as a list of its lines."""


def _output(output: Any, walk: _Walk, where: str, marked: bool) -> Any:
    before = walk.replaced.total
    data = output.get("data") or {}
    for key in list(output):
        if key != "data":
            output[key] = walk.item(key, output[key], f"{where} {key}")
    for kind in [kind for kind in data if not _BINARY.match(kind)]:
        data[kind] = walk.item(kind, data[kind], f"{where} {kind}")
    marked = marked or walk.replaced.total > before
    for kind in [kind for kind in data if _BINARY.match(kind)]:
        data[kind] = walk.binary(kind, data[kind], where, marked)
        if data[kind] is None:
            del data[kind]
            data.setdefault(
                "text/plain", f"[{kind} left out: what it holds cannot be read for sure]"
            )
    return output


class _Walk:
    """Goes through data and replaces; counts under the place where it is."""

    def __init__(self, known: Known, replaced: Replaced, allow_binary: bool):
        self.known, self.replaced, self.allow_binary = known, replaced, allow_binary
        self._done: dict[str, tuple[str, Replaced]] = {}

    def text(self, text: str, where: str) -> str:
        """A snapshot names the same file a hundred thousand times: each text is read once."""
        if text not in self._done:
            own = Replaced()
            self._done[text] = replace(text, self.known, own, ""), own
        clean, own = self._done[text]
        for (kind, place), count in own.counts.items():
            self.replaced.counts[kind, where + place] += count
        return clean

    def item(self, key: str, value: Any, where: str) -> Any:
        """One value, read with its name."""
        if _BINARY.match(key) and isinstance(value, (str, list)):
            return self.binary(key, value, where, False) or ""
        if isinstance(value, str) and _NAMED.search(key):
            return self._named(key, value, where)
        if isinstance(value, int) and not isinstance(value, bool) and _NAMED.search(key):
            clean = self.text(f'"{key}": {value}', where)
            return value if clean == f'"{key}": {value}' else clean.partition(": ")[2]
        if key in _LINES and isinstance(value, list) and all(isinstance(one, str) for one in value):
            return self.text("".join(value), where).splitlines(keepends=True)
        return self.data(value, where)

    def data(self, data: Any, where: str) -> Any:
        if isinstance(data, str):
            return self.text(data, where)
        if isinstance(data, dict):
            if data.get("encoding") == "base64" and isinstance(data.get("data"), str):
                data = {**data, "data": self.binary("a buffer", data["data"], where, False) or ""}
            new = type(data)()
            for key, value in data.items():
                name = self.text(key, where) if isinstance(key, str) else key
                new[name if name not in new else f"{name}~{len(new)}"] = self.item(
                    str(key), value, where
                )
            return new
        if isinstance(data, (list, tuple)):
            if data and all(isinstance(one, str) and JOINT not in one for one in data):
                # Read as one: a value may go on in the next text.
                return type(data)(self.text(JOINT.join(data), where).split(JOINT))
            return type(data)(self.data(one, where) for one in data)
        if isinstance(data, int) and (found := self.known.given(str(data))):
            self.replaced.counts[found[0], where] += 1
            return found[1]
        return data

    def _named(self, key: str, value: str, where: str) -> str:
        for mark in ("'", '"'):
            if mark not in value:
                head = f"{key}={mark}"
                clean = self.text(f"{head}{value}{mark}", where)
                if clean.startswith(head) and clean.endswith(mark):
                    return clean[len(head) : -1]
        return self.text(value, where)

    def binary(self, kind: str, content: Any, where: str, marked: bool) -> str | None:
        """Base64 content without metadata, or None where it must not stay."""
        encoded = "".join(content) if isinstance(content, list) else str(content)
        try:
            raw = base64.b64decode("".join(encoded.split()), validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        clean = without_words(raw)
        if clean is None and kind == "a buffer" and isinstance(decoded_base64(encoded), str):
            return self.text(encoded, where)
        if (clean is None or marked) and not self.allow_binary:
            self.replaced.notes.append(
                f"{where}: {kind} left out: what it holds cannot be read for sure"
            )
            return None
        self.replaced.notes.append(f"{where}: {kind} kept: words drawn in it were not read")
        return encoded if clean is None or clean == raw else base64.b64encode(clean).decode() + "\n"
