"""Collections that a program fills without end: what they can drop with the same results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.change import Change, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called, keyword
from helpers.fix.stores import PUTS, StoreStatement, last_name, stores_of

MOST_CACHED = 4
UNBOUNDED = re.compile(
    r"(functools\.|)(cache|lru_cache(\(\)|\((maxsize=)?(None|\d{2,})\))?)"
)
"""Decorators of functions whose results are all kept, or many."""
LAST = re.compile(r"\[-(\d+):?\]")
NEW_LISTS = ("sorted", "list", "reversed")
EMPTIES = ("reset", "clear", "restart", "flush")
"""Methods by which objects forget what they collected."""
EPOCH_ENDS = re.compile(r"on_(train|validation|test|predict)_epoch_end")
"""Methods that Lightning calls at the end of an epoch."""


def changes_of_collections(
    program: Program, stores: Sequence[StoreStatement]
) -> Iterator[Change]:
    """Changes that keep what the program reads again, and let go of the rest."""
    for store in stores:
        yield from _shortened_lists(program, store)
        yield from _emptied_by_their_methods(program, store)
        yield from _last_entries(program, store)
        yield from _bounded_dictionaries(program, store)
    yield from _bounded_caches(program)
    for store in stores:
        yield from _parts_let_go(program, store)
        yield from _cleared_after_epochs(store)
    yield from _gradients_let_go(program)
    yield from _earlier_groups(program)


def _if_measured(
    title: str, why: str, *edits: TextEdit, costs: str = "nothing"
) -> Change:
    """A change of what may be read until the end: the same only where that was measured."""
    return Change(
        title=title,
        results=Results.SAME,
        why=why,
        costs=costs,
        edits=edits,
        only_if_measured=True,
        shows_late=True,
    )


def _shortened_lists(program: Program, store: StoreStatement) -> Iterator[Change]:
    """Statements that compute a shorter list for nobody, such as ``sorted(best)[:3]``: use it."""
    for source, statement in program.find(cst.Expr):
        value = statement.value
        inner = value
        if isinstance(value, cst.Subscript) and isinstance(
            value.slice[0].slice, cst.Slice
        ):
            inner = value.value
        while isinstance(inner, cst.Call) and called(inner) in NEW_LISTS and inner.args:
            inner = inner.args[0].value
        name = source.code(inner)
        if inner is not value and last_name(name) == last_name(store.name):
            text = source.code(value)
            yield _if_measured(
                f"Use the result of {text}, which is thrown away ({source.place(statement)})",
                "the program then reads the result, as was probably meant",
                source.replaced(value, f"{name}[:] = {text}"),
            )


def _emptied_by_their_methods(
    program: Program, store: StoreStatement
) -> Iterator[Change]:
    """Objects that could forget what they collected and are never told to: told before the loop
    that fills them.
    """
    owner = store.source.around(store.statement, cst.ClassDef)
    fills = store.source.around(store.statement, cst.FunctionDef)
    if owner is None or fills is None:
        return
    for method in store.source.find(cst.FunctionDef, owner):
        name = method.name.value
        if name not in EMPTIES or last_name(store.name) not in store.source.code(
            method
        ):
            continue
        if any(
            not user.code(call.func).startswith("self.")
            for user, call in program.calls(name)
        ):
            continue
        for source, call in program.calls(fills.name.value):
            loop = source.around(call, cst.For)
            if loop is None or not isinstance(call.func, cst.Attribute):
                continue
            collector = source.code(call.func.value)
            yield _if_measured(
                f"Empty {collector} before it is filled again ({source.place(loop)})",
                "what was collected before no longer counts, as was probably meant",
                source.lines_before(loop, f"{collector}.{name}()"),
            )


def _last_entries(program: Program, store: StoreStatement) -> Iterator[Change]:
    """Lists of which last entries are read, as ``losses[-10:]``: keep no others. With all such
    lists of the same function, since their entries often hold each other.
    """
    count = _entries_read(program, store)
    if not count:
        return
    source = store.source
    function = source.around(store.statement, cst.FunctionDef) or source.module
    alike: list[StoreStatement] = []
    for statement in source.find(cst.SimpleStatementLine, function):
        alike += [
            other for other in stores_of(source, statement) if other.method == "append"
        ]
    alike = [other for other in alike if _entries_read(program, other) == count]
    names = " and ".join(other.name for other in alike)
    entries = "entry" if count == 1 else f"{count} entries"
    yield _if_measured(
        f"Keep only the last {entries} of {names} ({store.place})",
        "the program reads no other entry",
        *(
            source.lines_after(other.statement, f"del {other.name}[:-{count}]")
            for other in alike
        ),
    )


def _entries_read(program: Program, store: StoreStatement) -> int:
    """How many of the last entries of a list are read, where no others are; else 0."""
    if store.method != "append":
        return 0
    matches = [LAST.fullmatch(read) for read in _reads(program, store)]
    numbers = [int(match[1]) for match in matches if match]
    return max(numbers) if numbers and len(numbers) == len(matches) else 0


def _reads(program: Program, store: StoreStatement) -> set[str]:
    """What stands behind the name of a collection wherever it is read, such as "[-1]"; for other
    reads than by an index "all".
    """
    reads = set()
    for source, name in program.find(cst.Name):
        if name.value != last_name(store.name):
            continue
        node: cst.CSTNode = name
        outer = source.parent(node)
        if isinstance(outer, cst.Attribute) and outer.attr is node:
            node, outer = outer, source.parent(outer)
        is_put = isinstance(outer, cst.Attribute) and outer.attr.value in PUTS
        if is_put or source.around(node, cst.AssignTarget) is not None:
            continue
        is_index = isinstance(outer, cst.Subscript)
        reads.add(
            source.code(outer).removeprefix(source.code(node)) if is_index else "all"
        )
    return reads


def _bounded_dictionaries(program: Program, store: StoreStatement) -> Iterator[Change]:
    """A dictionary whose entries are made where they are missing, or one in each iteration of a
    loop that reads no other: keep a few.
    """
    if store.item is None:
        return
    source = store.source
    test = source.around(store.statement, cst.If)
    asks = source.code(test.test) if test else ""
    loop = source.around(store.statement, cst.For)
    counter = source.code(loop.target) if loop else ""
    is_cache = re.search(rf"not in {re.escape(store.name)}\b|is None", asks)
    is_of_iteration = source.code(store.item) == f"{store.name}[{counter}]"
    lines = (
        f"while len({store.name}) >= {MOST_CACHED}:",
        f"    del {store.name}[next(iter({store.name}))]",
    )
    edit = source.lines_before(store.statement, *lines)
    if is_cache:
        yield _limited(store.name, store.place, edit)
    elif is_of_iteration and _reads(program, store) <= {f"[{counter}]"}:
        yield _if_measured(
            f"Keep only the last {MOST_CACHED} entries of {store.name} ({store.place})",
            f"the program reads only {source.code(store.item)}",
            edit,
        )


def _bounded_caches(program: Program) -> Iterator[Change]:
    """Functions whose results are all kept: keep a few."""
    for source, decorator in program.find(cst.Decorator):
        match = UNBOUNDED.fullmatch(source.code(decorator.decorator))
        function = source.around(decorator, cst.FunctionDef)
        if match is None or function is None:
            continue
        bounded = f"{match[1]}lru_cache(maxsize={MOST_CACHED})"
        edits = [source.replaced(decorator.decorator, bounded)]
        if match[0] == "cache":
            edits += source.with_import("from functools import lru_cache")
        yield _limited(f"of {function.name.value}", source.place(decorator), *edits)


def _limited(cache: str, place: str, *edits: TextEdit) -> Change:
    return _if_measured(
        f"Limit the cache {cache} to its last {MOST_CACHED} entries ({place})",
        "a missing entry is computed again",
        *edits,
        costs="entries that left the cache are computed again when they are needed",
    )


def _parts_let_go(program: Program, store: StoreStatement) -> Iterator[Change]:
    """Objects of a class of the program that are collected: let go of what its methods made and
    nobody outside reads.
    """
    source = store.source
    for assign in source.find(cst.Assign):
        value = assign.value
        if source.code(assign.targets[0].target) != source.code(store.value):
            continue
        for owner in source.find(cst.ClassDef):
            is_made = isinstance(value, cst.Call) and called(value) == owner.name.value
            unread = sorted(
                _made_inside(source, owner) - _read_outside(program, source, owner)
            )
            if not is_made or not unread:
                continue
            parts = " and ".join(unread)
            lines = [f"{source.code(store.value)}.{part} = None" for part in unread]
            yield Change(
                title=f"Drop {parts} from what {store.name} collects ({store.place})",
                results=Results.OTHER,
                why=f"whatever else keeps such an object loses {parts}, too",
                costs=f"no {parts} of an earlier entry can be used or saved later",
                edits=(source.lines_after(store.statement, *lines),),
            )


def _cleared_after_epochs(store: StoreStatement) -> Iterator[Change]:
    """What a step of Lightning collects, cleared where its epoch ends."""
    source = store.source
    owner = source.around(store.statement, cst.ClassDef)
    for method in source.find(cst.FunctionDef, owner) if owner else ():
        if EPOCH_ENDS.fullmatch(method.name.value) and store.name in source.code(
            method
        ):
            last = method.body.body[-1]
            yield Change(
                title=f"Clear {store.name} at the end of each epoch ({source.place(last)})",
                results=Results.OTHER,
                why="results of earlier epochs no longer count, as was probably meant",
                edits=(source.lines_after(last, f"{store.name}.clear()"),),
            )


def _made_inside(source: SourceFile, owner: cst.ClassDef) -> set[str]:
    """Attributes that a class's own methods set to what a call makes."""
    names = {
        source.code(assign.targets[0].target)
        for assign in source.find(cst.Assign, owner)
        if isinstance(assign.value, cst.Call)
    }
    return {name.removeprefix("self.") for name in names if name.startswith("self.")}


def _read_outside(
    program: Program, source: SourceFile, owner: cst.ClassDef
) -> set[str]:
    """Attributes that are read anywhere but in the class itself."""
    inside = {id(node) for node in source.find(cst.Attribute, owner)}
    return {
        node.attr.value
        for _, node in program.find(cst.Attribute)
        if id(node) not in inside
    }


def _gradients_let_go(program: Program) -> Iterator[Change]:
    """Gradients that are kept between the steps."""
    for source, call in program.calls("zero_grad"):
        argument = keyword(call, "set_to_none")
        if argument is not None and source.code(argument.value) == "False":
            yield Change(
                title=f"Free the gradients between steps ({source.place(call)})",
                results=Results.SAME,
                why="the optimizer skips weights without a gradient",
                edits=(source.replaced(argument.value, "True"),),
                only_if_measured=True,
            )


def _earlier_groups(program: Program) -> Iterator[Change]:
    """Weights that an optimizer gets in every iteration: it forgets those of the one before."""
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
