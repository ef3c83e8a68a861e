"""What if a line of the program were changed: the requests of that line made otherwise, so that a replay answers.

``train.py:82 / 8`` and the like. A line's requests are those asked for while it ran, whatever it called; what a library keeps for
good after its first call (a workspace) is left as it is. What no trace can tell (when a tensor is last used, what is computed
from it) follows from the rules of ``VERBS``, which are said beside the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from helpers.allocator.capacity import asked_again, prepared
from helpers.allocator.driver import Card
from helpers.allocator.lines import Requests, with_lines
from helpers.allocator.replay import replay
from helpers.allocator.trace import Op, Trace, own_line
from helpers.shapes import LineEdit

VERBS = {
    "/": "in {n} chunks, one at a time: what is computed from it with as many values and its gradients are as small, and what the "
    "backward pass needs of it is made again there",
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
LARGE, NEAR = 1 << 16, 64
"""Bytes from which what is computed from a request is looked for, and among how many requests around it."""
HELD, MOST_LINES, CHUNKS, MANY = 0.02, 8, (2, 3, 4, 6, 8, 12, 16), 1 << 10
KEPT = ("torch/optim/", "torch/nn/modules/module.py:")
"""Frames of what makes an optimizer's state and moves weights (``to``; a call of a module ends in ``_call_impl``)."""


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
    """The trace after an edit: how many requests are made otherwise, their bytes, and bytes asked for again (recomputed, brought
    back)."""

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
    """The trace as the edited program would ask. Raises ValueError where the line asks for nothing, LinesError for a trace
    without lines of the program. ``known``: its requests, where they were read before."""
    asked, of = known or with_lines(asked_again(trace)[0]), edit
    which = of_line(asked, edit)
    if not which.any():
        places = {asked.sites[at] for at in set(asked.site[~asked.backward].tolist())}
        own = [site for site in places if site.own]
        own.sort(key=lambda site: (not site.file.endswith(edit.file), abs(site.line - edit.line)))
        above = [site for site in own if site.file.endswith(edit.file) and site.line < edit.line]
        if edit.verb not in KEEPS or not above or edit.line > max(site.line for site in own):
            lines = ", ".join(f"{site.file}:{site.line}" for site in own[:3])
            raise ValueError(
                f"--edit {edit.words}: that line asks for nothing; expected one such as {lines}"
            )
        of = replace(edit, line=above[0].line, verb="release")
        which = of_line(asked, of)
    return _Change(asked, of, which).done()


def of_line(asked: Requests, edit: Edit) -> np.ndarray:
    """The requests asked for while that line ran, as a mask; not those of a backward pass."""
    hit = [any(map(edit.runs, stack)) for stack in asked.trace.frames]
    return np.array([*hit, False])[asked.stack] & ~asked.backward


def _workspaces(asked: Requests, which: np.ndarray) -> np.ndarray:
    """Requests that a library keeps for good after its first call: the only one of its stack that is never freed, though later
    ones are."""
    stacks, never = asked.stack, asked.until >= len(asked.trace)
    freed, last = np.flatnonzero(which & ~never), np.full(len(asked.trace.frames) + 1, -1)
    np.maximum.at(last, stacks[freed], freed)
    kept = which & never & (np.arange(len(asked)) < last[stacks])
    return kept & (np.bincount(stacks[kept], minlength=len(last))[stacks] == 1)


