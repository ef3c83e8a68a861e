"""Commands about boxes, live and recorded: their limits, and which there are."""

import json
from argparse import Namespace
from dataclasses import asdict

from helpers.commands.use import listed, say
from helpers.ground.contract import to_json
from helpers.judge.ttm_limit import wanted_bytes
from helpers.judge.ttm_plan import ttm_answer
from helpers.judge.ttm_verify import verify
from helpers.look.boxes import RECORDED, open_box, recorded_names
from helpers.tell.ttm import as_text, verify_table


def ttm(arguments: Namespace) -> int:
    """Show every limit between the RAM and torch, the lowest one, and how to raise it safely.

    [box]: live (this machine, the default), a bundle or a recorded box
    --reserve SIZE: RAM to keep for the system, such as 8GiB
    --target SIZE: the limit itself, such as 120GiB
    --verify EARLIER: check a change against this bundle from before it
    Example: ttm strix-halo-3-gttsize --target 120GiB
    """
    name = arguments.box
    if not name:
        name = "live"
    now = open_box(name)
    reserve = wanted_bytes(arguments.reserve)
    target = wanted_bytes(arguments.target)
    if arguments.verify:
        result = verify(open_box(arguments.verify), now, reserve, target)
        say(arguments, asdict(result), verify_table(result))
        return int(not result.took)  # 1: the change did not take effect
    answer = ttm_answer(now, reserve, target)
    if arguments.json:
        print(to_json(answer, indent=1))
    else:
        print(as_text(answer))
    return 0


def boxes(arguments: Namespace) -> int:
    """List the recorded boxes, each with its story.

    Example: boxes
    """
    names = recorded_names()
    stories = json.loads((RECORDED / "stories.json").read_text(encoding="utf-8"))
    width = max(map(len, names), default=0) + 2  # two blanks before the story
    lines = [listed(name, stories[name], width) for name in names]
    return say(arguments, names, *lines)
