"""How contracts check themselves: plain dataclasses of the standard library, in Python and as JSON.

So ``diagnose`` needs no other package. Unknown keys, wrong types and words outside a vocabulary
are refused in one line. As fields of pydantic models, which plans and records are, they are
checked alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import lru_cache
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from helpers.ground.tables import data
from helpers.ground.units import cut, plain

SCHEMA_VERSION = 1
Known = TypeVar("Known")
FIRST = {"place": -1}
LAST = {"place": 1}
"""Where a key stands in JSON, besides the order of the fields: those without a default come
first there.
"""


class Shape:
    """Base of a contract: on making one its fields are checked. Raises ValueError in one line."""

    # Read by pydantic where one of its models holds a shape: unknown keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, kind in _kinds(cls).items():
            object.__setattr__(self, name, _read(kind, getattr(self, name), name))
        version = getattr(self, "schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {version}: this workbook reads {SCHEMA_VERSION}; "
                "update the workbook"
            )


def from_json(cls: type[Known], value: object, what: str = "") -> Known:
    """A shape from JSON text or from what JSON holds.

    Raises ValueError in one line: ``what`` (the shape's name), where, what was seen, what was
    expected.
    """
    name = what or cls.__name__.lower()
    if isinstance(value, (str, bytes, bytearray)):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: no JSON ({str(error)[:80]})") from None
    try:
        return cast(Known, _read(cls, value, ""))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def as_dict(shape: object) -> dict[str, Any]:
    """A shape as JSON holds it: dictionaries, lists, text, numbers."""
    assert is_dataclass(shape) and not isinstance(shape, type)
    columns = asdict(shape)
    order = sorted(fields(shape), key=lambda field: field.metadata.get("place", 0))
    return {field.name: columns[field.name] for field in order}


def to_json(shape: object, indent: int | None = None) -> str:
    """A shape as JSON text: compact, or with ``indent`` spaces a level."""
    separators = (",", ":") if indent is None else None
    return json.dumps(
        as_dict(shape), indent=indent, ensure_ascii=False, separators=separators
    )


MOST_ERRORS = 3
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def one_line(refusal: ValueError, what: str) -> str:
    """What is wrong with an input, by pydantic's ValidationError, in one line: where, what was seen,
    what was expected; of more than three the first three.
    """
    errors = cast(Any, refusal).errors(include_url=False)
    # A key that does not exist explains why another one is missing.
    errors.sort(key=lambda error: error["type"] not in UNKNOWN_KEY)
    says = "; also ".join(map(_wrong, errors[:MOST_ERRORS]))
    if what:
        says = f"{what}: {says}"
    if len(errors) > MOST_ERRORS:
        says += f"; and {len(errors) - MOST_ERRORS} more"
    return says


def _wrong(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors: where, what was seen, what is to be written instead (refusals.json,
    by pydantic's type of error).
    """
    place = [str(part) for part in error["loc"]]
    field = "".join(place[-1:])
    seen = f"seen {cut(repr(error.get('input')), 60)}; "
    if error["type"] == "missing":
        place.pop()
        seen = ""
    otherwise = error["msg"].replace("Value error, ", "", 1)
    words = {**error.get("ctx", {}), "field": field}
    form = data("ground/refusals").get(error["type"], otherwise)
    expected = form.format(**words)
    return ": ".join(filter(None, [".".join(place), f"{seen}{expected}"]))


@lru_cache(maxsize=None)
def _kinds(cls: type) -> dict[str, object]:
    """The type of each field, as its annotation has it."""
    return get_type_hints(cls)


def _read(kind: object, value: object, where: str) -> object:
    """The value as ``kind``, its lists and objects made; ``where`` is its path, for the error."""
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
    for option in get_args(kind):
        if is_dataclass(option) and value is not None:
            return _read(option, value, where)
    if not any(_is(option, value) for option in get_args(kind)):
        raise _unexpected(where, value, kind)
    return value


def _read_list(kind: object, value: Sequence[object], where: str) -> object:
    """A list, or a tuple: of one type, as ``Tuple[str, ...]``, or of a type for each entry."""
    kinds = get_args(kind)
    is_tuple = get_origin(kind) is tuple
    if not is_tuple or kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise _unexpected(where, value, kind)
    entries = []
    for place, entry_kind in enumerate(kinds):
        entries.append(_read(entry_kind, value[place], f"{where}.{place}"))
    return tuple(entries) if is_tuple else entries


def _is(kind: object, value: object) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def _read_shape(kind: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise _unexpected(where, value, kind)
    before = f"{where}." if where else ""
    kinds = _kinds(kind)
    keys = fields(cast(Any, kind))
    names = [field.name for field in keys]
    for key in value:
        if key not in names:
            name = f"{before}{plain(str(key)[:60])}"
            raise ValueError(f"{name}: unknown key; expected {', '.join(names)}")
    for field in keys:
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and field.name not in value:
            expected = _expected(kinds[field.name])
            raise ValueError(f"{before}{field.name}: nothing seen; expected {expected}")
    columns = {
        key: _read(kinds[key], entry, before + key) for key, entry in value.items()
    }
    try:
        return kind(**columns)
    except ValueError as error:
        says = f"{where}: {error}" if where else str(error)
        raise ValueError(says) from None


def _unexpected(where: str, value: object, kind: object) -> ValueError:
    if isinstance(value, (str, bytes)):
        value = value[:60]
    seen = repr(value)
    if len(seen) >= 64:
        seen = seen[:60] + "..."
    place = where or "the whole"
    return ValueError(f"{place}: seen {seen}; expected {_expected(kind)}")


def _expected(kind: object) -> str:
    """What values a kind has, in words."""
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
