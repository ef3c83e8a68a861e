"""The allocator's settings of a recorded box, for a rehearsal as on that box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from helpers.look.boxes import open_box
from helpers.look.environment import variables
from helpers.rehearse.words import WORDS
from helpers.settings.table import CONF_NAMES


@dataclass(frozen=True)
class BoxSettings:
    """``conf``: the allocator's settings (None: the program's own); ``extra``: the other variables
    of a box that decide what torch allocates; ``taken``: what was taken over from the box, a line
    each.
    """

    conf: str | None
    extra: Mapping[str, str]
    taken: tuple[str, ...] = ()


def conf_name(variables: Mapping[str, str]) -> str:
    """The first of the allocator's variables (CONF_NAMES) that is set; empty where none is."""
    return next((name for name in CONF_NAMES if variables.get(name)), "")


def settings_of(box: str, conf: str | None = None) -> BoxSettings:
    """The allocator's settings ``conf`` where it is given, else those that the recorded ``box`` had
    (empty: no box, so nothing is taken over). The other variables of the box
    that decide what torch allocates are taken over in both cases.
    """
    if not box:
        return BoxSettings(conf, {})
    on_box = {row.name: row.value for row in variables(open_box(box))}
    extra = {name: on_box[name] for name in WORDS["decides"] if on_box.get(name)}
    taken = dict(extra)
    name = conf_name(on_box)
    if conf is None and name:
        conf = on_box[name]
        taken = {name: conf, **extra}
    lines = [f"as on the box: {name}={value}" for name, value in taken.items()]
    return BoxSettings(conf, extra, tuple(lines))
