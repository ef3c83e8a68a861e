"""Values that must not leave the box, and the pseudonym each of them gets.

A pseudonym is the same wherever its value stands, so a story still reads: host-1, user-2, gpu-uuid-3. Addresses become those
that RFC 5737 and RFC 3849 keep for documentation. The numbers count values in the order they were met and tell nothing of them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any

from helpers.grammar import vocabulary

WORD_KINDS = ("user", "host", "domain", "person", "wifi", "bucket")
"""Kinds whose values are words: they match only where no letter or digit stands beside them, and a common word is no value."""
KINDS = (
    *WORD_KINDS,
    "home",
    "machine-id",
    "boot-id",
    "serial",
    "gpu-uuid",
    "uuid",
    "mac",
    "ipv4",
    "ipv6",
    "guid",
    "sid",
    "iqn",
    "email",
    "container",
    "ssh-key",
    "private-key",
    "certificate",
    "fingerprint",
    "token",
    "password",
    "url-credential",
    "arguments",
    "payload",
)
COMMON = (
    frozenset(
        """
    root admin administrator user users username name guest test tester demo build builder runner worker jovyan ubuntu debian
    fedora centos rocky arch opensuse suse alpine ec2-user azureuser vagrant docker podman container nobody nogroup daemon bin
    sys adm tty disk lp mail news man proxy kmem dialout fax voice cdrom floppy tape sudo audio dip backup operator list irc src
    shadow utmp video sasl plugdev staff games render input sgx kvm crontab messagebus syslog wheel systemd sshd nginx postgres
    localhost localdomain local lan internal corp home host hosts hostname node server client master gateway router default
    none null true false unknown any all the this that and for not with from int str bool float bytes list dict optional self
    gpu gpus cpu cuda hip rocm amd nvidia intel torch pytorch python python3 jupyter lab notebook notebooks conda train trainer
    training model models data dataset datasets work workspace workbook project projects shared share public opt usr tmp var
    etc dev proc kernel linux windows info warning warn error debug critical notice step steps epoch batch run runs plan http
    https www web api app main box live cache config log logs out outputs report results public-user miniconda3 anaconda3
    version source status kind items item bytes table command raw value values path file files text line lines number type state
    memory total free used limit pages page size time date start stop end open read write error main index cell cells output
    mac serial uuid token email secret password arguments payload person domain bucket wifi example
    """.split()
    )
    | vocabulary()
)
"""Words that name nobody: system accounts and groups, words of the field and of failure messages, and the pseudonyms' own."""
PSEUDONYM = re.compile(rf"(?:{'|'.join(KINDS)}|ip)-\d{{1,6}}")
_GIVEN = re.compile(rf"{PSEUDONYM.pattern}(?:[\x1b<\\].*)?", re.DOTALL)
DOCUMENTATION = tuple(
    ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
)
IPV6_DOCUMENTATION = ipaddress.IPv6Network("2001:db8::/32")
_BESIDE = re.compile(r"[^\W_]")
_FREE_LENGTH = 8
"""Values this long are found inside longer words too: a host's name in a file name without a separator."""


@dataclass(frozen=True)
class Span:
    """A piece of text to be replaced: from ``start`` to before ``end``, by ``name``."""

    start: int
    end: int
    kind: str
    name: str
    joined: bool = False


