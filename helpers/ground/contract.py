"""How contracts check themselves: plain dataclasses of the standard library, in Python and as JSON.

A contract is the fixed form of an answer that commands write as JSON and that others read; its
class is a dataclass derived from Shape, and is called a shape here. ``diagnose`` so needs no
other package. Unknown keys, wrong types and words outside a vocabulary are refused in one line.
A shape may also be a field of a pydantic model, such as a plan or a record, and is then checked
by pydantic in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import lru_cache
from typing import (
    Literal,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from helpers.ground.tables import JsonRow, data
from helpers.ground.units import cut, plain

SCHEMA_VERSION = 1
"""The release of the JSON that this code writes, and the only one that it reads."""
Known = TypeVar("Known")
FIRST = {"place": -1}
LAST = {"place": 1}
"""Metadata of a field whose key stands first or last in JSON: a dataclass demands its fields
without a default first, so the order of its fields cannot say so.
"""
MOST_SEEN = 60
"""Letters of a wrong value or key that an error shows, so that it stays one line."""
MOST_OF_JSON_ERROR = 80
"""Letters that an error shows of what the json module complains about."""


class Shape:
    """Base of a contract. Making an object checks its fields, and raises ValueError in one line."""

    # Read by pydantic where one of its models holds a shape: unknown keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, kind in _kinds(cls).items():
            # Shapes are frozen, and _read makes a tuple of a list or a shape of a dictionary.
            object.__setattr__(self, name, _read(kind, getattr(self, name), name))
        # A shape that is only a part of another one has no version of its own.
        version = getattr(self, "schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {version}: this workbook reads {SCHEMA_VERSION}; "
                "update the workbook"
            )


def from_json(cls: type[Known], value: object, what: str = "") -> Known:
    """A shape of type ``cls`` from JSON text, or from the objects that JSON text stands for.

    Raises ValueError in one line that says in this order: ``what`` was read (by default the
    name of ``cls``), the path of the wrong value in it, what was seen, and what was expected.
    """
    name = what
    if not name:
        name = cls.__name__.lower()
    if isinstance(value, (str, bytes, bytearray)):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:  # the latter for "[[[[..."
            why = str(error)[:MOST_OF_JSON_ERROR]
            raise ValueError(f"{name}: no JSON ({why})") from None
    try:
        return cast(Known, _read(cls, value, ""))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def as_dict(shape: object) -> JsonRow:
    """A shape as JSON holds it: dictionaries, lists, text, numbers."""
    assert is_dataclass(shape) and not isinstance(shape, type)
    columns = asdict(shape)
    # FIRST, then the fields without a place in their order, then LAST.
    order = sorted(fields(shape), key=lambda field: field.metadata.get("place", 0))
    return {field.name: columns[field.name] for field in order}


def to_json(shape: object, indent: int | None = None) -> str:
    """A shape as JSON text: compact, or with ``indent`` spaces a level."""
    separators = None  # the json module's own, with a blank behind each
    if indent is None:
        separators = (",", ":")
    return json.dumps(
        as_dict(shape), indent=indent, ensure_ascii=False, separators=separators
    )


class _Refusal(Protocol):
    """What is used of pydantic's ValidationError, which this room does not import."""

    def errors(self, *, include_url: bool) -> list[JsonRow]: ...


MOST_ERRORS = 3
"""Errors that one line names; it only counts the others."""
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic calls an unknown key: of a model, and of a dataclass such as a Shape."""


def one_line(refusal: ValueError, what: str) -> str:
    """One line that says what is wrong with an input: where, what was seen, what was expected. It
    names up to MOST_ERRORS errors, and how many more there are.

    ``refusal``: the ValidationError that pydantic raised. ``what``: the name of the input, which
    begins the line; empty for none.
    """
    errors = cast(_Refusal, refusal).errors(include_url=False)
    # Unknown keys first (False sorts before True): a misspelt key explains why another is missing.
    errors.sort(key=lambda error: error["type"] not in UNKNOWN_KEY)
    says = "; also ".join(map(_wrong, errors[:MOST_ERRORS]))
    if what:
        says = f"{what}: {says}"
    if len(errors) > MOST_ERRORS:
        says += f"; and {len(errors) - MOST_ERRORS} more"
    return says


def _wrong(error: JsonRow) -> str:
    """One of pydantic's errors in words: where, what was seen, and what to write instead.

    What to write is in refusals.json, by pydantic's type of the error; pydantic's own words stand
    in for a type that the file does not have.
    """
    path = [str(part) for part in error["loc"]]
    words = {**error.get("ctx", {}), "field": "".join(path[-1:])}
    seen = f"seen {cut(repr(error.get('input')), MOST_SEEN)}; "
    if error["type"] == "missing":
        # The words name the missing key, and what pydantic saw is the whole object around it.
        path.pop()
        seen = ""
    # pydantic writes this before the words of a ValueError that a validator raised.
    otherwise = error["msg"].replace("Value error, ", "", 1)
    form = data("ground/refusals").get(error["type"], otherwise)
    expected: str = form.format(**words)
    says = seen + expected
    if path:
        return f"{'.'.join(path)}: {says}"
    return says


@lru_cache(maxsize=None)
def _kinds(cls: type) -> dict[str, object]:
    """The type of each field, by the field's name."""
    return get_type_hints(cls)


