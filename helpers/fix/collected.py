"""Collections that a program fills and hardly reads: what they can drop with the same results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from helpers.fix.change import NOTHING, Change, Edit, Results
from helpers.fix.program import Program
from helpers.fix.source import Source, called, keyword
from helpers.fix.stores import JOINS, PUTS, Store, is_number, joins, last_name, stores_of

MOST_CACHED = 4
ADDS = ("append", "add", "put", "appendleft")
HARMLESS = {"clone", "cpu", "detach", "dict", "item", "list", "mean", "sum", "tuple"}
"""Calls in what is collected that need not be made where nobody reads it."""
ASKS_BY_KEY = re.compile(r"\[\w+\]|\.")
LAST_FEW = re.compile(r"\[-(\d+|[A-Z_]+):?\]")
UNBOUNDED = re.compile(r"(functools\.|)(cache|lru_cache(\(\)|\((maxsize=)?(None|\d{2,})\))?)")
"""Decorators of functions whose results are all kept, or many."""


def changes_of_collections(program: Program, stores: Sequence[Store]) -> Iterator[Change]:
    """Changes that keep what the program reads again, and let go of the rest."""
    yield from _only_the_last(program, stores)
    yield from _bounded_caches(program, stores)
    yield from _only_the_present(program, stores)
    yield from _unread_keys(program)
    yield from _parts_let_go(program, stores)
    yield from _gradients_let_go(program)
    yield from _earlier_groups(program)


def _only_the_last(program: Program, stores: Sequence[Store]) -> Iterator[Change]:
    """Lists of which only the last entries are read: keep no others. With all lists of which only
    the very last is read and that are filled in the same function, since their entries often hold
    each other.
    """
    for store in stores:
        ways = _reads(program, store.name)
        is_joined = isinstance(store.value, cst.Call) and called(store.value) in JOINS
        if store.method not in ADDS and not is_joined:
            continue
        if ways == {"[-1]"} and not is_joined:
            yield _kept_alone(store, _alike(program, store))
        else:
            yield from _last_few(program, store, ways)


def unread_entries(program: Program, stores: Sequence[Store]) -> Iterator[Change]:
    """Collections of which nobody reads an entry: nothing is put there, or only None to be counted."""
    for store in stores:
        ways = _reads(program, store.name)
        if store.method in ADDS and ways <= {"len"}:
            yield _unread(store, is_counted=bool(ways))


def _unread(store: Store, *, is_counted: bool) -> Change:
    source = store.source
    value = source.code(store.value)
    calls = {called(call) for call in source.find(cst.Call, store.value)}
    text = value if calls - HARMLESS else "pass"
    if is_counted:
        text = f"{store.name}.{store.method}(None)"
    return Change(
        title=f"Do not keep {value} in {store.name}, where nobody reads it ({store.place})",
        results=Results.SAME,
        why="the program reads no entry of it",
        edits=(source.replaced(store.statement.body[0], text),),
        only_if_measured=True,
        shows_late=True,
    )


def last_entries(program: Program, stores: Sequence[Store]) -> Iterator[Change]:
    """Lists whose reads cannot be told from the sources, of which some read a last entry: keep that
    one, if both programs are measured to do the same to their ends.
    """
    for store in stores:
        if store.method == "append" and program.mentions(r"\[-1\]"):
            yield _kept_alone(store, [store])


def _alike(program: Program, store: Store) -> list[Store]:
    """The lists of the same function of which only the last entry is read."""
    source = store.source
    function = source.around(store.statement, cst.FunctionDef) or source.module
    alike: list[Store] = []
    for statement in source.find(cst.SimpleStatementLine, function):
        for other in stores_of(source, statement):
            if other.method == "append" and _reads(program, other.name) == {"[-1]"}:
                alike.append(other)
    return alike


def _kept_alone(store: Store, alike: Sequence[Store]) -> Change:
    """The last entry of lists in place of all; ``store``: the one that grew."""
    source = store.source
    names = " and ".join(other.name for other in alike)
    return Change(
        title=f"Keep only the last entry of {names} ({store.place})",
        results=Results.SAME,
        why="the program reads no other entry",
        edits=tuple(
            source.replaced(
                other.statement.body[0], f"{other.name}[:] = [{source.code(other.value)}]"
            )
            for other in alike
        ),
        only_if_measured=True,
        shows_late=True,
    )


def _last_few(program: Program, store: Store, ways: set[str]) -> Iterator[Change]:
    """A list or a deque of which only the last few entries are read."""
    matches = [LAST_FEW.fullmatch(way) for way in ways]
    numbers = {match[1] for match in matches if match and match[1] != "1"}
    if not numbers or not all(matches) or len(numbers) != 1 and not all(map(str.isdigit, numbers)):
        return
    most = max(numbers, key=lambda number: int(number) if number.isdigit() else 0)
    source = store.source
    deques = [
        (other, call)
        for other, call in program.calls("deque")
        if last_name(other.code(other.statement(call)).split(" = ")[0]) == last_name(store.name)
    ]
    edits = [other.with_argument(call, "maxlen", most) for other, call in deques]
    if not store.method:
        edits = [source.after(store.value, f"[-{most}:]")]
    elif not edits:
        edits = [source.lines_after(store.statement, f"del {store.name}[:-{most}]")]
    yield Change(
        title=f"Keep only the last {most} entries of {store.name} ({store.place})",
        results=Results.SAME,
        why="the program reads no other entry",
        edits=tuple(edits),
    )


def _reads(program: Program, collection: str) -> set[str]:
    """How the program reads a collection: each index, such as "[-1]", "len", or "all"."""
    name = last_name(collection)
    ways = set()
    for source, node in program.find(cst.Name):
        if node.value == name:
            ways.add(_way(source, node))
    return ways - {""}


def _way(source: Source, name: cst.Name) -> str:
    """How a collection is used where its name is written; empty where it is only filled."""
    node: cst.CSTNode = name
    outer = source.parent(node)
    if isinstance(outer, cst.Attribute) and outer.attr is node:
        node, outer = outer, source.parent(outer)
    function = source.parent(outer) if isinstance(outer, cst.Arg) else None
    if isinstance(function, cst.Call) and called(function) in ("list", "tuple"):
        node, outer = function, source.parent(function)
    if isinstance(outer, cst.Subscript):
        is_filled = isinstance(source.parent(outer), (cst.AssignTarget, cst.Del))
        return "" if is_filled else source.code(outer).removeprefix(source.code(node))
    assign = source.around(node, cst.Assign)
    if assign is not None and joins(source, assign):
        return ""
    if isinstance(outer, cst.ComparisonTarget):
        return ".in"
    if isinstance(outer, cst.Attribute) and outer.attr.value in ("get", "pop"):
        return f".{outer.attr.value}"
    is_filled = isinstance(outer, cst.Attribute) and outer.attr.value in (*PUTS, "clear")
    is_made = source.around(node, cst.AssignTarget) is not None
    names_it = isinstance(outer, cst.Param) and outer.name is node
    is_annotated = isinstance(outer, cst.AnnAssign) and outer.target is node
    declares = is_annotated or isinstance(outer, cst.NameItem)
    if is_filled or is_made or names_it or declares:
        return ""
    if isinstance(function, cst.Call) and called(function) == "len":
        return _way_of_length(source, function)
    if isinstance(outer, (cst.If, cst.IfExp, cst.Not)):
        return "[-1]"
    return "all"


def _way_of_length(source: Source, length: cst.Call) -> str:
    """Of a comparison with a number, that more entries than it matter; else "len"."""
    outer = source.parent(length)
    if isinstance(outer, cst.Arg):
        outer = source.parent(outer)
    is_limited = isinstance(outer, cst.Comparison) or source.code(outer).startswith("min(")
    numbers = [number.evaluated_value for number in source.find(cst.Integer, outer)]
    if is_limited and len(numbers) == 1:
        return f"[-{numbers[0] + 1}:]"
    return "len"


def _instances(source: Source, owner: cst.ClassDef) -> set[str]:
    """Names that are assigned an object of a class."""
    names = set()
    for assign in source.find(cst.Assign):
        value = assign.value
        if isinstance(value, cst.Call) and called(value) == owner.name.value:
            names.add(source.code(assign.targets[0].target))
    return names


def _unread_keys(program: Program) -> Iterator[Change]:
    """Entries of dictionaries that are collected or returned, whose keys nobody else names."""
    literals = Counter(string.evaluated_value for _, string in program.find(cst.SimpleString))
    edits = []
    keys = []
    for source, display in program.find(cst.Dict):
        unread = [
            element
            for element in display.elements
            if isinstance(element, cst.DictElement)
            and isinstance(element.key, cst.SimpleString)
            and literals[element.key.evaluated_value] == 1
            and not is_number(source, element.value)
        ]
        kept = [element for element in display.elements if element not in unread]
        if unread and kept:
            parts = [source.code(element).rstrip(" ,") for element in kept]
            edits.append(source.replaced(display, f"{{{', '.join(parts)}}}"))
            keys += [source.code(element.key) for element in unread]
    if keys:
        yield Change(
            title=f"Leave out the entries {', '.join(keys)}, which nobody reads",
            results=Results.SAME,
            why="the program names these keys nowhere else",
            costs="these entries cannot be used later",
            edits=tuple(edits),
            only_if_measured=True,
            shows_late=True,
        )


def _parts_let_go(program: Program, stores: Sequence[Store]) -> Iterator[Change]:
    """Objects of a class of the program that are collected: let go of the attributes that nobody
    reads once an object is put away.
    """
    for store in stores:
        if not isinstance(store.value, cst.Name):
            continue
        source = store.source
        for owner in source.find(cst.ClassDef):
            names = _instances(source, owner)
            unread = sorted(_attributes(source, owner) - _read_outside(program, source, owner))
            later = source.text.decode().splitlines()[source.line(store.statement) :]
            used_later = re.search(
                rf"\b{store.value.value}\b\.(?!{'|'.join(unread)})\w+\(", "\n".join(later)
            )
            if store.value.value not in names or not unread or used_later:
                continue
            lines = [f"{store.value.value}.{name} = None" for name in unread]
            parts = " and ".join(unread)
            also_kept = _other_names(source, store)
            results = Results.SAME
            why = "the program never reads them again"
            if also_kept:
                results = Results.OTHER
                why = f"{' and '.join(also_kept)} would lose {parts}, too"
            yield Change(
                title=f"Drop {parts} from what {store.name} collects ({store.place})",
                results=results,
                why=why,
                costs=f"no {parts} of an earlier entry can be used or saved later",
                edits=(source.lines_after(store.statement, *lines),),
            )


def _other_names(source: Source, store: Store) -> list[str]:
    """Names that are given what a store puts away."""
    return [
        source.code(assign.targets[0].target)
        for assign in source.find(cst.Assign)
        if source.code(assign.value) == source.code(store.value)
        and source.statement(assign) is not store.statement
    ]


def _attributes(source: Source, owner: cst.ClassDef) -> set[str]:
    """Attributes that a class's own methods set to what a call makes."""
    names = set()
    for assign in source.find(cst.Assign, owner):
        target = source.code(assign.targets[0].target)
        if target.startswith("self.") and source.find(cst.Call, assign.value):
            names.add(target.removeprefix("self."))
    return {name for name in names if name.isidentifier() and name not in SMALL}