class Known:
    """Values with their kinds and pseudonyms. It grows as values are found.

    Nothing here prints a value: the repr has only counts, so an error or a log cannot tell one.
    """

    def __init__(self) -> None:
        self.read: dict[
            str, Any
        ] = {}  # texts that were read to learn from, until they are replaced
        self._common: set[str] = set()
        self._names: dict[str, tuple[str, str]] = {}
        self._numbers: dict[str, int] = {}
        self._forms: dict[str, tuple[str, str]] = {}
        self._sorted: list[tuple[str, str, str]] | None = None

    def __repr__(self) -> str:
        return f"Known({len(self._names)} values, {self.common} too common to be replaced)"

    @property
    def common(self) -> int:
        """How many different words were met that are too common to be replaced."""
        return len(self._common)

    def __len__(self) -> int:
        return len(self._forms)

    def add(self, kind: str, value: str) -> str:
        """Remember a value, to be replaced wherever it stands; its pseudonym, or "" where the value names nobody."""
        value = value.strip().strip("\0")
        if (
            kind == "host"
            and (short := value.split(".")[0]) != value
            and not self._refused(kind, short)
        ):
            # A host is the same one with and without its domain.
            self._names.setdefault(_canonical(value), (kind, self.add(kind, short)))
        name = self.name(kind, value)
        if name:
            for form in _forms(kind, value):
                if form not in self._forms:
                    self._forms[form] = (kind, name)
                    self._sorted = None
        return name

    def name(self, kind: str, value: str) -> str:
        """The pseudonym of a value, without looking for it elsewhere; "" where the value names nobody."""
        if self._refused(kind, value):
            return ""
        found = self._names.get(_canonical(value))
        if found is None:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            found = self._names[_canonical(value)] = (kind, _pseudonym(kind, number))
        return found[1]

    def _refused(self, kind: str, value: str) -> bool:
        if len(value) < (3 if kind in WORD_KINDS else 4) or _GIVEN.fullmatch(value.lower()):
            return True
        if kind in WORD_KINDS and (value.lower() in COMMON or not re.search(r"[^\W\d]", value)):
            self._common |= {value.lower()} & COMMON
            return True
        return kind in ("ipv4", "ipv6") and not is_private(value)

    def given(self, word: str) -> tuple[str, str] | None:
        """Kind and pseudonym of a word that is a known value by itself."""
        return self._forms.get(word)

    def spans(self, text: str, shortest: int = 0) -> list[Span]:
        """Where known values of at least ``shortest`` characters stand in a text, in any case. Spans may overlap."""
        if self._sorted is None:
            self._sorted = [(form, *self._forms[form]) for form in sorted(self._forms)]
        low = lower(text)
        found = []
        for form, kind, name in self._sorted:
            at = low.find(form) if len(form) >= shortest else -1
            while at >= 0:
                end = at + len(form)
                if (
                    len(form) >= _FREE_LENGTH
                    and kind != "mac"
                    or not (_BESIDE.match(low[at - 1 : at]) or _BESIDE.match(low[end : end + 1]))
                ):
                    found.append(Span(at, end, kind, name))
                at = low.find(form, end)
        return found


def is_private(address: str) -> bool:
    """Whether an address names a machine: no loopback, no wildcard, none kept for documentation, none that all machines use."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        shared = (
            ip.is_multicast
            or int(ip) >> 24 in (0, 255)
            or address in ("169.254.169.254", "8.8.8.8", "1.1.1.1")
        )
        return not (shared or ip.is_loopback or any(ip in net for net in DOCUMENTATION))
    return not (ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip in IPV6_DOCUMENTATION)


def lower(text: str) -> str:
    """Lower case, of the same length: a few letters (as İ) have a lower case of two characters and stay."""
    low = text.lower()
    return (
        low
        if len(low) == len(text)
        else "".join(c if len(c.lower()) != 1 else c.lower() for c in text)
    )


def _canonical(value: str) -> str:
    """One key for all ways to write a value."""
    value = value.strip().lower()
    plain = re.sub(r"^(?:gpu|mig)-", "", value)
    if re.fullmatch(
        r"(?:[0-9a-f]{2}[:-]?){5}[0-9a-f]{2}|[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}",
        plain,
    ):
        return re.sub("[:_-]", "", plain)
    try:
        return ipaddress.ip_address(value).exploded
    except ValueError:
        return plain


def _forms(kind: str, value: str) -> set[str]:
    """The ways in which a known value is written, lower case."""
    low = lower(value)
    forms = {low, re.sub(r"\s", "", low)}  # the second where a line ends inside it
    if kind == "mac":
        digits = _canonical(value)
        pairs = [digits[i : i + 2] for i in range(0, len(digits), 2)]
        forms |= {
            ":".join(pairs),
            "-".join(pairs),
            digits,
            ".".join(digits[i : i + 4] for i in range(0, len(digits), 4)),
        }
        forms.add(str(int(digits, 16)))
    elif kind in ("gpu-uuid", "uuid", "boot-id", "machine-id"):
        plain = re.sub(r"^(?:gpu|mig)-", "", low)
        forms |= {plain, plain.replace("-", "_"), plain.replace("-", "")}
    elif kind == "container" and len(low) == 64:
        forms.add(low[:12])
    elif kind == "ipv6":
        forms |= {ipaddress.ip_address(low).compressed, ipaddress.ip_address(low).exploded}
    return {form for form in forms if len(form) >= 3}


def _pseudonym(kind: str, number: int) -> str:
    if kind == "ipv4":
        net, last = divmod(number - 1, 254)
        return str(DOCUMENTATION[net][last + 1]) if net < len(DOCUMENTATION) else f"ip-{number}"
    return str(IPV6_DOCUMENTATION[number]) if kind == "ipv6" else f"{kind}-{number}"
