"""What is known of this box and must not stand in a text that a person ticked."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import socket
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

from helpers.ground.child.proc import text_of
from helpers.look.bundle import Bundle, rows
from helpers.look.environment import sounds_secret

from . import public
from .names import Names

SHORTEST = 2
PEOPLE_FROM = 1000
"""The first number of a user that is a person, by /etc/login.defs of every distribution."""
SERIALS = """
/etc/machine-id /sys/class/dmi/id/*serial /sys/class/dmi/id/*uuid /sys/class/dmi/id/*asset_tag
/sys/class/net/*/address /sys/class/drm/card*/device/unique_id
"""
LOGIN = "USER LOGNAME SUDO_USER HOME"
FORMS = {
    "mail": r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}",
    "uuid": r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "mac": r"(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}",
    "address": r"(?<!\d)(?<!\d\.)(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)"
    r"|(?<![\w:])[0-9a-fA-F:]{2,39}:[0-9a-fA-F]{1,4}(?![\w:])"
    r"|(?:[0-9a-fA-F]{1,4}:){2,7}:?[0-9a-fA-F]{0,4}",
    "user": r"(?:(?<=/home/)|(?<=/Users/))[^/\s'\"]{1,64}",
}
"""What has a form of its own, wherever it stands."""


class Redactor:
    """Replaces what is known of this box, and of the box of a bundle, each value by a name."""

    def __init__(self, bundle: Bundle | None = None) -> None:
        self._names = Names()
        self._values: dict[str, str] = {}
        for kind, value in (*_of_this_box(), *_of_bundle(bundle)):
            if len(value) >= SHORTEST:
                self._values.setdefault(
                    value.lower(), self._names.of(kind, value.lower())
                )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._values, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        return re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_])", re.IGNORECASE)

    def redacted(self, text: str) -> str:
        """The text with a name in place of each of these values."""
        text = self._pattern.sub(lambda match: self._values[match[0].lower()], text)
        for kind, form in FORMS.items():
            text = re.sub(form, partial(self._of_form, kind), text)
        return text

    def _of_form(self, kind: str, match: re.Match[str]) -> str:
        if kind == "address":
            address = _address_in(match[0])
            if not address:
                return match[0]
            return match[0].replace(address, self._names.of(kind, address))
        return self._names.of(kind, match[0])


def _address_in(text: str) -> str:
    """The address in a run of groups, which a colon may join to its neighbours ("UID:2001:db8::1");
    empty where there is none.
    """
    if _is_address(text):
        return text
    colons = [match.start() for match in re.finditer(":", text)]
    runs = [
        text[start:end]
        for start in (0, *(colon + 1 for colon in colons))
        for end in (*colons, len(text))
    ]
    return max(filter(_is_address, runs), key=len, default="")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _of_this_box() -> Iterator[tuple[str, str]]:
    name = socket.gethostname()
    yield "host", name
    yield "host", name.partition(".")[0]
    for entry in pwd.getpwall():
        if entry.pw_uid >= PEOPLE_FROM or entry.pw_uid == os.getuid() != 0:
            yield "user", entry.pw_name
            yield "user", entry.pw_gecos.partition(",")[0]
            yield "home", entry.pw_dir
    for variable, value in os.environ.items():
        if variable in LOGIN.split() and value not in ("root", "/root"):
            yield "user", value
        if sounds_secret(variable):
            yield "secret", value
    for place in SERIALS.split():
        for file in Path("/").glob(place[1:]):
            yield "serial", text_of(file)


def _of_bundle(bundle: Bundle | None) -> Iterator[tuple[str, str]]:
    """The names that the bundle's own box has: its own, its people's, its boot's."""
    if bundle is None or public.box(bundle.box):
        return
    yield "host", bundle.box
    for row in bundle.table("host"):
        yield "serial", row.text("boot_id")
    for row in bundle.table("identity"):
        for group in rows(row.many("groups")):
            if (group.number("gid") or 0) >= PEOPLE_FROM:
                yield "user", group.text("name")