SMALL = ("score", "loss", "name", "params", "number", "result", "metrics")


def _read_outside(program: Program, source: Source, owner: cst.ClassDef) -> set[str]:
    """Attributes that are read anywhere but in the class itself."""
    inside = {id(node) for node in source.find(cst.Attribute, owner)}
    names = set()
    for _, node in program.find(cst.Attribute):
        if id(node) not in inside:
            names.add(node.attr.value)
    return names


def _gradients_let_go(program: Program) -> Iterator[Change]:
    """Gradients that are kept between the steps, and graphs that are kept for their own sake."""
    for source, call in program.calls("zero_"):
        match = re.fullmatch(r"(.+\.grad)(\.data)?\.zero_", source.code(call.func))
        if match and isinstance(source.parent(call), cst.Expr):
            title = f"Free the gradient between steps ({source.place(call)})"
            yield _freed(title, source.replaced(call, f"{match[1]} = None"))
    for source, call in program.calls("backward", "grad"):
        for name in ("create_graph", "retain_graph"):
            if keyword(call, name):
                yield Change(
                    title=f"Let go of the graph ({name}, {source.place(call)})",
                    results=Results.SAME,
                    why="no backward pass goes through it again",
                    edits=(source.with_argument(call, name, "False"),),
                    only_if_measured=True,
                )
    for source, call in program.calls("zero_grad"):
        argument = keyword(call, "set_to_none")
        if argument is not None and source.code(argument.value) == "False":
            title = f"Free the gradients between steps ({source.place(call)})"
            yield _freed(title, source.replaced(argument.value, "True"))


