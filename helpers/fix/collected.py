"""Changes of collections that a program fills without end: what they can let go of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.change import NOTHING, Change, Changes, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called
from helpers.fix.stores import PUTS, StoreStatement, last_name, stores_of

MOST_CACHED = 4
"""Entries that a cache keeps when it is limited: fewer than the turns that a loop makes where both
programs are compared (MOST_TURNS in under_torch/on_cpu.py), so that there entries leave it, too.
"""
UNBOUNDED = re.compile(
    r"(functools\.|)(cache|lru_cache(\(\)|\((maxsize=)?(None|\d{2,})\))?)"
)
"""Decorators of functions that keep all their results, or at least ten: lru_cache without a number
keeps 128. A program that asks for fewer than ten has thought of it.
"""
LAST = re.compile(r"\[-(\d+):?\]")
"""An index that reads the last entry, or the last few: [-1] or [-10:]."""
NEW_LISTS = ("sorted", "list", "reversed")
"""Functions that give the entries of a list in a new one."""
EMPTIES = ("reset", "clear", "restart", "flush")
"""Methods by which objects forget what they collected."""
EPOCH_ENDS = re.compile(r"on_(train|validation|test|predict)_epoch_end")
"""Methods that Lightning calls at the end of an epoch."""


def changes_of_collections(
    program: Program, stores: Sequence[StoreStatement]
) -> Changes:
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
    title: str, why: str, *edits: TextEdit, costs: str = NOTHING
) -> Change:
    """A change of what the program may read as late as at its end: its results count as the same
    only where both programs were compared to their ends.
    """
    return Change(
        title=title,
        results=Results.SAME,
        why=why,
        costs=costs,
        edits=edits,
        only_if_measured=True,
        shows_late=True,
    )


def _shortened_lists(program: Program, store: StoreStatement) -> Changes:
    """Statements such as ``sorted(best)[:3]``, whose shorter list is thrown away: use it."""
    for source, statement in program.find(cst.Expr):
        value = statement.value
        unshortened = _unshortened(value)
        name = source.code(unshortened)
        is_of_store = last_name(name) == last_name(store.name)
        # ``is value``: the statement does not shorten a list at all.
        if unshortened is value or not is_of_store:
            continue
        text = source.code(value)
        yield _if_measured(
            f"Use the result of {text}, which is thrown away ({source.place(statement)})",
            "the program then reads the result, as was probably meant",
            source.replaced(value, f"{name}[:] = {text}"),
        )


def _unshortened(value: cst.BaseExpression) -> cst.BaseExpression:
    """The list that an expression copies a part of, or sorts: ``best`` of ``sorted(best)[:3]``."""
    if isinstance(value, cst.Subscript) and isinstance(value.slice[0].slice, cst.Slice):
        value = value.value
    while isinstance(value, cst.Call) and called(value) in NEW_LISTS and value.args:
        value = value.args[0].value
    return value


def _emptied_by_their_methods(program: Program, store: StoreStatement) -> Changes:
    """Objects with a method such as reset() that the program never calls: called before the loop in
    which another of their methods fills them.
    """
    owner = store.source.around(store.statement, cst.ClassDef)
    filling = store.source.around(store.statement, cst.FunctionDef)
    if owner is None or filling is None:
        return
    for name in _unused_ways_to_empty(program, store, owner):
        for source, call in program.calls(filling.name.value):
            loop = source.around(call, cst.For)
            if loop is None or not isinstance(call.func, cst.Attribute):
                continue
            collector = source.code(call.func.value)
            yield _if_measured(
                f"Empty {collector} before it is filled again ({source.place(loop)})",
                "what was collected before no longer counts, as was probably meant",
                source.lines_before(loop, f"{collector}.{name}()"),
            )


def _unused_ways_to_empty(
    program: Program, store: StoreStatement, owner: cst.ClassDef
) -> Iterator[str]:
    """The methods of a class that empty a collection, and that nobody outside the class calls."""
    for method in store.source.find(cst.FunctionDef, owner):
        name = method.name.value
        names_collection = last_name(store.name) in store.source.code(method)
        callers = [source.code(call.func) for source, call in program.calls(name)]
        only_itself = all(caller.startswith("self.") for caller in callers)
        if name in EMPTIES and names_collection and only_itself:
            yield name


def _last_entries(program: Program, store: StoreStatement) -> Changes:
    """Lists of which only the last entries are read, as ``losses[-10:]``: keep no others. All such
    lists of a function at once, since their entries often hold each other.
    """
    count = _entries_read(program, store)
    if not count:
        return
    source = store.source
    scope = source.scope(store.statement)
    names = []
    edits = []
    for statement in source.find(cst.SimpleStatementLine, scope):
        for other in stores_of(source, statement):
            if _entries_read(program, other) == count:
                names.append(other.name)
                edits.append(
                    source.lines_after(statement, f"del {other.name}[:-{count}]")
                )
    entries = "entry" if count == 1 else f"{count} entries"
    yield _if_measured(
        f"Keep only the last {entries} of {' and '.join(names)} ({store.place})",
        "the program reads no other entry",
        *edits,
    )


def _entries_read(program: Program, store: StoreStatement) -> int:
    """How many of its last entries a list has to keep: as many as the program reads by LAST. 0
    where it reads others, or none.
    """
    if store.method != "append":
        return 0
    count = 0
    for read in _reads(program, store):
        match = LAST.fullmatch(read)
        if match is None:
            return 0
        count = max(count, int(match[1]))
    return count


def _reads(program: Program, store: StoreStatement) -> set[str]:
    """By which indices a collection is read, such as "[-1]"; "all" where it is read without one."""
    reads = set()
    for source, name in program.find(cst.Name):
        if name.value != last_name(store.name):
            continue
        node: cst.CSTNode = name
        outer = source.parent(node)
        if isinstance(outer, cst.Attribute) and outer.attr is node:
            node = outer  # of self.losses the whole, not only the name
            outer = source.parent(node)
        # To put something into the collection, or to assign it, is no read.
        is_put = isinstance(outer, cst.Attribute) and outer.attr.value in PUTS
        is_assigned = source.around(node, cst.AssignTarget) is not None
        if is_put or is_assigned:
            continue
        if isinstance(outer, cst.Subscript):
            reads.add(source.code(outer).removeprefix(source.code(node)))
        else:
            reads.add("all")
    return reads


def _bounded_dictionaries(program: Program, store: StoreStatement) -> Changes:
    """A dictionary that keeps its last few entries: a cache, which makes an entry where it is
    missing, or one to which each turn of a loop adds the only entry that the turn reads.
    """
    if store.item is None:
        return
    source = store.source
    lines = (
        f"while len({store.name}) >= {MOST_CACHED}:",
        f"    del {store.name}[next(iter({store.name}))]",
    )
    edit = source.lines_before(store.statement, *lines)
    if _is_cache(store):
        yield _limited(store.name, store.place, edit)
        return
    loop = source.around(store.statement, cst.For)
    if loop is None:
        return
    index = f"[{source.code(loop.target)}]"
    is_of_turn = source.code(store.item) == f"{store.name}{index}"
    if is_of_turn and _reads(program, store) <= {index}:
        yield _if_measured(
            f"Keep only the last {MOST_CACHED} entries of {store.name} ({store.place})",
            f"the program reads only {source.code(store.item)}",
            edit,
        )


def _is_cache(store: StoreStatement) -> bool:
    """Whether an entry is only made where a condition says that it is missing, by ``not in`` the
    collection or ``is None``.
    """
    test = store.source.around(store.statement, cst.If)
    if test is None:
        return False
    missing = rf"not in {re.escape(store.name)}\b|is None"
    return re.search(missing, store.source.code(test.test)) is not None


def _bounded_caches(program: Program) -> Changes:
    """Functions whose decorator keeps all their results: it keeps a few."""
    for source, decorator in program.find(cst.Decorator):
        match = UNBOUNDED.fullmatch(source.code(decorator.decorator))
        function = source.around(decorator, cst.FunctionDef)
        if match is None or function is None:
            continue
        module = match[1]  # "functools." or empty
        bounded = f"{module}lru_cache(maxsize={MOST_CACHED})"
        edits = [source.replaced(decorator.decorator, bounded)]
        if match[0] == "cache":  # imported by that name, so lru_cache may not be
            edits += source.with_import("from functools import lru_cache")
        yield _limited(f"of {function.name.value}", source.place(decorator), *edits)


def _limited(cache: str, place: str, *edits: TextEdit) -> Change:
    """A cache that keeps a few entries; ``cache``: what it is called in the title."""
    return _if_measured(
        f"Limit the cache {cache} to its last {MOST_CACHED} entries ({place})",
        "a missing entry is computed again",
        *edits,
        costs="entries that left the cache are computed again when they are needed",
    )


def _parts_let_go(program: Program, store: StoreStatement) -> Changes:
    """Collected objects of a class of the program, without some of their attributes: those that
    the class's own methods set to the result of a call, and that no code outside the class reads.
    """
    source = store.source
    collected = source.code(store.value)
    for owner in _classes_of(source, collected):
        read_outside = _read_outside(program, source, owner)
        unread = sorted(_set_inside(source, owner) - read_outside)
        if not unread:
            continue
        parts = " and ".join(unread)
        lines = [f"{collected}.{part} = None" for part in unread]
        yield Change(
            title=f"Drop {parts} from what {store.name} collects ({store.place})",
            results=Results.OTHER,
            why=f"whatever else keeps such an object loses {parts}, too",
            costs=f"no {parts} of an earlier entry can be used or saved later",
            edits=(source.lines_after(store.statement, *lines),),
        )


def _classes_of(source: SourceFile, name: str) -> Iterator[cst.ClassDef]:
    """The classes of a file whose objects it assigns to a name."""
    values = [
        row.value for row in source.find(cst.Assign) if source.target(row) == name
    ]
    for value in values:
        for owner in source.find(cst.ClassDef):
            if isinstance(value, cst.Call) and called(value) == owner.name.value:
                yield owner


def _cleared_after_epochs(store: StoreStatement) -> Changes:
    """A collection that the steps of a Lightning module fill, cleared at the end of each method
    that Lightning calls at the end of an epoch and that names the collection.
    """
    source = store.source
    owner = source.around(store.statement, cst.ClassDef)
    if owner is None:
        return
    for method in source.find(cst.FunctionDef, owner):
        names_collection = store.name in source.code(method)
        if names_collection and EPOCH_ENDS.fullmatch(method.name.value):
            last = method.body.body[-1]
            yield Change(
                title=f"Clear {store.name} at the end of each epoch ({source.place(last)})",
                results=Results.OTHER,
                why="results of earlier epochs no longer count, as was probably meant",
                edits=(source.lines_after(last, f"{store.name}.clear()"),),
            )


def _set_inside(source: SourceFile, owner: cst.ClassDef) -> set[str]:
    """Attributes that a class's own methods set to what a call returns."""
    names = set()
    for assign in source.find(cst.Assign, owner):
        first, _, name = source.target(assign).partition(".")
        if first == "self" and name and isinstance(assign.value, cst.Call):
            names.add(name)
    return names


def _read_outside(
    program: Program, source: SourceFile, owner: cst.ClassDef
) -> set[str]:
    """Attributes that the sources read outside the class itself."""
    inside = {id(node) for node in source.find(cst.Attribute, owner)}
    return {
        node.attr.value
        for _, node in program.find(cst.Attribute)
        if id(node) not in inside
    }


def _gradients_let_go(program: Program) -> Changes:
    """zero_grad(set_to_none=False), which keeps the gradients between steps: free them."""
    for source, call in program.calls("zero_grad"):
        if source.argument(call, "set_to_none") == "False":
            yield Change(
                title=f"Free the gradients between steps ({source.place(call)})",
                results=Results.SAME,
                why="the optimizer skips weights without a gradient",
                edits=(source.with_argument(call, "set_to_none", "True"),),
                only_if_measured=True,
            )


def _earlier_groups(program: Program) -> Changes:
    """An optimizer that gets new weights in every iteration: it forgets the earlier ones. Its first
    group, with which it was made, stays.
    """
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
