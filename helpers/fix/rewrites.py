"""Expressions that make a large tensor, as others that come to the same result without it."""

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
LAYERS = set(
    "Linear LayerNorm RMSNorm Embedding GELU ReLU LeakyReLU SiLU Tanh Sigmoid Dropout".split()
)
"""Layers that compute each position by itself."""
LOWEST = re.compile(
    r"float\(['\"]-inf['\"]\)|-(torch|math|np)\.inf|-?1e\d+|-\d+\.0|.*finfo\(.+\)\.min"
)
"""What masks a score."""
SHORT_FUNCTIONAL = re.compile(
    r"^import torch\.nn\.functional as F$|^from torch\.nn import functional as F$",
    re.MULTILINE,
)


def always(_: Program, __: Place, ___: Match) -> bool:
    """For a rule that holds wherever its pattern fits."""
    return True


@dataclass(frozen=True)
class RewriteRule:
    """``pattern`` replaced by ``template``, with the same results up to rounding, where ``suits``.
    ``aim``: in the imperative.
    """

    aim: str
    pattern: str
    template: str
    suits: Callable[[Program, Place, Match], bool] = always
    why: str = OTHER_ORDER


def _differences() -> Iterator[RewriteRule]:
    """All rows of one matrix minus all rows of another, of which only a distance is read."""
    aim = "Compute distances without storing all differences"
    pairs = (
        ("A[:, None]", "B[None]", 2),
        ("A[:, :, None]", "B[:, None]", 3),
        ("A[..., None, :]", "B[..., None, :, :]", -1),
        ("A[:, None]", "B", 2),
    )
    for rows, columns, last in pairs:
        for first, second in ((rows, columns), (columns, rows)):
            for dim in (-1, last):
                for pattern, template in _distances(first, second, dim).items():
                    yield RewriteRule(aim, pattern, template)


def _distances(first: str, second: str, dim: int) -> dict[str, str]:
    """How distances of ``first`` and ``second`` along a dimension are written, each with what
    computes them from the matrices A and B.
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
    """Attention that is written out with its scores."""
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
    for mask, wanted in list(masks.items())[1:]:
        masks[f"({mask} if C else {{}})"] = f"{wanted} if C else None"
    weights = (
        "{}.softmax(-1)",
        "{}.softmax(-1, dtype=D)",
        "{}.softmax(-1, dtype=D).to(E)",
    )
    drops = {"{} @ V": "", "dropout({}, P, training=T) @ V": "P if T else 0.0"}
    drops |= {"L({}) @ V": "L.p if L.training else 0.0"}
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
    """Whether masked scores get the lowest value that there is, and the layer behind the weights, if
    there is one, is a Dropout.
    """
    if "N" in match.letters and not LOWEST.fullmatch(place.text(match, "N")):
        return False
    if "L" not in match.letters:
        return True
    return _is_a(program, place.text(match, "L"), {"Dropout"})


def _narrowed() -> Iterator[RewriteRule]:
    """A layer that computes each position by itself, applied only where its result is read."""
    for behind in ("", ".float()", ".softmax(-1)", ".log_softmax(-1)", ".argmax(-1)"):
        yield RewriteRule(
            aim="Apply the layer only where its result is read",
            pattern=f"L(X){behind}[I]",
            template=f"L(X[I]){behind}",
            suits=_reads_positions,
            why="each position is computed by itself",
        )


def _reads_positions(program: Program, place: Place, match: Match) -> bool:
    """Whether an index leaves the last dimension as it is, and the layer computes that alone."""
    index, _ = match.letters["I"]
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    leaves_last = len(parts) <= 2 and not {"None", "..."} & set(map(ast.unparse, parts))
    return leaves_last and _is_a(program, place.text(match, "L"), LAYERS)


def _is_a(program: Program, name: str, kinds: set[str]) -> bool:
    """Whether a module of the program is of one of these kinds, or a row of such modules."""
    classes = program.classes_of(name) - {"Sequential"}
    return bool(classes) and classes <= kinds


REWRITES: Sequence[RewriteRule] = tuple(
    dict.fromkeys(chain(_attentions(), _differences(), _narrowed()))
)
"""Each once: some are spelled alike."""


def rewritten_expressions(program: Program) -> Changes:
    """Each expression that a rewrite fits, those first that lead to what holds the memory."""
    changes: list[Change] = []
    at_work = program.names_of_holding_places()
    for source in program.sources:
        rewritten: set[int] = set()
        for place in places(source):
            if place.line in rewritten:
                continue
            change = next(_rewrites_of(program, place), None)
            if change is not None:
                rewritten.add(place.line)
                changes.append(change)
    yield from unread_attention_weights(program)
    changes.sort(key=lambda change: not any(where in change.title for where in at_work))
    yield from changes


def _rewrites_of(program: Program, place: Place) -> Changes:
    """The rewrites that fit an expression, each as a change."""
    functional = "torch.nn.functional."
    if SHORT_FUNCTIONAL.search(place.source.content):
        functional = "F."
    for rewrite in REWRITES:
        match = place.match(rewrite.pattern)
        if match is None or not rewrite.suits(program, place, match):
            continue
        template = re.sub(r"\bF\.", functional, rewrite.template)
        yield Change(
            title=f"{rewrite.aim} ({place.source.place_of(match.first_line(place.line))})",
            results=Results.ROUNDED,
            why=rewrite.why,
            costs=FASTER,
            edits=place.rewritten(match, template),
            only_if_measured=True,
        )


def unread_attention_weights(program: Program) -> Changes:
    """need_weights=False where nobody reads the second result of nn.MultiheadAttention."""
    if not program.mentions("MultiheadAttention"):
        return
    edits = []
    lines = []
    for source, call in program.find(cst.Call):
        is_attention = re.search(
            "attn|attention", source.code(call.func), re.IGNORECASE
        )
        if not is_attention or len(call.args) < 3 or keyword(call, "need_weights"):
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
    """``y, _ = attention(x, x, x)`` where nobody reads the second name, or ``[0]`` behind it."""
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
