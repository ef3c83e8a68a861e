"""Expressions that make a large tensor, rewritten as others with the same result that do not."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product

import libcst as cst

from helpers.fix.change import Change, Changes, Results
from helpers.fix.expressions import Match, Place, places
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, keyword

FASTER = "nothing; it is faster"
OTHER_ORDER = "the same sums in another order"
LAYERS = {
    "Linear",
    "LayerNorm",
    "RMSNorm",
    "Embedding",
    "GELU",
    "ReLU",
    "LeakyReLU",
    "SiLU",
    "Tanh",
    "Sigmoid",
    "Dropout",
}
"""Layers of torch that compute each position (a row of the last dimension) by itself."""
LOWEST = re.compile(
    r"float\(['\"]-inf['\"]\)|-(torch|math|np)\.inf|-?1e\d+|-\d+\.0|.*finfo\(.+\)\.min"
)
"""How programs write the value that masks a score, so low that its softmax is 0."""
SHORT_FUNCTIONAL = re.compile(
    r"^import torch\.nn\.functional as F$|^from torch\.nn import functional as F$",
    re.MULTILINE,
)
"""An import by which ``F`` stands for torch.nn.functional."""


def always(_program: Program, _place: Place, _match: Match) -> bool:
    """``suits`` of a rule that holds wherever its pattern fits."""
    return True


@dataclass(frozen=True)
class RewriteRule:
    """An expression that fits ``pattern`` becomes ``template`` where ``suits`` says so, with the
    same results up to rounding. Capital letters stand for any expression (see expressions.py).
    ``aim``: the title of the change, in the imperative; ``why``: why its results are the same.
    """

    aim: str
    pattern: str
    template: str
    suits: Callable[[Program, Place, Match], bool] = always
    why: str = OTHER_ORDER


def _differences() -> Iterator[RewriteRule]:
    """All rows of one matrix minus all rows of another, where the program reads only distances."""
    aim = "Compute distances without storing all differences"
    # Two matrices A and B whose rows meet each other, and the last dimension of their difference
    # as a positive number; it may be written as -1, too. The last pair fits what the others fit.
    pairs = (
        ("A[:, None]", "B[None]", 2),
        ("A[:, :, None]", "B[:, None]", 3),  # batches of matrices
        ("A[..., None, :]", "B[..., None, :, :]", -1),  # any number of dimensions
        ("A[:, None]", "B", 2),
    )
    for rows, columns, last in pairs:
        for first, second in ((rows, columns), (columns, rows)):
            for dim in (-1, last):
                for pattern, template in _distances(first, second, dim).items():
                    yield RewriteRule(aim, pattern, template)


def _distances(first: str, second: str, dim: int) -> dict[str, str]:
    """The ways to write distances (or products, or cosines) of ``first`` and ``second`` along a
    dimension, each with an expression of the matrices A and B that computes the same.
    """
    difference = f"({first} - {second})"
    return {
        f"({difference} ** 2).sum({dim}).sqrt()": "torch.cdist(A, B)",
        f"{difference}.norm({dim})": "torch.cdist(A, B)",
        f"{difference}.norm(2, {dim})": "torch.cdist(A, B)",
        f"({difference} ** 2).sum({dim})": "torch.cdist(A, B) ** 2",
        f"({difference} ** 2).mean({dim})": "torch.cdist(A, B) ** 2 / A.shape[-1]",
        f"{difference}.abs().sum({dim})": "torch.cdist(A, B, p=1)",
        f"{difference}.norm(1, {dim})": "torch.cdist(A, B, p=1)",
        f"({first} * {second}).sum({dim})": "A @ B.mT",
        f"cosine_similarity({first}, {second}, {dim})": (
            "F.normalize(A, dim=-1) @ F.normalize(B, dim=-1).mT"
        ),
        f"pairwise_distance({first}, {second})": "torch.cdist(A, B)",
    }


def _attentions() -> Iterator[RewriteRule]:
    """Attention that a program computes step by step: scores, mask, softmax, dropout, product."""
    # By how each step is written (``{}``: the result of the one before), the argument of
    # scaled_dot_product_attention that does it: scale, attn_mask, dropout_p.
    scores = {"Q @ K.mT * S": "S", "Q @ K.mT / S": "1.0 / S", "Q @ K.mT": "1.0"}
    masks = {
        "{}": "",
        "{}.masked_fill(~M, N)": "M",
        "{}.masked_fill(M == 0, N)": "M != 0",
        "{}.masked_fill(M, N)": "~M",
        "where(M, {}, N)": "M",
        "{} + M": "M",
    }
    # Each mask may also be put on under a condition C.
    for mask, attends in list(masks.items()):
        if attends:
            masks[f"({mask} if C else {{}})"] = f"{attends} if C else None"
    weights = (
        "{}.softmax(-1)",
        "{}.softmax(-1, dtype=D)",
        "{}.softmax(-1, dtype=D).to(E)",
    )
    drops = {
        "{} @ V": "",
        "dropout({}, P, training=T) @ V": "P if T else 0.0",
        "L({}) @ V": "L.p if L.training else 0.0",
    }
    for (score, scale), (mask, attends), weight, (drop, rate) in product(
        scores.items(), masks.items(), weights, drops.items()
    ):
        masked = mask.replace("{}", f"({score})")
        words = ["Q", "K", "V"]
        if attends:
            words.append(f"attn_mask={attends}")
        if rate:
            words.append(f"dropout_p={rate}")
        words.append(f"scale={scale}")
        yield RewriteRule(
            aim="Compute attention without storing its matrix of scores",
            pattern=drop.format(weight.format(f"({masked})")),
            template=f"F.scaled_dot_product_attention({', '.join(words)})",
            suits=_is_attention,
        )


def _is_attention(program: Program, place: Place, match: Match) -> bool:
    """Whether masked scores (N) get a value so low that their weights are 0, and the layer (L) to
    which the weights go, if there is one, is a Dropout.
    """
    if "N" in match.letters and not LOWEST.fullmatch(place.text(match, "N")):
        return False
    if "L" not in match.letters:
        return True
    return _is_a(program, place.text(match, "L"), {"Dropout"})


def _narrowed() -> Iterator[RewriteRule]:
    """A layer that computes each position by itself, applied only to the positions that are read."""
    for ending in ("", ".float()", ".softmax(-1)", ".log_softmax(-1)", ".argmax(-1)"):
        yield RewriteRule(
            aim="Apply the layer only where its result is read",
            pattern=f"L(X){ending}[I]",
            template=f"L(X[I]){ending}",
            suits=_reads_positions,
            why="each position is computed by itself",
        )


def _reads_positions(program: Program, place: Place, match: Match) -> bool:
    """Whether an index (I) chooses whole positions, and the layer (L) computes each by itself."""
    index, _ = match.letters["I"]
    parts = [index]
    if isinstance(index, ast.Tuple):
        parts = index.elts
    words = {ast.unparse(part) for part in parts}
    # Of batch, position and feature the index names at most the first two.
    leaves_last = len(parts) <= 2 and not words & {"None", "..."}
    return leaves_last and _is_a(program, place.text(match, "L"), LAYERS)


def _is_a(program: Program, name: str, kinds: set[str]) -> bool:
    """Whether a module of the program is of one of these classes, or a Sequential of such modules."""
    classes = program.classes_of(name) - {"Sequential"}
    return bool(classes) and classes <= kinds


REWRITES: Sequence[RewriteRule] = tuple(
    dict.fromkeys(chain(_attentions(), _differences(), _narrowed()))
)
"""All rules, each once: some ways to write distances give the same rule."""


def rewritten_expressions(program: Program) -> Changes:
    """A change for each expression that a rule fits, first those on lines that hold the most
    memory.
    """
    changes: list[Change] = []
    holding = program.names_of_holding_places()
    for source in program.sources:
        # Lines of which an expression was rewritten; ``places`` gives the outer ones first.
        rewritten: set[int] = set()
        for place in places(source):
            if place.line in rewritten:
                continue
            change = next(_rewrites_of(program, place), None)
            if change is not None:
                rewritten.add(place.line)
                changes.append(change)
    yield from unread_attention_weights(program)
    changes.sort(key=lambda change: not any(line in change.title for line in holding))
    yield from changes


def _rewrites_of(program: Program, place: Place) -> Changes:
    """The rules that fit an expression, each as a change."""
    functional = "torch.nn.functional."
    if SHORT_FUNCTIONAL.search(place.source.content):
        functional = "F."
    for rewrite in REWRITES:
        match = place.match(rewrite.pattern)
        if match is None or not rewrite.suits(program, place, match):
            continue
        template = re.sub(r"\bF\.", functional, rewrite.template)
        where = place.source.place_of(match.first_line(place.line))
        yield Change(
            title=f"{rewrite.aim} ({where})",
            results=Results.ROUNDED,
            why=rewrite.why,
            costs=FASTER,
            edits=place.rewritten(match, template),
            only_if_measured=True,
        )


def unread_attention_weights(program: Program) -> Changes:
    """need_weights=False where the program reads only the first result of nn.MultiheadAttention:
    one change of all calls that have a query, a key and a value, and a name such as ``self.attn``.
    """
    if not program.mentions("MultiheadAttention"):
        return
    edits = []
    lines = []
    for source, call in program.find(cst.Call):
        name = source.code(call.func)
        is_attention = re.search("attn|attention", name, re.IGNORECASE)
        has_inputs = len(call.args) >= 3  # query, key and value
        if not is_attention or not has_inputs or keyword(call, "need_weights"):
            continue
        if _leaves_second_result(source, call):
            edits.append(source.with_argument(call, "need_weights", "False"))
            lines.append(source.place(call))
    if edits:
        yield Change(
            title=f"Do not return weights of attention that nobody reads ({', '.join(lines)})",
            results=Results.ROUNDED,
            why=OTHER_ORDER,
            costs=FASTER,
            edits=tuple(edits),
        )


def _leaves_second_result(source: SourceFile, call: cst.Call) -> bool:
    """Whether the second of two results of a call is not read: ``attention(x, x, x)[0]``, or
    ``y, weights = attention(x, x, x)`` where the function names ``weights`` nowhere else.
    """
    outer = source.parent(call)
    if isinstance(outer, cst.Subscript):
        return source.code(outer).endswith("[0]")
    if not isinstance(outer, cst.Assign):
        return False
    target = outer.targets[0].target
    if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
        return False
    second = source.code(target.elements[1].value)
    names = [name.value for name in source.find(cst.Name, source.scope(call))]
    return second == "_" or names.count(second) == 1
