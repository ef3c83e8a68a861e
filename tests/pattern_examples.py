"""Texts that a regular expression fits, made from the expression itself: one for each of its alternatives."""

import random
import re._constants as sre
import re._parser as parser
import string

CHARS = string.ascii_letters + string.digits
ALL = CHARS + "_-.:/+@ =,"


def examples(pattern, flags=0, seed=1):
    """Texts of a pattern, at least as many as its longest choice has alternatives, each alternative in one of them.

    What looks around itself is left out, so a text has to be tried against the pattern that it was made from.
    """
    rng = random.Random(seed)
    tree = parser.parse(pattern, flags)
    for turn in range(_most(tree)):
        groups = {}
        yield _text(tree, turn, rng, groups)


def _most(tree):
    """How many alternatives the longest choice within a tree has, those within an alternative counted with it."""
    most = 1
    for op, arg in tree:
        if op is sre.BRANCH:
            most = max(most, len(arg[1]) * max(map(_most, arg[1])))
        elif op is sre.SUBPATTERN:
            most = max(most, _most(arg[-1]))
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            most = max(most, _most(arg[2]) * (2 if arg[0] == 0 else 1))
    return most


def _text(tree, turn, rng, groups):
    return "".join(_piece(op, arg, turn, rng, groups) for op, arg in tree)


def _piece(op, arg, turn, rng, groups):
    if op is sre.LITERAL:
        return chr(arg)
    if op is sre.NOT_LITERAL:
        return rng.choice([c for c in CHARS if ord(c) != arg])
    if op is sre.ANY:
        return rng.choice(CHARS)
    if op is sre.IN:
        return rng.choice(_members(arg))
    if op is sre.BRANCH:
        ways = arg[1]
        return _text(ways[turn % len(ways)], turn // len(ways), rng, groups)
    if op is sre.SUBPATTERN:
        groups[arg[0]] = _text(arg[-1], turn, rng, groups)
        return groups[arg[0]]
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        least, most, inner = arg
        if least == 0:
            times, turn = (turn % 2, turn // 2) if _most(inner) > 1 else (rng.randint(0, 1), turn)
        else:
            times = min(most, least + rng.randint(0, 6) if most is not sre.MAXREPEAT else least + 6)
        return "".join(_text(inner, turn, rng, groups) for _ in range(times))
    if op is sre.GROUPREF:
        return groups.get(arg, "")
    return ""


def _members(items):
    negated = items[0][0] is sre.NEGATE
    inside = set()
    for op, arg in items:
        if op is sre.LITERAL:
            inside.add(chr(arg))
        elif op is sre.RANGE:
            inside |= {chr(n) for n in range(arg[0], min(arg[1], 0x17F) + 1)}
        elif op is sre.CATEGORY:
            inside |= {
                sre.CATEGORY_DIGIT: set(string.digits),
                sre.CATEGORY_WORD: set(CHARS + "_"),
                sre.CATEGORY_SPACE: {" "},
                sre.CATEGORY_NOT_SPACE: set(CHARS),
                sre.CATEGORY_NOT_DIGIT: set(string.ascii_letters),
                sre.CATEGORY_NOT_WORD: {" "},
            }[arg]
    if negated:
        inside = set(CHARS) - inside or set(ALL) - inside
    # Any of the letters and digits where there are some: what is random looks so.
    return sorted(inside & set(CHARS) or inside)