def _freed(title: str, edit: Edit) -> Change:
    return Change(
        title=title,
        results=Results.SAME,
        why="the optimizer skips weights without a gradient",
        edits=(edit,),
        only_if_measured=True,
    )


def _bounded_caches(program: Program, stores: Sequence[Store]) -> Iterator[Change]:
    """A dictionary whose entries are made where they are missing, or are asked for by their keys
    alone: keep a few.
    """
    for store in stores:
        source = store.source
        if store.item is None:
            continue
        test = source.around(store.statement, cst.If)
        asks = source.code(test.test) if test else ""
        is_cache = re.search(rf"not in {re.escape(store.name)}\b|is None", asks)
        is_added_to = any(
            re.search(rf"{re.escape(store.name)}\[[^\]]*\]\s*[-+*/@|&]+=", other.text.decode())
            for other in program.sources
        )
        is_asked_by_key = all(ASKS_BY_KEY.match(way) for way in _reads(program, store.name))
        if is_added_to or not (is_cache or is_asked_by_key):
            continue
        lines = (
            f"while len({store.name}) >= {MOST_CACHED}:",
            f"    del {store.name}[next(iter({store.name}))]",
        )
        name = f"{store.name} to its last {MOST_CACHED} entries"
        limited = _limited_cache(name, store.place, [source.lines_before(store.statement, *lines)])
        if not is_cache:
            why = "an entry that left is missing where it is asked for again"
            limited = replace(limited, results=Results.OTHER, why=why, costs=NOTHING)
        yield limited
    for source, decorator in program.find(cst.Decorator):
        match = UNBOUNDED.fullmatch(source.code(decorator.decorator))
        if match is None:
            continue
        edits = [
            source.replaced(decorator.decorator, f"{match[1]}lru_cache(maxsize={MOST_CACHED})")
        ]
        if match[0] == "cache":
            edits += source.with_import("from functools import lru_cache")
        function = source.around(decorator, cst.FunctionDef)
        name = f"of {function.name.value}" if function else "of a function"
        yield _limited_cache(name, source.place(decorator), edits)


