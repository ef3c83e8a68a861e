"""What if a line of the program were changed: the requests of that line made otherwise, so that
a replay answers.

``train.py:82 / 8`` and the like. A line's requests are those asked for while it ran, whatever
it called; what a library keeps for good after its first call (a workspace) is left as it is.
What no trace can tell (when a tensor is last used, what is computed from it) follows from the
rules of ``VERBS``, which are said beside the answer.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from helpers.allocator.capacity import asked_again, prepared
from helpers.allocator.driver import Card
from helpers.allocator.engine import replay
from helpers.allocator.lines import Requests, with_lines
from helpers.allocator.trace import Op, Trace, own_line
from helpers.ground.replays import LineEdit

VERBS = {
    "/": "in {n} chunks, one at a time: what is computed from it with as many values and its gradients are as small, and what the "
    "backward pass needs of it is made again there; a smaller result is there as a whole",
    "free-earlier": "freed before the line after the one that uses it; what autograd keeps stays",
    "checkpoint": "what it keeps for the backward pass is freed and made again there, its output stays",
    "offload": "what it keeps is copied to the host, and brought back before the backward pass frees it",
    "dtype bf16": "two bytes a value in place of four, its gradients too; a cast beside the original is not counted",
    "drop": "never asked for; where the line only keeps what one above asked for, it does not keep it",
}
"""What an edit assumes."""
KEEPS = ("drop", "offload", "free-earlier")
"""Edits of a line that asks for nothing itself, but keeps what the line above it asked for."""
_FORM = re.compile(
    r"([^\s:]+\.py):(\d+)\s*(?:/\s*(\d+)|(free-earlier|checkpoint|offload|drop|dtype\s+(?:bf16|fp16)))\s*"
)
LARGE = 1 << 16
NEAR = 64
"""Bytes from which what is computed from a request is looked for, and among how many requests
around it.
"""
BELOW = 8
"""So many lines below one that asks for something may keep it."""
HELD = 0.02
MOST_LINES = 8
CHUNKS = (2, 3, 4, 6, 8, 12, 16)
MANY = 1 << 10
OPTIMIZER = re.compile("torch/optim/").match
CONTAINER = "torch/nn/modules/container.py"
CALL = "_call_impl"
NEVER_KEPT = ("torch/nn/modules/linear.py", "torch/nn/modules/conv.py")
"""Modules that keep what they are given for the backward pass, and not what they give."""
KEPT = ("torch/optim/", "torch/nn/modules/module.py:")
"""Frames of what makes an optimizer's state and moves weights (``to``; a call of a module ends
in ``_call_impl``).
"""


@dataclass(frozen=True)
class Edit:
    """One change: ``verb`` a key of VERBS; ``n`` of "/"."""

    file: str
    line: int
    verb: str
    n: int = 1

    @property
    def words(self) -> str:
        return f"{self.file}:{self.line} {self.verb}" + f" {self.n}" * (self.verb == "/")

    def runs(self, frame: str) -> bool:
        """Whether that frame is this line."""
        return f"/{self.file}:{self.line} " in f"/{frame} "

    @property
    def assumes(self) -> str:
        return VERBS[self.verb].format(n=self.n)


@dataclass(frozen=True, eq=False)
class Edited:
    """The trace after an edit: how many requests are made otherwise, their bytes, and bytes
    asked for again (recomputed, brought back).
    """

    trace: Trace
    changed: int
    taken: int
    added: int


def parse(text: str) -> Edit:
    """The edit in words such as "train.py:82 / 8". Raises ValueError in one line."""
    found = _FORM.fullmatch(text.strip())
    if not found or (found[3] and not 2 <= int(found[3]) <= 4096):
        forms = ", ".join(verb.replace("/", "/ 8") for verb in VERBS)
        raise ValueError(f"--edit {text!r}: expected FILE.py:LINE and one of: {forms}")
    verb = re.sub(r"dtype.*", "dtype bf16", found[4] or "/")
    return Edit(found[1].rpartition("/")[2], int(found[2]), verb, int(found[3] or 1))


def edited(trace: Trace, edit: Edit, known: Requests | None = None) -> Edited:
    """The trace as the edited program would ask.

    Raises ValueError where the line asks for nothing, LinesError for a trace without lines of
    the program. ``known``: its requests, where they were read before.
    """
    asked = known or with_lines(asked_again(trace)[0])
    which = of_line(asked, edit)
    if not which.any():
        places = {asked.sites[at] for at in set(asked.site[~asked.backward].tolist())}
        own = sorted((s for s in places if s.own), key=lambda site: abs(site.line - edit.line))
        above = [s for s in own if 0 < edit.line - s.line <= BELOW and s.file.endswith(edit.file)]
        of = [replace(edit, line=s.line, verb="release") for s in above if edit.verb in KEEPS]
        found = next(((one, k) for one in of if (k := _kept(asked, one)).any()), None)
        if found is None:
            says = f"expected one such as {', '.join(f'{s.file}:{s.line}' for s in own[:3])}"
            raise ValueError(f"--edit {edit.words}: that line asks for nothing; {says}")
        edit, which = found
    return _Change(asked, edit, which).done()


def of_line(asked: Requests, edit: Edit) -> np.ndarray:
    """The requests asked for while that line ran, as a mask; not those of a backward pass."""
    return _under(asked, edit.runs) & ~asked.backward


def _under(asked: Requests, is_one: Callable[[str], Any]) -> np.ndarray:
    """The requests asked for below such a frame, as a mask."""
    hit = [any(map(is_one, stack)) for stack in asked.trace.frames]
    return np.array([*hit, False])[asked.stack]


def _kept(asked: Requests, edit: Edit) -> np.ndarray:
    """Of the requests of a line several that are there to the end, which is what a line below
    it may keep.
    """
    which = of_line(asked, edit) & ~_under(asked, OPTIMIZER)
    to_end = asked.until > asked.at.max(initial=0)  # what a program frees at its own end, too
    which &= to_end & ~_workspaces(asked, which)
    return which & (which.sum() > 1)


def _workspaces(asked: Requests, which: np.ndarray) -> np.ndarray:
    """What a library keeps for good after its first call: alone of its stack never freed,
    though later ones are.
    """
    stacks = asked.stack
    never = asked.until >= len(asked.trace)
    freed = np.flatnonzero(which & ~never)
    last = np.full(len(asked.trace.frames) + 1, -1)
    np.maximum.at(last, stacks[freed], freed)
    kept = which & never & (np.arange(len(asked)) < last[stacks])
    return kept & (np.bincount(stacks[kept], minlength=len(last))[stacks] == 1)


def _period(tokens: list[Any]) -> int:
    """How long the shortest part is that a sequence repeats; its whole length where it repeats
    none.
    """
    count = len(tokens)
    parts = (each for each in range(1, count // 2 + 1) if count % each == 0)
    return next((each for each in parts if tokens[each:] == tokens[:-each]), count)


def _calls_on(frames: tuple[str, ...]) -> bool:
    """Whether a call goes through a line of the program or a module of torch that calls others,
    but containers.
    """
    calls = [at for at, one in enumerate(frames) if one.endswith("_call_impl")]
    made = (one for one in frames[: max(calls, default=0)] if not one.startswith(CONTAINER))
    return any(own_line(one) for one in frames) or any(one.endswith(" forward") for one in made)


class _Change:
    """One edit at work: requests that are made otherwise, and rows (operation, turn, op, id,
    request) that come instead.
    """

    def __init__(self, asked: Requests, edit: Edit, which: np.ndarray) -> None:
        self.asked = asked
        self.edit = edit
        self.all = np.flatnonzero(which).tolist()
        self.kept = _workspaces(asked, which)
        self.mine = np.flatnonzero(which & ~self.kept).tolist()
        self.of_id = np.full(asked.trace.ids + 1, -1)
        self.of_id[asked.id] = np.arange(len(asked))
        last = np.maximum(np.searchsorted(asked.at, asked.until) - 1, 0)
        self.spent = asked.backward[last] & (asked.until < len(asked.trace))
        """Freed in a backward pass: the request before was asked for by one."""
        self.back = np.flatnonzero(asked.backward)
        self.linear = _under(asked, lambda frame: frame.startswith(NEVER_KEPT[0]))
        self.smaller: set[int] = set()
        self.gone: set[int] = set()
        self.places: set[tuple[int, int]] = set()
        """Where in its run, and by what stack, what a checkpoint does not keep is asked for."""
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.next_id = asked.trace.ids
        self.added = 0

    def done(self) -> Edited:
        asked = self.asked
        verb = self.edit.verb
        if verb in ("/", "dtype bf16"):
            self._make_smaller()
        elif verb == "drop":
            self.gone = {*self.mine}
        elif verb == "checkpoint":
            for run in self._runs():
                self._checkpoint(run)
        else:
            work = {"free-earlier": self._free_earlier, "offload": self._put_away}
            work.get(verb, self._release)()
        changed = [*{*self.gone, *self.smaller}]
        return Edited(self._trace(), len(changed), int(asked.size[changed].sum()), self.added)

    # The edits.

    def _make_smaller(self) -> None:
        """With what is computed from it and its gradients.

        What the backward pass needs of chunks is made again there, and what they give on is
        there whole while the last of them is at work.
        """
        state = _under(self.asked, OPTIMIZER)
        if self.edit.verb == "/":
            for run in self._runs():
                self._put_together(run)
        for one in self.mine:
            if one in self.smaller or one in self.gone:
                continue
            members = self._derived(one)
            self.smaller.update(members)
            if self.asked.until[one] == len(self.asked.trace) and self.edit.verb != "/":
                self.smaller.update(self._of_weight(one, state))
            saved = [each for each in members if self.spent[each]]
            large = self.asked.size[one] >= LARGE  # smaller ones cannot be told from others
            if large and saved:
                self._chunks(members, saved)
            elif large and self.edit.verb == "/":
                self._unnamed(members)

    def _put_together(self, run: list[int]) -> None:
        """What a line gives on, less than half of its largest request, is of all chunks: there
        from the first of them on.
        """
        asked = self.asked
        last = run[-1]
        given = self._asked(last + 1) < asked.until[last]
        if given and LARGE <= asked.size[last] < asked.size[run].max() // 2:
            self._there(last, (int(asked.at[run[0]]), -3), (int(asked.until[last]), 0))

    def _unnamed(self, members: list[int]) -> None:
        """Chunks are not named by the program: what has one name, which the next takes over,
        goes when the chunk is done.
        """
        asked = self.asked
        last = members[-1]
        later = bisect_right(self.mine, last)
        following = self.mine[later : later + len(members) + 1]
        end = int(asked.at[following[-1]]) + NEAR if following and len(self.back) else 0
        for one in members:
            if self._asked(last + 1) < asked.until[one] <= end:
                self._moved(one, int(asked.at[last + 1]) + 1)

    def _derived(self, one: int) -> list[int]:
        """What is computed from a request with as many values: of its size or cast, one after
        another in the forward pass.
        """
        asked = self.asked
        members = [one]
        size = int(self.asked.size[one])
        for later in range(one + 1, min(one + NEAR, len(asked)) if size >= LARGE else one):
            like = asked.size[later] in (size, 2 * size, size // 2)
            if asked.backward[later] or (asked.size[later] >= size // 8 and not like):
                break
            members += [later] * bool(like)
        return members

    def _chunks(self, members: list[int], saved: list[int]) -> None:
        """What follows of a line made smaller: its gradients, and for chunks what comes twice."""
        asked = self.asked
        until = self.asked.until
        begin = self._done_after(members[-1], saved)
        end = int(until[saved].max())
        sizes = {int(asked.size[one]) * times // 2 for one in members for times in (1, 2, 4)}
        near = int(asked.at[: np.searchsorted(asked.at, end) + NEAR][-1])
        alike = [one for one in self._gradients(begin, near + 1) if self.spent[one]]
        alike = [one for one in alike if asked.size[one] in sizes]
        longest = np.maximum.accumulate(until[alike])
        chain = [one for one, most in zip(alike, longest, strict=True) if until[one] == most]
        end = max([end, *until[chain[: len(members)]].tolist()])
        back = [one for one in alike if until[one] <= end]
        self.smaller.update(back)
        # And what is needed only while such a gradient is there, to sum it up for a bias.
        for one in back:
            within = self._gradients(int(asked.at[one]), int(until[one]))
            self.smaller.update(each for each in within if until[each] < until[one])
        after = members[-1] + 1
        first = min([int(asked.at[one]) + 1 for one in back], default=end)
        place = self._step_of(min(first, int(until[saved].min())))
        done = self._asked(after) + 1
        if self.edit.verb != "/" or done > place:
            return
        for one in members:
            if until[one] > done:
                self._moved(one, done)
        self._again(members, saved, place)
        for one in self._before(members[0], place, end):
            self._moved(one, end)  # what a chunk is computed from is there for the last of them
        for one in self._gradients(place - 1, end):
            if one not in self.smaller and until[one] > end and asked.size[one] >= LARGE:
                self._whole(one, place, end)

    def _gradients(self, begin: int, end: int) -> list[int]:
        """What a backward pass asks for between two operations."""
        first, last = np.searchsorted(self.asked.at[self.back], (begin + 1, end))
        return self.back[first:last].tolist()

    def _before(self, one: int, place: int, end: int) -> list[int]:
        """What the forward pass asked for before a request and a backward pass frees between
        two operations.
        """
        near = slice(max(one - MANY, 0), one)
        until = self.asked.until[near]
        freed = self.spent[near] & ~self.asked.backward[near] & (until > place) & (until < end)
        return (np.flatnonzero(freed) + near.start).tolist()

    def _whole(self, one: int, place: int, end: int) -> None:
        """A gradient of all chunks: summed up, the last one's beside it, or put together at the
        end where it goes on.
        """
        until = int(self.asked.until[one])
        beside = end + 1 if self.spent[one] else int(self.asked.at[one])
        self._there(one, (place, -3), (until, 0))
        self._there(one, (beside, -1), (beside, -1))

    def _of_weight(self, one: int, state: np.ndarray) -> set[int]:
        """A weight's gradients and ``state`` (of optimizers): as large, in the order of such
        weights, gradients reversed.
        """
        asked = self.asked
        alike = asked.size == asked.size[one]
        stays = asked.until == len(asked.trace)
        first = int(asked.at[asked.backward].min(initial=len(asked.trace)))
        early = alike & stays & ~state & (asked.at < first)
        weights = np.flatnonzero(early & (asked.size >= LARGE))
        count = len(weights)
        at = int(np.searchsorted(weights, one))
        made = np.flatnonzero(alike & asked.backward & ~self.spent)
        kept = np.flatnonzero(alike & state & stays)
        each = len(kept) // max(count, 1)
        passes = range(count - 1 - at, len(made), max(count, 1))
        more = np.flatnonzero(alike & state & ~stays)[at :: max(count, 1)].tolist()
        return {*made[passes].tolist(), *kept[at * each : (at + 1) * each].tolist(), *more}

    def _free_earlier(self) -> None:
        asked = self.asked
        own = np.array([site.own for site in asked.sites])[asked.site]
        places = np.flatnonzero(own)
        begins = places[np.flatnonzero(np.diff(asked.site[places])) + 1]  # another line asks
        for one in self.mine:
            after = begins[np.searchsorted(begins, one, "right") :][1:2]
            end = int(asked.at[after[0]]) if len(after) else len(asked.trace)
            if end < asked.until[one] and not self.spent[one]:
                self._moved(one, end)

    def _put_away(self) -> None:
        """Freed once it was used, and there again before a backward pass frees it, like what
        the line was given and alone keeps; what it gives on stays.
        """
        asked = self.asked
        until = self.asked.until
        mine = {*self.mine}
        for run in self._runs():
            own = self._own(run) or [one for one in run if self.spent[one]]
            for one in (one for one in run if one in own or not self.spent[one]):
                over = len(asked) if one == run[-1] else run[-1] + 1
                self._away(one, min(self._used(one), self._asked(over)))
            first = int(asked.at[run[0]])
            done = int(until[own].max(initial=0))
            back = self._gradients(first, len(asked.trace))[:1]
            step = int(np.searchsorted(asked.at, done))
            while step + 1 < len(asked) and asked.at[step + 1] == asked.at[step] + 1:
                step += 1
            end = self._asked(step + 1)
            before = int(until[own].min(initial=done)) - 1
            given = self._before(run[0], before, done) or self._before(run[0], before, end + 1)
            for one in given:
                away = one not in self.gone and until[one] > first
                if away and not self._with_gradient(one, done):
                    # In a loop its name is taken over by what the line gives.
                    after = run[-1] + 1 if one in mine else back[0]
                    self._away(one, int(asked.at[after]))

    def _away(self, one: int, end: int) -> None:
        until = int(self.asked.until[one])
        if until > end:
            self._moved(one, end)
            if self.spent[one]:
                self._again([one], [one], self._step_of(until))

    def _release(self) -> None:
        """What a line keeps to the end goes with its name or its function, and after the
        backward pass through its line.
        """
        asked = self.asked
        until = self.asked.until
        outer = f" {asked.sites[asked.site[self.mine[0]]].function}"
        inside = _under(asked, lambda f: outer == " <module>" or f.endswith(outer))
        outside = np.flatnonzero(~inside & (asked.stack >= 0))
        for one, after in zip(self.mine, [*self.mine[1:], None], strict=True):
            ends = [] if after is None else [int(asked.at[after]) + 1]
            ends += asked.at[outside[np.searchsorted(outside, one) :][:1]].tolist()
            near = slice(max(one - NEAR, 0), one)
            beside = self.spent[near] & (asked.site[near] == asked.site[one])
            if ends:
                self._moved(one, int(max(min(ends), until[near][beside][-1:].sum())))

    def _checkpoint(self, run: list[int]) -> None:
        """What the line keeps is freed when it is done and made again when the backward pass
        comes to it. What it gives on stays, and so does what it was given, until then.
        """
        asked = self.asked
        until = self.asked.until
        end = self._asked(run[-1] + 1)
        own = self._own(run)
        self.places |= {(one - run[0], int(asked.stack[one])) for one in own}
        for one in run[:-1]:
            # The recording ends before it is needed again, or no backward pass comes to it.
            passed = self._gradients(end, int(until[one])) and not self.spent[one]
            alike = passed and (one - run[0], int(asked.stack[one])) in self.places
            if end < until[one] and (alike or until[one] == len(asked.trace)):
                self._moved(one, end)
        if not own:
            return
        place = self._step_of(min(int(until[one]) for one in own))
        if end >= place:
            return
        ends = {one: end for one in run} | self._passed_on(run) | {run[-1]: place}
        for one in own:
            # What the line gives on, and keeps itself, is there until what comes after it has
            # been gone back through.
            self._moved(one, ends[one])
        self._again([one for one in run if one <= own[-1]], own, place)
        done = min(place, end + 1)  # it has the name of what the line gives
        for given in range(run[0] - 1, max(run[0] - NEAR, -1), -1):
            if asked.site[given] != asked.site[run[0] - 1]:
                break
            if asked.at[run[0]] < until[given] < done and given not in self.gone:
                self._moved(given, max(int(until[one]) for one in own))

    def _passed_on(self, run: list[int]) -> dict[int, int]:
        """When what a call gives to the next of its expression or container goes: with that,
        both sides of a product after it.
        """
        calls = [(of, [*ones]) for of, ones in groupby(run, self._call)]
        ends = dict[int, int]()
        for (of, ones), (to, then), (_, begun) in zip(calls, calls[1:], calls[2:], strict=False):
            frees = self._used_up(then[-1])[0] * self.spent[then[-1]]
            for one in ones if of[0] == to[0] else ():
                ends[one] = int(self.asked.at[begun[0]]) + bool(frees == self._used_up(one)[0])
        return ends

    def _call(self, one: int) -> tuple[tuple[str, ...], str]:
        """The innermost stack of the program's own or a container's that asked for a request,
        and what that called.
        """
        frames = self.asked.trace.frames[self.asked.stack[one]]
        at = next((n for n, f in enumerate(frames) if own_line(f) or f.startswith(CONTAINER)), 0)
        called = (f for f in frames[:at][::-1] if not f.endswith("_call_impl"))
        outer = (f for f in frames[at + 1 :] if own_line(f))  # deep stacks lack some of torch's
        return (*frames[at : at + 1], *outer), next(called, "")

    def _own(self, run: list[int]) -> list[int]:
        """What the line itself keeps for the backward pass, not what comes after it.

        A backward pass goes through what was computed the other way round, so that is freed
        later; the line's last result where it goes with its own gradient.
        """
        until = self.asked.until
        held = [one for one in run if self.spent[one]]
        if not held:
            return []
        done = self._done_after(run[-1], held)
        own = [one for one in held if until[one] > done]
        last = next((one for one in run[::-1] if until[one] > self._asked(run[-1] + 1)), run[-1])
        itself = not self._call(last)[1].startswith(NEVER_KEPT) and self._with_gradient(last, done)
        return [one for one in own if not self._given(one, run) and (itself or one != last)]

    def _given(self, one: int, run: list[int]) -> bool:
        """Whether it is one of several results: its step uses up a gradient of a size that the
        run has not asked for since.
        """
        size = self.asked.size
        (step, used) = self._used_up(one)
        made = self._gradients(step - 1, int(self.asked.until[one]))
        most = max(size[used].tolist(), default=0)
        return bool(size[one] in size[made]) and most not in (0, *size[one : run[-1] + 1].tolist())

    def _used_up(self, one: int) -> tuple[int, list[int]]:
        """Where the step begins that frees a request, and the gradients that it uses up."""
        asked = self.asked
        end = int(self.asked.until[one])
        step = self._step_of(end)
        before = self._gradients(int(asked.at[one]), step)
        return step, [each for each in before if step <= asked.until[each] <= end]

    def _with_gradient(self, one: int, done: int) -> bool:
        """Whether a request goes in the step that uses up its own gradient, to which steps
        after ``done`` have added.
        """
        size = self.asked.size
        (step, used) = self._used_up(one)
        return all(size[one] in size[each] for each in (self._gradients(done, step), used))

    def _done_after(self, one: int, held: list[int]) -> int:
        """When the backward pass has come through all that was computed after a request: what
        it keeps of that is freed.
        """
        asked = self.asked
        ends = int(self.asked.until[held].max())
        least = int(self.asked.size[held].max()) // NEAR
        later = slice(one + 1, int(np.searchsorted(asked.at, ends)))
        until = asked.until[later]
        kept = self.spent[later] & ~asked.backward[later] & (asked.size[later] >= least)
        return int(until[kept & (until < ends)].max(initial=asked.at[one]))

    def _used(self, one: int) -> int:
        """When a request was used by what comes next: before the second request after it that
        is about as large.
        """
        asked = self.asked
        seen = 0
        for later in range(one + 1, min(one + NEAR, len(asked))):
            seen += bool(asked.size[later] * 8 >= asked.size[one])
            if seen == 2 or asked.backward[later]:
                return int(asked.at[later])
        return len(asked.trace)

    def _again(self, run: list[int], saved: list[int], place: int) -> None:
        """The requests of a run are asked for again before that operation, in their order; what
        was saved lives on.
        """
        asked = self.asked
        last = self.asked.at[run[-1]]
        steps = [(int(asked.at[one]), Op.ALLOC, one) for one in run]
        steps += [(min(int(asked.until[one]), int(last) + 1), Op.FREE, one) for one in run]
        ids = {one: self.next_id + at for at, one in enumerate(run)}
        self.next_id += len(run)
        for _, op, one in sorted(steps, key=lambda step: step[0]):
            if op == Op.ALLOC or one not in saved:
                self.rows.append((place, -1, op, ids[one], one))
        self.rows += [(self._let_go(one), 0, Op.FREE, ids[one], one) for one in saved]
        self.added += int(asked.size[run].sum())

    def _let_go(self, one: int) -> int:
        """When what a hook brought back goes: with the step's function, before a linear bias's
        gradient is summed up.
        """
        asked = self.asked
        until = int(self.asked.until[one])
        made = self._gradients(self._step_of(until) - 1, until)
        later = [each for each in made if asked.until[each] > until]
        last = later[2:]  # after the input's, the weight's
        return int(asked.at[last[-1]]) if self.linear[one + 1] and last else until

    def _moved(self, one: int, place: int) -> None:
        """The request is freed before that operation."""
        self._there(one, (int(self.asked.at[one]), 0), (place, -2))

    def _there(self, one: int, begin: tuple[int, int], end: tuple[int, int]) -> None:
        """In place of the request such a one between two operations, each with its turn."""
        self.gone.add(one)
        self.rows.append((*begin, Op.ALLOC, self.next_id, one))
        self.rows.append((*end, Op.FREE, self.next_id, one))
        self.next_id += 1

    # What the trace tells.

    def _asked(self, one: int) -> int:
        """The operation that asks for a request; behind the last of them the trace's end."""
        return int(self.asked.at[one]) if one < len(self.asked) else len(self.asked.trace)

    def _step_of(self, operation: int) -> int:
        """Where the backward step begins that frees something at that operation: the first of
        its requests in a row.
        """
        asked = self.asked
        one = int(np.searchsorted(asked.at, operation)) - 1
        while one > 0 and asked.backward[one - 1] and asked.at[one - 1] == asked.at[one] - 1:
            one -= 1
        return int(asked.at[one])

    def _runs(self) -> Iterator[list[int]]:
        """The requests of each time that the line ran: neighbours, cut where they repeat; where
        they do not, a new run where what the line calls is at its first line again after
        another. What it calls is of torch: where the first stack comes again.
        """
        stack = self.asked.stack
        called = [self._called(one) for one in self.asked.trace.frames]
        loops = [not name or name.startswith(CONTAINER) for name in called]
        own = [own_line(name) for name in called]
        for near in np.split(self.all, np.flatnonzero(np.diff(self.all) != 1) + 1):
            mine = [one for one in near.tolist() if not self.kept[one]]
            length = self._repeats(mine)
            run = list[int]()
            for one in mine:
                first, last, here = (stack[e] for e in ((run or mine)[0], (run or mine)[-1], one))
                again = called[here] == called[first] != called[last]
                again |= not (loops[here] or own[here]) and here == first != last
                if run and (len(run) == length if length else again):
                    yield run
                    run = []
                run.append(one)
            yield from [run] * bool(run)

    def _repeats(self, run: list[int]) -> int:
        """How many requests a line asks for each time, where neighbours repeat; 0 where they do
        not. No stack tells the next call from a loop within one: all of one line further in
        is such a loop, unless no single call would be so (of layers of torch alone, of
        unequal sizes or two of a kind in a row).
        """
        asked = self.asked
        frames = self.asked.trace.frames
        stacks = asked.stack[run].tolist()
        sizes = asked.size[run].tolist()
        kinds = _period(stacks)
        length = _period(list(zip(stacks, sizes, strict=True)))
        if kinds == len(run):
            return 0
        below = [self._below(frames[one]) for one in stacks]
        shared = len(os.path.commonprefix(below))
        if not any(own_line(one) or one.endswith(" forward") for one in below[0][:shared]):
            return kinds if kinds > 1 else length
        ends = length > 1 and stacks[0] == stacks[length - 1]
        alone = not any(_calls_on(names[shared:]) for names in below)
        return length if alone and (ends or len({*sizes[:length]}) > 1) else len(run)

    def _below(self, frames: tuple[str, ...]) -> tuple[str, ...]:
        """What a stack holds below the edited line, outermost first.

        Of deep ones torch's are left out but its calls of modules: two of them in a row have
        one between, which is taken for a container.
        """
        names = list[str]()
        for name in frames[: self._line(frames)][::-1]:
            call = name.endswith(" _call_impl")
            names += [CONTAINER + " forward"] * (call and bool(names) and names[-1] == CALL)
            names += [] if name.endswith("_wrapped_call_impl") else [CALL if call else name]
        return tuple(CONTAINER + " forward" if n.startswith(CONTAINER) else n for n in names)

    def _line(self, frames: tuple[str, ...]) -> int:
        """Where the edited line is in a stack; 0 for nowhere."""
        return next((at for at, one in enumerate(frames) if self.edit.runs(one)), 0)

    def _called(self, frames: tuple[str, ...]) -> str:
        """The frame that the edited line called, past those by which torch calls a module; ""
        for none.
        """
        return next((one for one in self._below(frames) if one != CALL), "")

    def _trace(self) -> Trace:
        trace = self.asked.trace
        asked = self.asked
        sizes = trace.size.copy()
        smaller = asked.at[[*self.smaller]]
        sizes[smaller] = np.maximum(-(-sizes[smaller] // max(self.edit.n, 2)), 1)
        kept = np.flatnonzero((trace.id < 0) | ~np.isin(trace.id, asked.id[[*self.gone]]))
        place, turn, op, ident, one = np.array(self.rows, np.int64).reshape(-1, 5).T
        asks = asked.at[one]
        size = np.where(op == Op.ALLOC, sizes[asks], 0)
        places = np.concatenate((kept, place))
        turns = np.concatenate((kept * 0, turn))
        order = np.lexsort((np.arange(len(places)), turns, places))

        def column(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            return np.concatenate((old[kept], new.astype(old.dtype)))[order]

        made: dict[str, Any] = {"op": column(trace.op, op), "id": column(trace.id, ident)}
        for name in ("stream", "pool", "frame"):
            old = getattr(trace, name)
            made[name] = None if old is None else column(old, old[asks])
        made["size"] = column(sizes, size)
        return replace(trace, **made, time_ns=None, address=None, driver=(), names=())


def ranked(trace: Trace, card: Card, confs: Sequence[str], **how: Any) -> list[LineEdit]:
    """The program's own lines by what saves the run: fewest chunks first, then other edits,
    then what no edit of it saves.

    What is kept for good (weights, an optimizer's state) can be held on the host, not be made
    in chunks. confs are tried in turn; ``how`` goes to replay. Lines that hold less than HELD
    of the most of any are left out.
    """
    trace, _, _ = asked_again(trace)
    asked = with_lines(trace)
    stream, origin, _ = prepared(trace, card)
    first = next(filter(None, (replay(stream, one, card, **how).first_oom for one in confs)), None)
    if first is None:
        return []

    def passes(edit: Edit) -> str | None:
        made, _, _ = prepared(edited(trace, edit, asked).trace, card)
        return next((r for r in confs if replay(made, r, card, **how).first_oom is None), None)

    live = asked.alive(max(int(origin[first]) - 1, 0)) & (asked.at >= 0) & ~asked.backward
    sums = asked.by_site(live)
    found = []
    order = [at for at in np.argsort(-sums).tolist() if asked.sites[at].own][:MOST_LINES]
    for at in (at for at in order if sums[at] >= HELD * sums[order[0]]):
        name, _, file, line, _ = asked.sites[at]
        inner = [trace.frames[r][0] for r in set(asked.stack[live & (asked.site == at)].tolist())]
        state = any(one.startswith(KEPT) and "_call_impl" not in one for one in inner)
        most = not state and passes(Edit(file, line, "/", CHUNKS[-1])) is not None
        edits = [Edit(file, line, "/", n) for n in CHUNKS] if most else []
        edits += [Edit(file, line, verb) for verb in ("checkpoint", "offload")[state:]]
        tried = ((edit, passes(edit)) for edit in edits)
        edit, conf = next((one for one in tried if one[1] is not None), (None, None))
        chunks = edit.n if edit and edit.verb == "/" else MANY
        words = (edit.words, conf or "", edit.assumes) if edit else ("", "", "")
        found.append(LineEdit(name, int(sums[at]), *words, chunks))
    return sorted(found, key=lambda one: (not one.edit, one.conf, one.chunks, -one.live_bytes))
