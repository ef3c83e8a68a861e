"""The content of an object as a table: its fields with their values, its properties and methods."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

from helpers.ground.shapes import Reading
from helpers.ground.units import Quantity, cut, show_bytes
from helpers.tell.shown import Shown

WIDEST_VALUE = 72
"""Characters after which a value is cut, so that each row stays on one line."""


def fields_of(subject: object) -> Shown:
    """The fields of an object with their values, and its properties and methods with what they
    give.

    For a list or a tuple, those of its first item. Fields without a value are named below the
    table.
    """
    columns = ["field", "value"]
    title = type(subject).__name__
    if isinstance(subject, (list, tuple)):
        if not subject:
            return Shown("The fields", columns, [], none="None here.", again=True)
        count = len(subject)
        subject = subject[0]
        title = f"{type(subject).__name__}, the first of {count}"
    rows: list[list[object]] = []
    empty = []
    for name, value in _values(subject).items():
        words = _words(name, value)
        if not words:
            empty.append(name)
        elif is_dataclass(subject):
            rows.append([f".{name}", words])
        else:
            rows.append([repr(name), words])  # a key
    rows += [[name, says] for name, says in _properties_and_methods(subject)]
    notes = []
    if empty:
        notes = [f"Without a value here: {', '.join(empty)}"]
    return Shown(title, columns, rows, notes, before=[title], widest=None, again=True)


def _values(subject: object) -> Mapping[str, object]:
    """The items of a mapping, or the fields of a dataclass; nothing of another object."""
    if isinstance(subject, Mapping):
        return subject
    if is_dataclass(subject):
        return {field.name: getattr(subject, field.name) for field in fields(subject)}
    return {}


def _properties_and_methods(subject: object) -> list[tuple[str, str]]:
    """The public properties and methods of an object of this package, as a cell calls them, each
    with the first sentence of its docstring.
    """
    kind = type(subject)
    if not kind.__module__.startswith("helpers."):
        return []
    rows = []
    for name, member in inspect.getmembers(kind):
        says = inspect.getdoc(member)
        # The default of a field is a member of the class, too.
        is_field = is_dataclass(subject) and name in _values(subject)
        if name.startswith("_") or is_field or not says:
            continue
        attribute = f".{name}"
        if inspect.isfunction(member) or inspect.ismethod(member):
            attribute += "()"
        rows.append((attribute, _first_sentence(says)))
    return rows


def _first_sentence(text: str) -> str:
    """A text in one line, up to its first full stop, question mark or semicolon."""
    in_one_line = " ".join(text.split())
    return re.split(r"(?<=[.?!;])\s", in_one_line)[0]


def _words(name: str, value: object) -> str:
    """A value in a few words; empty where there is none."""
    if value is None or value == "":
        return ""
    # A Reading and a Quantity are dataclasses too, so they are asked first.
    if isinstance(value, Reading):
        words = value.show()
    elif isinstance(value, Quantity):
        words = value.text
    elif isinstance(value, Mapping):
        words = ", ".join(f"{key}: {item}" for key, item in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        words = _counted(value)
    elif is_dataclass(value):
        words = f"a {type(value).__name__}"
    elif name.endswith("bytes") and isinstance(value, int):
        words = show_bytes(value)
    elif isinstance(value, float):
        words = f"{value:.6g}"
    else:
        words = str(value)
    return cut(" ".join(words.split()), WIDEST_VALUE)


def _counted(items: Sequence[object]) -> str:
    """Texts and numbers as they are; of other items how many there are, and their type."""
    if not items:
        return ""
    if all(isinstance(item, (str, int, float)) for item in items):
        return ", ".join(map(str, items))
    return f"{len(items)} x {type(items[0]).__name__}"