def _read(kind: object, value: object, where: str) -> object:
    """``value`` checked against the type ``kind``, with shapes made of the JSON objects in it.

    ``where`` is its path, such as ``evidence.0.reading``, for the error. Raises ValueError.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        if isinstance(value, kind):
            return value
        return _read_shape(kind, value, where)
    origin = get_origin(kind)
    if origin is Union:
        return _read_union(kind, value, where)
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        return _read_list(kind, value, where)
    if not _is(kind, value):
        raise _unexpected(where, value, kind)
    return value


def _read_union(kind: object, value: object, where: str) -> object:
    """A value of one of several types. Where one of them is a shape, the only other one is None;
    contracts have no union of two shapes.
    """
    for option in get_args(kind):
        if is_dataclass(option) and value is not None:
            return _read(option, value, where)
    if not any(_is(option, value) for option in get_args(kind)):
        raise _unexpected(where, value, kind)
    return value


def _read_list(kind: object, value: Sequence[object], where: str) -> object:
    """The entries of a list or tuple, each checked. All entries of a list, and of a
    ``Tuple[str, ...]``, have one type; any other tuple has a type for each entry.

    Returns a tuple for a tuple type, also of a list, which JSON has in its place.
    """
    kinds = get_args(kind)
    is_tuple = get_origin(kind) is tuple
    if not is_tuple or kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise _unexpected(where, value, kind)
    entries = []
    for index, entry_kind in enumerate(kinds):
        entries.append(_read(entry_kind, value[index], f"{where}.{index}"))
    if is_tuple:
        return tuple(entries)
    return entries


def _is(kind: object, value: object) -> bool:
    """Whether a value has a plain type, or is one of the words of a Literal.

    A whole number also counts as a float, since JSON does not tell 1 from 1.0. True and False
    count as no numbers; ``isinstance`` would take them for some, so types are compared.
    """
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def _read_shape(kind: type, value: object, where: str) -> object:
    """The shape of a JSON object. Raises ValueError also for unknown and for missing keys."""
    if not isinstance(value, dict):
        raise _unexpected(where, value, kind)
    before_key = ""
    if where:
        before_key = f"{where}."
    _check_keys(kind, value, before_key)
    kinds = _kinds(kind)
    columns = {
        key: _read(kinds[key], entry, before_key + key) for key, entry in value.items()
    }
    try:
        return kind(**columns)
    except ValueError as error:
        if not where:  # the outermost shape, whose name from_json puts in front
            raise
        raise ValueError(f"{where}: {error}") from None


def _check_keys(kind: type, value: Mapping[str, object], before_key: str) -> None:
    """Raises ValueError for a key of ``value`` that is no field of the shape, and for a field
    without a default that has no key in ``value``.
    """
    assert is_dataclass(kind)
    names = [field.name for field in fields(kind)]
    for key in value:
        if key not in names:
            name = f"{before_key}{plain(str(key)[:MOST_SEEN])}"
            raise ValueError(f"{name}: unknown key; expected {', '.join(names)}")
    for field in fields(kind):
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and field.name not in value:
            name = before_key + field.name
            expected = _expected(_kinds(kind)[field.name])
            raise ValueError(f"{name}: nothing seen; expected {expected}")


def _unexpected(where: str, value: object, kind: object) -> ValueError:
    """The error for a value that is not of the type ``kind``; ``where`` is the value's path, empty
    for the outermost value.
    """
    if isinstance(value, (str, bytes)):
        value = value[:MOST_SEEN]  # before repr, which would spell out megabytes
    seen = repr(value)
    if len(seen) > MOST_SEEN + len("..."):
        seen = seen[:MOST_SEEN] + "..."
    if not where:
        where = "the whole"
    return ValueError(f"{where}: seen {seen}; expected {_expected(kind)}")


def _expected(kind: object) -> str:
    """The values of a type in words: ``a whole number or null``; ``an object`` for a shape."""
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if origin is Union:
        return " or ".join(map(_expected, get_args(kind)))
    if origin in (list, tuple):
        return "a list"
    return _IN_WORDS.get(kind, "an object")


_IN_WORDS: dict[object, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
