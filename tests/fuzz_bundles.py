"""Mutates recorded boxes."""

from __future__ import annotations

import random

from helpers.look.bundle import Bundle, BundleWriter

ODD = [b"", b"\x00\xff\xfe", b"null\n", b"1,5 GiB", "١٢".encode()]
ODD += b"nan -1 99999999999999999999999999 [drm] {} [] N/A".split()


def mutated(box: Bundle, dice: random.Random) -> Bundle:
    """The box with one to six of its items dropped, cut, spliced, swapped or refused."""
    writer = BundleWriter(box.box, box.kind, "0", "")
    items = list(box.items)
    hit = set(dice.sample(range(len(items)), min(len(items), dice.randint(1, 6))))
    for number, item in enumerate(items):
        raw = box.contents.get(item.path, b"") if item.path else None
        status = item.status
        why = item.why
        if number in hit:
            what = dice.randrange(7)
            data = bytearray(raw or b"")
            if what == 0:
                continue
            if what == 1 and data:
                data = data[: dice.randrange(len(data))]
            elif what == 2:
                for _ in range(dice.randint(1, 12)):
                    if data:
                        data[dice.randrange(len(data))] = dice.randrange(256)
            elif what == 3:
                at = dice.randrange(len(data) + 1)
                data[at:at] = dice.choice(ODD)
            elif what == 4:
                data = bytearray(dice.choice(ODD))
            elif what == 5:
                other = dice.choice(items)
                data = bytearray(box.contents.get(other.path, b"") if other.path else b"")
            else:
                status = "not_allowed"
                why = "permission denied"
                data = bytearray()
            raw = None if status != "ok" else bytes(data)
        writer.add(item.kind, item.source, raw, status=status, why=why)
    return writer.bundle()
