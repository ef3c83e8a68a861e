"""What if a line of the program were changed: the requests of that line made otherwise, so that a replay answers.

``train.py:82 / 8`` and the like. A line's requests are those asked for while it ran, whatever it called; what a library keeps for
good after its first call (a workspace) is left as it is. What no trace can tell (when a tensor is last used, what is computed
from it) follows from the rules of ``VERBS``, each said beside the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from helpers.allocator.capacity import prepared
from helpers.allocator.driver import Card
from helpers.allocator.lines import Requests, with_lines
from helpers.allocator.replay import replay
from helpers.allocator.trace import Op, Trace

VERBS = {
    "/": "in {n} chunks, one after the other: what is computed from it, of the same size, its gradients too, is as small",
    "free-earlier": "freed before the line after the one that uses it; what autograd keeps stays",
    "checkpoint": "what it keeps for the backward pass is freed and made again there, its output stays",
    "offload": "what it keeps is copied to the host and brought back before the backward pass needs it",
    "dtype bf16": "two bytes a value in place of four, its gradients too; a cast beside the original is not counted",
    "drop": "never asked for",
}
"""What an edit assumes."""
_FORM = re.compile(
    r"(?P<file>[^\s:]+\.py):(?P<line>\d+)\s*(?:(?P<chunks>/)\s*(?P<n>\d+)|(?P<verb>free-earlier|checkpoint|offload"
    r"|drop|dtype\s+(?:bf16|fp16)))\s*"
)


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

    @property
    def assumes(self) -> str:
        return VERBS[self.verb].format(n=self.n)


@dataclass(frozen=True, eq=False)
class Edited:
    """The trace after an edit. ``origin``: the operation before it of each one, -1 for what the edit adds; ``changed``: requests
    that are made otherwise, ``taken`` their bytes; ``added``: bytes asked for again (recomputed, brought back)."""

    trace: Trace
    changed: int
    taken: int
    added: int


def parse(text: str) -> Edit:
    """The edit in words such as "train.py:82 / 8". Raises ValueError in one line."""
    found = _FORM.fullmatch(text.strip())
    if not found or (found["n"] and not 2 <= int(found["n"]) <= 4096):
        forms = ", ".join(verb.replace("/", "/ 8") for verb in VERBS)
        raise ValueError(f"--edit {text!r}: expected FILE.py:LINE and one of: {forms}")
    verb = "dtype bf16" if (found["verb"] or "").startswith("dtype") else found["verb"] or "/"
    return Edit(found["file"], int(found["line"]), verb, int(found["n"] or 1))


def edited(trace: Trace, edit: Edit, known: Requests | None = None) -> Edited:
    """The trace as the edited program would ask. Raises ValueError where the line asks for nothing, LinesError for a trace
    without lines of the program."""
    asked = known or with_lines(trace)
    which = of_line(asked, edit)
    if not which.any():
        raise ValueError(_nothing(asked, edit))
    return _Bench(asked, edit, which).done()


def of_line(asked: Requests, edit: Edit) -> np.ndarray:
    """The requests asked for while that line ran, as a mask; not those of a backward pass."""
    frames = asked.trace.frames
    place, end = f"{edit.file}:{edit.line} ", f"/{edit.file}:{edit.line} "
    hit = [any(one.startswith(place) or end in one for one in stack) for stack in frames]
    return np.array([*hit, False])[asked.stack] & ~asked.backward & (asked.stack >= 0)


def _nothing(asked: Requests, edit: Edit) -> str:
    places = {asked.sites[at] for at in set(asked.site[~asked.backward].tolist())}
    own = sorted((site for site in places if site.own), key=lambda site: abs(site.line - edit.line))
    near = [site for site in own if site.file.endswith(edit.file)] or own
    known = ", ".join(f"{site.file}:{site.line}" for site in near[:3])
    return f"--edit {edit.words}: that line asks for nothing; expected one such as {known}"


@dataclass(eq=False)
class _Bench:
    """One edit at work: the rows that go, and those that come, each at a place (operation, turn)."""

    asked: Requests
    edit: Edit
    which: np.ndarray

    def __post_init__(self) -> None:
        asked, trace = self.asked, self.asked.trace
        self.gone: list[int] = []
        self.rows: list[tuple[int, int, int, int, int]] = []  # (operation, turn, op, id, size)
        self.like: list[int] = []  # the request that each row comes from
        self.size = np.zeros(len(asked), np.int64)
        born = asked.at >= 0
        self.size[born] = trace.size[asked.at[born]]
        self.next_id, self.added = trace.ids, 0
        self.which &= ~_workspaces(asked, self.which)
        self.new_size: dict[int, int] = {}

    def done(self) -> Edited:
        mine = np.flatnonzero(self.which).tolist()
        apply = {
            "/": self._smaller,
            "dtype bf16": self._smaller,
            "drop": self._drop,
            "free-earlier": self._free_earlier,
            "checkpoint": self._checkpoint,
            "offload": self._offload,
        }
        apply[self.edit.verb](mine)
        changed = {*self.gone, *self.new_size}
        taken = sum(int(self.asked.size[one]) for one in changed)
        return Edited(self._trace(), len(changed), taken, self.added)

    # The edits.

    def _drop(self, mine: list[int]) -> None:
        self.gone += mine

    def _smaller(self, mine: list[int]) -> None:
        share = self.edit.n if self.edit.verb == "/" else 2
        for one in {*mine, *self._family(mine)}:
            self.new_size[one] = max(-(-int(self.size[one]) // share), 1)

    def _free_earlier(self, mine: list[int]) -> None:
        for one in mine:
            end = self._second_line_after(int(self.asked.at[one]))
            kept = self._in_backward(int(self.asked.until[one]))
            if end < self.asked.until[one] and not kept:
                self._move_free(one, end)

    def _offload(self, mine: list[int]) -> None:
        for run in self._runs(mine):
            end = self._end_of(run)
            for one in run:
                until = int(self.asked.until[one])
                if until > end:
                    self._away(one, end, until)

    def _checkpoint(self, mine: list[int]) -> None:
        asked = self.asked
        for run in self._runs(mine):
            end = self._end_of(run)
            held = [one for one in run if asked.until[one] > end]
            saved = [one for one in held if self._kept_for_backward(one)]
            # What the next line gets stays: the last request that is still held.
            saved = [one for one in saved if one != held[-1]]
            if not saved:
                continue
            first = min(int(asked.until[one]) for one in saved)
            for one in saved:
                self._move_free(one, end)
            if first < len(asked.trace):
                self._again([one for one in run if one <= saved[-1]], saved, self._before(first))

    # What they do.

    def _move_free(self, one: int, place: int) -> None:
        """The request is freed before that operation."""
        self.gone.append(one)
        ident = self._fresh()
        self._row(int(self.asked.at[one]), 0, Op.ALLOC, ident, one)
        self._row(place, -2, Op.FREE, ident, one)

    def _away(self, one: int, place: int, until: int) -> None:
        self._move_free(one, place)
        if until < len(self.asked.trace) and self._in_backward(until):
            ident = self._fresh()
            self._row(self._before(until), -1, Op.ALLOC, ident, one)
            self._row(until, 0, Op.FREE, ident, one)
            self.added += int(self.asked.size[one])

    def _again(self, run: list[int], saved: list[int], place: int) -> None:
        """The requests of a run are asked for again before that operation, in their order; what was saved lives on."""
        asked, again = self.asked, {one: self._fresh() for one in run}
        steps = [(int(asked.at[one]), Op.ALLOC, one) for one in run]
        steps += [(int(asked.until[one]), Op.FREE, one) for one in run if one not in saved]
        for _, op, one in sorted(steps):
            if op == Op.ALLOC or asked.until[one] <= asked.at[run[-1]]:
                self._row(place, -1, op, again[one], one)
        for one in run:
            until = int(asked.until[one])
            if one in saved:
                self._row(until, 0, Op.FREE, again[one], one)
            elif until > asked.at[run[-1]]:
                self._row(place, -1, Op.FREE, again[one], one)
        self.added += sum(int(asked.size[one]) for one in run)

    def _row(self, place: int, turn: int, op: Op, ident: int, one: int) -> None:
        size = int(self.size[one]) if op == Op.ALLOC else 0
        self.rows.append((place, turn, int(op), ident, size))
        self.like.append(one)

    def _fresh(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    # What the trace tells.

    def _in_backward(self, operation: int) -> bool:
        """Whether the operation lies in a backward pass: the request before it was asked for by one."""
        before = np.searchsorted(self.asked.at, operation) - 1
        return bool(before >= 0 and self.asked.backward[before])

    def _kept_for_backward(self, one: int) -> bool:
        until = int(self.asked.until[one])
        return until >= len(self.asked.trace) or self._in_backward(until)

    def _end_of(self, run: list[int]) -> int:
        """The operation of the first request after those of a run that the line did not ask for."""
        after = run[-1] + 1
        return int(self.asked.at[after]) if after < len(self.asked) else len(self.asked.trace)

    def _before(self, operation: int) -> int:
        """The first of the requests that stand right before an operation: the backward step that frees it asked for them."""
        asked = self.asked
        one = int(np.searchsorted(asked.at, operation)) - 1
        if one < 0 or not asked.backward[one]:
            return operation
        while one > 0 and asked.backward[one - 1] and asked.at[one - 1] == asked.at[one] - 1:
            one -= 1
        return int(asked.at[one])

    def _runs(self, mine: list[int]) -> Iterator[list[int]]:
        """The requests of each time that the line ran: neighbours, and a new run where the first stack comes again."""
        run: list[int] = []
        stack = self.asked.stack
        for one in mine:
            again = run and stack[one] == stack[run[0]] and stack[one] != stack[run[-1]]
            if run and (one != run[-1] + 1 or again):
                yield run
                run = []
            run.append(one)
        if run:
            yield run

    def _second_line_after(self, operation: int) -> int:
        """The operation of the first request of the second own line after the one that asked there."""
        asked = self.asked
        at = int(np.searchsorted(asked.at, operation))
        seen = [int(asked.site[at])]
        for later in range(at + 1, len(asked)):
            site = int(asked.site[later])
            if site not in seen and asked.sites[site].own:
                seen.append(site)
                if len(seen) == 3:
                    return int(asked.at[later])
        return len(asked.trace)

    def _family(self, mine: list[int]) -> set[int]:
        """What is computed from these requests with as many values: the requests of equal size that follow one another in the
        forward pass, and in the backward pass the gradients that are there when those are freed."""
        asked, found = self.asked, set()
        for one in mine:
            if asked.size[one] < LARGE:
                continue
            members, size = [one], int(asked.size[one])
            for later in range(one + 1, len(asked)):
                if (
                    asked.backward[later]
                    or asked.size[later] >= size // 8
                    and asked.size[later] != size
                ):
                    break
                if asked.size[later] == size:
                    members.append(later)
            found.update(members)
            for member in members:
                found.update(self._gradients(member, size))
        return found

    def _gradients(self, member: int, size: int) -> Iterable[int]:
        asked, until = self.asked, int(self.asked.until[member])
        if until >= len(asked.trace) or not self._in_backward(until):
            return
        start = until
        while start > 0 and asked.trace.op[start - 1] != Op.ALLOC:
            start -= 1
        last = int(np.searchsorted(asked.at, until))
        for one in range(last - 1, max(last - NEAR, 0), -1):
            if asked.backward[one] and asked.size[one] == size and asked.until[one] >= start:
                yield one
                inside = range(one + 1, int(np.searchsorted(asked.at, asked.until[one])))
                yield from (
                    other
                    for other in inside
                    if asked.backward[other]
                    and asked.size[other] in (size, 2 * size)
                    and asked.until[other] <= asked.until[one]
                )

    # The trace.

    def _trace(self) -> Trace:
        trace, asked = self.asked.trace, self.asked
        gone = np.isin(trace.id, asked.id[self.gone]) & (trace.id >= 0) if self.gone else None
        keep = np.ones(len(trace), bool) if gone is None else ~gone
        sizes = trace.size.copy()
        for one, size in self.new_size.items():
            sizes[asked.at[one]] = size
        count = len(self.rows)
        rows = np.array(self.rows, np.int64).reshape(-1, 5).T
        like = np.array(self.like, np.int64)
        places = asked.at[like] if count else like
        kept = np.flatnonzero(keep)
        pos, turn = np.concatenate((kept, rows[0])), np.concatenate((kept * 0, rows[1]))
        order = np.lexsort((np.arange(len(pos)), turn, pos))

        def column(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            return np.concatenate((old[kept], new.astype(old.dtype)))[order]

        frame = trace.frame
        return replace(
            trace,
            op=column(trace.op, rows[2]),
            id=column(trace.id, rows[3]),
            size=column(sizes, rows[4]),
            stream=column(trace.stream, trace.stream[places]),
            pool=column(trace.pool, trace.pool[places]),
            frame=None if frame is None else column(frame, frame[places]),
            time_ns=None,
            address=None,
            driver=(),
            names=(),
        )


@dataclass(frozen=True)
class Ranked:
    """A line of the program and the least change of it that lets the recorded requests pass; ``edit`` "" where it alone does
    not. ``live_bytes``: what of it is live where it fails; ``conf``: the settings under which it passes then."""

    line: str
    live_bytes: int
    edit: str
    conf: str
    assumes: str = ""
    chunks: int = 0


def ranked(trace: Trace, card: Card, confs: Sequence[str], **how: Any) -> list[Ranked]:
    """The program's own lines by what saves the run: fewest chunks first, then other edits, then what no edit of it saves.

    What is kept for good (weights, an optimizer's state) can be held on the host, not be made in chunks. confs are tried in
    turn; ``how`` goes to replay. Lines that hold less than HELD of the most of any are left out.
    """
    asked = with_lines(trace)
    stream, origin, _ = prepared(trace, card)
    first = next(filter(None, (replay(stream, one, card, **how).first_oom for one in confs)), None)
    if first is None:
        return []
    live = asked.alive(max(int(origin[first]) - 1, 0)) & (asked.at >= 0) & ~asked.backward
    sums = asked.by_site(live)
    order = [at for at in np.argsort(-sums).tolist() if asked.sites[at].own][:MOST_LINES]
    found = []
    for at in order:
        site = asked.sites[at]
        if sums[at] < HELD * sums[order[0]]:
            continue
        stacks = {trace.frames[one] for one in asked.stack[live & (asked.site == at)].tolist()}
        inner = [stack[0] for stack in stacks]
        state = any(one.startswith(KEPT) and "_call_impl" not in one for one in inner)
        edits = [] if state else [Edit(site.file, site.line, "/", n) for n in CHUNKS]
        edits += [Edit(site.file, site.line, verb) for verb in ("checkpoint", "offload")[state:]]
        if _passes(asked, Edit(site.file, site.line, "drop"), card, confs, how) is None:
            edits = []
        tried = ((edit, _passes(asked, edit, card, confs, how)) for edit in edits)
        edit, conf = next((one for one in tried if one[1] is not None), (None, ""))
        words, why = (edit.words, edit.assumes) if edit else ("", "")
        chunks = edit.n if edit and edit.verb == "/" else MANY
        found.append(Ranked(site.name, int(sums[at]), words, conf or "", why, chunks))
    return sorted(
        found, key=lambda one: (not one.edit, bool(one.conf), one.chunks, -one.live_bytes)
    )


def _passes(
    asked: Requests, edit: Edit, card: Card, confs: Sequence[str], how: dict[str, Any]
) -> str | None:
    """The first of the settings under which the edited requests pass; None for none."""
    made, _, _ = prepared(edited(asked.trace, edit, asked).trace, card)
    return next((one for one in confs if replay(made, one, card, **how).first_oom is None), None)


HELD, MOST_LINES, CHUNKS, MANY = 0.02, 8, (2, 3, 4, 6, 8, 12, 16), 1 << 10
KEPT = ("torch/optim/", "torch/nn/modules/module.py:")
"""Frames of what makes an optimizer's state and moves weights (``to``; a call of a module ends in ``_call_impl``)."""
LARGE, NEAR = 1 << 16, 64
"""Bytes from which what is computed from a request is looked for; and among how many requests before its free."""


def _workspaces(asked: Requests, which: np.ndarray) -> np.ndarray:
    """Requests that a library keeps for good after its first call: never freed, though a later one with that stack is."""
    stacks, never = asked.stack, asked.until >= len(asked.trace)
    freed = np.flatnonzero(which & ~never)
    last = np.full(len(asked.trace.frames) + 1, -1)
    np.maximum.at(last, stacks[freed], freed)
    return which & never & (np.arange(len(asked)) < last[stacks])