class _Change:
    """One edit at work: requests that are made otherwise, and rows (operation, turn, op, id, request) that come instead."""

    def __init__(self, asked: Requests, edit: Edit, which: np.ndarray) -> None:
        self.asked, self.edit, self.all = asked, edit, np.flatnonzero(which).tolist()
        self.kept = _workspaces(asked, which)
        self.mine = np.flatnonzero(which & ~self.kept).tolist()
        self.of_id = np.full(asked.trace.ids + 1, -1)
        self.of_id[asked.id] = np.arange(len(asked))
        self.smaller: set[int] = set()
        self.gone: set[int] = set()
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.next_id, self.added = asked.trace.ids, 0

    def done(self) -> Edited:
        asked, verb = self.asked, self.edit.verb
        if verb in ("/", "dtype bf16"):
            self._make_smaller()
        elif verb == "drop":
            self.gone = {*self.mine}
        elif verb == "free-earlier":
            self._free_earlier()
        elif verb == "checkpoint":
            for run in filter(None, self._runs()):
                self._checkpoint(run)
        elif verb == "offload":
            self._put_away()
        else:
            self._release()
        changed = [*{*self.gone, *self.smaller}]
        return Edited(self._trace(), len(changed), int(asked.size[changed].sum()), self.added)

    # The edits.

    def _make_smaller(self) -> None:
        """And what is kept of it for the backward pass is made again there, a chunk at a time."""
        for one in self.mine:
            if one in self.smaller:
                continue
            members = self._derived(one)
            self.smaller.update(members)
            for member in members:
                self.smaller.update(self._gradients(int(self.asked.until[member]), len(members)))
            if self.edit.verb == "/":
                self._recomputed(members, members, int(self.asked.size[one]))

    def _derived(self, one: int) -> list[int]:
        """What is computed from a request with as many values: those of equal size that follow one another in the forward
        pass."""
        asked, members, size = self.asked, [one], int(self.asked.size[one])
        for later in range(one + 1, min(one + NEAR, len(asked)) if size >= LARGE else one):
            if asked.backward[later] or size // 8 <= asked.size[later] != size:
                break
            members += [later] * bool(asked.size[later] == size)
        return members

    def _gradients(self, until: int, most: int) -> set[int]:
        """The gradients that are there when what they belong to is freed, of its size, and what is needed beside them; then
        those computed from them one after the other, up to as many as there are in the forward pass."""
        asked, last = self.asked, int(np.searchsorted(self.asked.at, until))
        size = int(asked.size[self.of_id[asked.trace.id[until]]]) if self._in_backward(until) else 0
        if size < LARGE:
            return set()
        near = range(max(last - NEAR, 0), min(last + NEAR, len(asked)))
        same = [one for one in near if asked.backward[one] and asked.size[one] == size]
        # A backward step gives back what it was given and what it saved together, after its last request.
        found: list[int] = []
        for one in (one for one in same if one < last and asked.until[one] > asked.at[last - 1]):
            if not any(asked.until[one] < asked.until[other] for other in found):
                found.append(one)
        for one in same:
            end = int(asked.until[found[-1]]) if len(found) in range(1, most) else 0
            if asked.at[one] < end < asked.until[one] and one > found[-1]:
                found.append(one)
        beside = {
            other
            for one in found
            for other in range(one + 1, min(one + NEAR, len(asked)))
            if asked.backward[other]
            and asked.until[other] <= asked.until[one]
            and asked.size[other] in (size, 2 * size)
        }
        return {*found, *beside}

    def _free_earlier(self) -> None:
        asked = self.asked
        own = np.array([site.own for site in asked.sites])[asked.site]
        places = np.flatnonzero(own)
        other = np.flatnonzero(np.diff(asked.site[places])) + 1  # where another line begins to ask
        begins = places[other]
        for one in self.mine:
            after = begins[np.searchsorted(begins, one, "right") :][1:2]
            end = int(asked.at[after[0]]) if len(after) else len(asked.trace)
            if end < asked.until[one] and not self._in_backward(int(asked.until[one])):
                self._moved(one, end)

    def _put_away(self) -> None:
        """Freed once it was used, and there again before a backward pass frees it."""
        for one in self.mine:
            until, end = int(self.asked.until[one]), self._used(one)
            if until > end:
                self._moved(one, end)
                if self._in_backward(until):
                    self._again([one], [one], self._step_of(until))

    def _release(self) -> None:
        """What a line gives on is freed when it has given on the next; what autograd keeps stays."""
        until = self.asked.until
        held = [one for one in self.mine if until[one] > self._used(one)]
        for one, after in zip(held, [*held[1:], None], strict=True):
            end = self._used(one) if after is None else int(self.asked.at[after]) + 1
            if end < until[one] and not self._in_backward(int(until[one])):
                self._moved(one, end)

    def _checkpoint(self, run: list[int]) -> None:
        """What the next line gets stays: the last request of the line's run that is still held."""
        asked = self.asked
        end = int(asked.at[run[-1] + 1]) if run[-1] + 1 < len(asked) else len(asked.trace)
        held = [one for one in run if asked.until[one] > end]
        self._recomputed(run, held[:-1], int(asked.size[held[-1]]) if held else 0)
        for one in held[:-1]:
            if asked.until[one] == len(asked.trace):  # the recording ends before it is needed again
                self._moved(one, end)

    def _recomputed(self, run: list[int], held: list[int], size: int) -> None:
        """What is kept for the backward pass is freed when the line is done and made again when the backward pass comes to it;
        what the line was given stays until then."""
        asked = self.asked
        saved = [one for one in held if self._in_backward(int(asked.until[one]))]
        if not saved:
            return
        place = self._reached(saved[-1], size, min(int(asked.until[one]) for one in saved))
        end = int(asked.at[run[-1] + 1])
        if end >= place:
            return
        for one in saved:
            self._moved(one, end)
        self._again([one for one in run if one <= saved[-1]], saved, place)
        given, line = run[0] - 1, asked.site[run[0] - 1]
        while given >= 0 and asked.site[given] == line and given > run[0] - NEAR:
            until = int(asked.until[given])
            if asked.at[run[0]] < until < place and given not in self.gone:
                self._moved(given, max(int(asked.until[one]) for one in saved))
            given -= 1

    def _used(self, one: int) -> int:
        """When a request was used by what comes next: before the second request after it that is about as large."""
        asked, seen = self.asked, 0
        for later in range(one + 1, min(one + NEAR, len(asked))):
            seen += bool(asked.size[later] * 8 >= asked.size[one])
            if seen == 2 or asked.backward[later]:
                return int(asked.at[later])
        return len(asked.trace)

    def _again(self, run: list[int], saved: list[int], place: int) -> None:
        """The requests of a run are asked for again before that operation, in their order; what was saved lives on."""
        asked, last = self.asked, self.asked.at[run[-1]]
        steps = [(int(asked.at[one]), Op.ALLOC, one) for one in run]
        steps += [(min(int(asked.until[one]), int(last) + 1), Op.FREE, one) for one in run]
        ids = {one: self.next_id + at for at, one in enumerate(run)}
        self.next_id += len(run)
        for _, op, one in sorted(steps, key=lambda step: step[0]):
            if op == Op.ALLOC or one not in saved:
                self.rows.append((place, -1, op, ids[one], one))
        self.rows += [(int(asked.until[one]), 0, Op.FREE, ids[one], one) for one in saved]
        self.added += int(asked.size[run].sum())

    def _moved(self, one: int, place: int) -> None:
        """The request is freed before that operation."""
        self.gone.add(one)
        self.rows.append((int(self.asked.at[one]), 0, Op.ALLOC, self.next_id, one))
        self.rows.append((place, -2, Op.FREE, self.next_id, one))
        self.next_id += 1

    # What the trace tells.

    def _in_backward(self, operation: int) -> bool:
        """Whether the operation lies in a backward pass: the request before it was asked for by one."""
        before = int(np.searchsorted(self.asked.at, operation)) - 1
        return operation < len(self.asked.trace) and bool(self.asked.backward[max(before, 0)])

    def _reached(self, one: int, size: int, until: int) -> int:
        """Where the backward pass comes to what was made up to a request and given on with so many bytes: something that was
        made later has just been freed, and the step that asked for the gradient of what was given on is over."""
        asked, last, begin = self.asked, self._step_of(until), until
        while begin > max(until - NEAR, 0):
            begin -= 1
            freed = self.of_id[asked.trace.id[begin]] if asked.trace.op[begin] != Op.ALLOC else -1
            if freed > one and not asked.backward[freed]:
                break
        near = slice(*np.searchsorted(asked.at, (begin, last)))
        for given in np.flatnonzero(asked.size[near] == size)[:1] + near.start:
            older = slice(max(int(given) - NEAR, 0), given)
            ends = asked.until[older][
                asked.backward[older] & (asked.until[older] > asked.at[given])
            ]
            begin = int(ends.min(initial=last))
        after = asked.at[np.searchsorted(asked.at, begin) :][:1]
        return min(int(after[0]), last) if len(after) else last

    def _step_of(self, operation: int) -> int:
        """Where the backward step begins that frees something at that operation: the first of its requests in a row."""
        asked = self.asked
        one = int(np.searchsorted(asked.at, operation)) - 1
        while one > 0 and asked.backward[one - 1] and asked.at[one - 1] == asked.at[one] - 1:
            one -= 1
        return int(asked.at[one])

    def _runs(self) -> Iterator[list[int]]:
        """The requests of each time that the line ran: neighbours, and a new run where what the line calls is at its first line
        again after another. What it calls is of torch: where the first stack comes again."""
        run, stack = list[int](), self.asked.stack
        called = [self._called(one) for one in self.asked.trace.frames]
        loops = [not name or name.startswith("torch/nn/modules/container.py") for name in called]
        own = [own_line(name) for name in called]
        for one in self.all:
            first, last, here = (
                stack[each] for each in ((run or [one])[0], (run or [one])[-1], one)
            )
            again = called[here] == called[first] != called[last]
            again |= not (loops[here] or own[here]) and here == first != last
            if run and (one != run[-1] + 1 or again):
                yield [each for each in run if not self.kept[each]]
                run = []
            run.append(one)
        yield [each for each in run if not self.kept[each]]

    def _called(self, frames: tuple[str, ...]) -> str:
        """The frame that the edited line called, past those by which torch calls a module; "" for none."""
        inner = [one for one in frames if not one.endswith("_call_impl")]
        at = next((at for at, one in enumerate(inner) if self.edit.runs(one)), 0)
        return inner[at - 1] if at else ""

    def _trace(self) -> Trace:
        trace, asked = self.asked.trace, self.asked
        sizes, smaller = trace.size.copy(), asked.at[[*self.smaller]]
        sizes[smaller] = np.maximum(-(-sizes[smaller] // max(self.edit.n, 2)), 1)
        kept = np.flatnonzero((trace.id < 0) | ~np.isin(trace.id, asked.id[[*self.gone]]))
        place, turn, op, ident, one = np.array(self.rows, np.int64).reshape(-1, 5).T
        asks = asked.at[one]
        size = np.where(op == Op.ALLOC, sizes[asks], 0)
        places, turns = np.concatenate((kept, place)), np.concatenate((kept * 0, turn))
        order = np.lexsort((np.arange(len(places)), turns, places))

        def column(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            return np.concatenate((old[kept], new.astype(old.dtype)))[order]

        return replace(
            trace,
            op=column(trace.op, op),
            id=column(trace.id, ident),
            size=column(sizes, size),
            stream=column(trace.stream, trace.stream[asks]),
            pool=column(trace.pool, trace.pool[asks]),
            frame=None if trace.frame is None else column(trace.frame, trace.frame[asks]),
            time_ns=None,
            address=None,
            driver=(),
            names=(),
        )


def ranked(trace: Trace, card: Card, confs: Sequence[str], **how: Any) -> list[LineEdit]:
    """The program's own lines by what saves the run: fewest chunks first, then other edits, then what no edit of it saves.

    What is kept for good (weights, an optimizer's state) can be held on the host, not be made in chunks. confs are tried in
    turn; ``how`` goes to replay. Lines that hold less than HELD of the most of any are left out.
    """
    trace, _, _ = asked_again(trace)
    asked = with_lines(trace)
    stream, origin, _ = prepared(trace, card)
    first = next(filter(None, (replay(stream, one, card, **how).first_oom for one in confs)), None)
    if first is None:
        return []

    def passes(edit: Edit) -> str | None:
        made, _, _ = prepared(edited(trace, edit, asked).trace, card)
        return next(
            (one for one in confs if replay(made, one, card, **how).first_oom is None), None
        )

    live = asked.alive(max(int(origin[first]) - 1, 0)) & (asked.at >= 0) & ~asked.backward
    sums, found = asked.by_site(live), []
    order = [at for at in np.argsort(-sums).tolist() if asked.sites[at].own][:MOST_LINES]
    for at in (at for at in order if sums[at] >= HELD * sums[order[0]]):
        name, _, file, line, _ = asked.sites[at]
        inner = [
            trace.frames[one][0] for one in set(asked.stack[live & (asked.site == at)].tolist())
        ]
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