def _limited_cache(cache: str, place: str, edits: Sequence[Edit]) -> Change:
    return Change(
        title=f"Limit the cache {cache} ({place})",
        results=Results.SAME,
        why="a missing entry is computed again",
        costs="entries that left the cache are computed again when they are needed",
        edits=tuple(edits),
        only_if_measured=True,
        shows_late=True,
    )


def _only_the_present(program: Program, stores: Sequence[Store]) -> Iterator[Change]:
    """A dictionary with an entry for each turn of a loop, of which only the present turn's is
    read: forget the others.
    """
    for store in stores:
        source = store.source
        if store.item is None:
            continue
        loop = source.around(store.statement, cst.For)
        key = source.code(store.item).removeprefix(store.name)
        if loop is None or source.code(loop.target) != key.strip("[]"):
            continue
        if _reads(program, store.name) - {key}:
            continue
        yield Change(
            title=f"Keep only the current entry of {store.name} ({store.place})",
            results=Results.SAME,
            why=f"the program reads only {store.name}{key}",
            edits=(source.lines_before(store.statement, f"{store.name}.clear()"),),
        )


def _earlier_groups(program: Program) -> Iterator[Change]:
    """Weights that an optimizer gets in every turn: it forgets those of the turn before."""
    for source, call in program.calls("add_param_group"):
        optimizer = source.code(call.func).removesuffix(".add_param_group")
        lines = (
            f"for earlier in {optimizer}.param_groups[1:]:",
            '    for weight in earlier["params"]:',
            f"        {optimizer}.state.pop(weight, None)",
            f"del {optimizer}.param_groups[1:]",
        )
        yield Change(
            title=f"Forget the weights that {optimizer} was given before ({source.place(call)})",
            results=Results.SAME,
            why="the program no longer uses them",
            edits=(source.lines_before(source.statement(call), *lines),),
            only_if_measured=True,
        )
