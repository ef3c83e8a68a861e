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
    """The allocator's settings (``conf`` None: the program's own), and what else of a box's
    environment decides what is allocated; ``taken`` says what was taken over from a box, a line
    each.
    """

    conf: str | None
    extra: Mapping[str, str]
    taken: tuple[str, ...] = ()


def conf_name(variables: Mapping[str, str]) -> str:
    """The name under which variables set the allocator; empty where none does."""
    return next((name for name in CONF_NAMES if variables.get(name)), "")


def settings_of(box: str, conf: str | None = None) -> BoxSettings:
    """The allocator's settings ``conf``, else as the box had them."""
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
