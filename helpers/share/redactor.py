"""Replaces names and serial numbers of this box, and addresses, in the texts that a
person ticked.
"""

from __future__ import annotations

import ipaddress
import itertools
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
"""Characters of a value: a name of one letter would replace that letter everywhere."""
PEOPLE_FROM = 1000
"""The first user ID, and group ID, of a person: UID_MIN of /etc/login.defs."""
# Files with numbers of their own on each machine, which may be patterns.
SERIALS = """
/etc/machine-id /sys/class/dmi/id/*serial /sys/class/dmi/id/*uuid /sys/class/dmi/id/*asset_tag
/sys/class/net/*/address /sys/class/drm/card*/device/unique_id
"""
LOGIN = "USER LOGNAME SUDO_USER HOME"
"""Variables of the environment that name the user."""
FORMS = {
    "mail": r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}",
    "uuid": r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "mac": r"(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}",
    # IPv4 (no release of five numbers), IPv6, and runs of groups that _address_in looks into.
    "address": r"(?<!\d)(?<!\d\.)(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)"
    r"|(?<![\w:])[0-9a-fA-F:]{2,39}:[0-9a-fA-F]{1,4}(?![\w:])"
    r"|(?:[0-9a-fA-F]{1,4}:){2,7}:?[0-9a-fA-F]{0,4}",
    "user": r"(?:(?<=/home/)|(?<=/Users/))[^/\s'\"]{1,64}",
}
"""Values that are recognised by their form in any text, by the kind of their label."""


class Redactor:
    """Replaces the values that are known of this box, and of a bundle's box, each by a label."""

    def __init__(self, bundle: Bundle | None = None) -> None:
        self._names = Names()
        self._labels: dict[str, str] = {}  # by the value in small letters
        for kind, value in (*_of_this_box(), *_of_bundle(bundle)):
            if len(value) >= SHORTEST:
                key = value.lower()
                self._labels.setdefault(key, self._names.of(kind, key))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """All values as whole words; an underscore ends a word too."""
        # A user's name may be a part of the name of the home folder.
        longest_first = sorted(self._labels, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        return re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_])", re.IGNORECASE)

    def redacted(self, text: str) -> str:
        """The text with a label in place of each of these values."""
        text = self._pattern.sub(lambda match: self._labels[match[0].lower()], text)
        for kind, form in FORMS.items():
            text = re.sub(form, partial(self._of_form, kind), text)
        return text

    def _of_form(self, kind: str, match: re.Match[str]) -> str:
        """The label for a match of one of FORMS; a match without an address in it stays."""
        if kind == "address":
            address = _address_in(match[0])
            if not address:
                return match[0]
            return match[0].replace(address, self._names.of(kind, address))
        return self._names.of(kind, match[0])


def _address_in(text: str) -> str:
    """The longest IP address between colons of a text, such as in "UID:2001:db8::1"; empty where
    there is none.
    """
    if _is_address(text):
        return text
    colons = [match.start() for match in re.finditer(":", text)]
    starts = [0, *(colon + 1 for colon in colons)]
    ends = [*colons, len(text)]
    parts = [text[start:end] for start, end in itertools.product(starts, ends)]
    return max(filter(_is_address, parts), key=len, default="")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _of_this_box() -> Iterator[tuple[str, str]]:
    """Each private value of this machine, after the kind of its label."""
    host = socket.gethostname()
    short_host, _, _ = host.partition(".")
    yield "host", host
    yield "host", short_host
    own_uid = os.getuid()
    for entry in pwd.getpwall():
        is_own = entry.pw_uid == own_uid and own_uid != 0  # root is no name
        # Users of services have lower numbers, and names that every box has.
        if is_own or entry.pw_uid >= PEOPLE_FROM:
            full_name, _, _ = entry.pw_gecos.partition(",")
            yield "user", entry.pw_name
            yield "user", full_name
            yield "home", entry.pw_dir
    for variable, value in os.environ.items():
        if variable in LOGIN.split() and value not in ("root", "/root"):
            yield "user", value
        if sounds_secret(variable):
            yield "secret", value
    for pattern in SERIALS.split():
        for file in Path("/").glob(pattern.removeprefix("/")):
            yield "serial", text_of(file)


def _of_bundle(bundle: Bundle | None) -> Iterator[tuple[str, str]]:
    """Each private value of a bundle's box, after the kind of its label; none of a box of the
    workbook.
    """
    if bundle is None or public.box(bundle.box):
        return
    yield "host", bundle.box
    for row in bundle.table("host"):
        yield "serial", row.text("boot_id")
    for row in bundle.table("identity"):
        for group in rows(row.many("groups")):
            gid = group.number("gid")
            if gid is not None and gid >= PEOPLE_FROM:
                yield "user", group.text("name")
