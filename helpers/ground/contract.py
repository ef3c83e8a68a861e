"""How contracts check themselves: plain dataclasses of the standard library, in Python and as JSON.

So ``diagnose`` needs no other package. Unknown keys, wrong types and words outside a vocabulary
are refused in one line. As fields of pydantic models, which plans and records are, they are
checked alike.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
        cls: Any = type(self)
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
        shape: Known = _read(cls, value, "")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return shape


def as_dict(shape: Any) -> dict[str, Any]:
    """A shape as JSON holds it: dictionaries, lists, text, numbers."""
    columns = asdict(shape)
    order = sorted(fields(shape), key=lambda field: field.metadata.get("place", 0))
    return {field.name: columns[field.name] for field in order}


def to_json(shape: Any, indent: int | None = None) -> str:
    """A shape as JSON text: compact, or with ``indent`` spaces a level."""
    separators = (",", ":") if indent is None else None
    return json.dumps(
        as_dict(shape), indent=indent, ensure_ascii=False, separators=separators
    )


EXPECTED = {
    "missing": "expected {field!r} beside the other keys; add it",
    "extra_forbidden": "there is no such key; correct its name or leave it out",
    "unexpected_keyword_argument": "there is no such key; correct its name or leave it out",
    "dataclass_type": "expected keys with values (key: value)",
    "string_type": "expected text in quotes (a list only below grid)",
    "string_pattern_mismatch": "expected at most 100 letters (A to Z), digits, dots, dashes, underscores",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "finite_number": "expected a finite number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "list_type": "expected a list",
    "dict_type": "expected keys with values (key: value)",
    "model_type": "expected keys with values (key: value)",
    "literal_error": "expected one of {expected}",
    "too_short": "expected a list with at least {min_length} entry",
    "greater_than": "expected more than {gt:g}",
    "greater_than_equal": "expected {ge:g} or more",
    "less_than_equal": "expected {le:g} or less",
}
"""What is to be written instead, by pydantic's type of error."""
MOST_ERRORS = 3
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def one_line(error: Any, what: str) -> str:
    """What is wrong with an input that pydantic refused, in one line: where, what was seen, what
    was expected; of more than three the first three.
    """
    errors = error.errors(include_url=False)
    # A key that does not exist explains why another one is missing.
    errors.sort(key=lambda wrong: wrong["type"] not in UNKNOWN_KEY)
    said = "; also ".join(map(_wrong, errors[:MOST_ERRORS]))
    more = (
        f"; and {len(errors) - MOST_ERRORS} more" if len(errors) > MOST_ERRORS else ""
    )
    return ": ".join(filter(None, [what, said])) + more


def _wrong(error: Any) -> str:
    """One of pydantic's errors: where, what was seen, what was expected."""
    place = [str(part) for part in error["loc"]]
    seen = f"seen {cut(repr(error.get('input')), 60)}; "
    field = place[-1] if place else ""
    if error["type"] == "missing":
        place = place[:-1]
        seen = ""
    otherwise = error["msg"].replace("Value error, ", "", 1)
    words = {**error.get("ctx", {}), "field": field}
    expected = EXPECTED.get(error["type"], otherwise).format(**words)
    return ": ".join(filter(None, [".".join(place), f"{seen}{expected}"]))


@lru_cache(maxsize=None)
def _kinds(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_shape(value: object) -> bool:
    return hasattr(value, "__dataclass_fields__")


def _read(kind: Any, value: Any, where: str) -> Any:
    """The value as ``kind``, its lists and objects made; ``where`` is its path, for the error."""
    if _is_shape(kind):
        return value if isinstance(value, kind) else _read_shape(kind, value, where)
    origin = get_origin(kind)
    if origin is Union:
        return _read_union(kind, value, where)
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        return _read_list(kind, value, where)
    if not _is(kind, value):
        raise _unexpected(where, value, kind)
    return value


def _read_union(kind: Any, value: object, where: str) -> object:
    for option in get_args(kind):
        if _is_shape(option) and value is not None:
            return _read(option, value, where)
    if not any(_is(option, value) for option in get_args(kind)):
        raise _unexpected(where, value, kind)
    return value


def _read_list(kind: Any, value: list[Any] | tuple[Any, ...], where: str) -> Any:
    origin = get_origin(kind)
    kinds = get_args(kind)
    if origin is list or kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise _unexpected(where, value, kind)
    entries = []
    for place, entry_kind in enumerate(kinds):
        entries.append(_read(entry_kind, value[place], f"{where}.{place}"))
    return origin(entries) if origin else entries


def _is(kind: Any, value: object) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind if isinstance(kind, type) else False


def _read_shape(kind: Any, value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise _unexpected(where, value, kind)
    before = f"{where}." if where else ""
    kinds = _kinds(kind)
    names = [field.name for field in fields(kind)]
    for key in value:
        if key not in names:
            name = f"{before}{plain(str(key)[:60])}"
            raise ValueError(f"{name}: unknown key; expected {', '.join(names)}")
    for field in fields(kind):
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
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def _unexpected(where: str, value: object, kind: Any) -> ValueError:
    seen = repr(value[:60] if isinstance(value, (str, bytes)) else value)
    if len(seen) >= 64:
        seen = seen[:60] + "..."
    return ValueError(
        f"{where or 'the whole'}: seen {seen}; expected {_expected(kind)}"
    )


def _expected(kind: Any) -> str:
    """What values a kind has, in words."""
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if origin is Union:
        return " or ".join(map(_expected, get_args(kind)))
    if origin in (list, tuple):
        return "a list"
    return _IN_WORDS.get(kind, "an object")


_IN_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
