"""What a value that nobody knows beforehand looks like: by its own shape, or by the words that stand before it.

Shapes follow what their issuers print (the token prefixes of GitHub, GitLab, AWS and others; RFC 4291, RFC 7519). Four numbers
with dots are an address unless a version stands there: nvidia-curand-cu12 has been 10.3.9.90.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .redact_known import Known, Span, lower
from .redact_views import View

_IS = r"""["']?\s*(?:[:=]|,\s*["']value["']:|,\s*(?=["'])|</t[hd]>\s*<td>)\s*["']?"""
"""Between a name and its value: a colon or an equals sign, of code, JSON, a shell; the columns of a table of variables."""
_WORD = r"[A-Za-z_][\w-]*(?:\.[\w-]+)*"
_HOST = r"[A-Za-z0-9](?:[\w-]*\w)?(?:\.\w(?:[\w-]*\w)?)*"
_UUID = r"[0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12}"
_FS = r"(?:nfs4?|ceph|lustre|glusterfs|beegfs|gpfs|cifs|smb3|fuse\.\w+)"
_PROMPT = r"(?=:[~/]|[ \t]+[~/][\w./-]*\]?[#$%]|[ \t]+~?\]?[#$])"
_SECRET = (
    r"(?:(?<![a-z])(?:pass(?:word|wd|phrase|code)|pwd|psk)|(?<=db_|er_)pass|secret|token|credentials?|session_?id"
    r"|(?:api|access|secret|auth|private|account|encryption|license)_?-?key)(?:[_-]?(?:key|id|value|hash))?"
)
_SECRET_HINTS = "pass|pwd|psk|secret|token|credential|session|api|access|auth|private|account|encryption|license"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_TLD = (
    "com|org|net|edu|gov|mil|int|info|biz|io|ai|dev|app|cloud|tech|email|online|xyz|science|systems|academy|museum"
    "|(?!so|py)[a-z]{2}"
)
_PAIRS = (
    r":[0-9a-fA-F]{2}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}:|-[0-9a-fA-F]{2}-[0-9a-fA-F]{2}-[0-9a-fA-F]{2}-"
)
_PEM = r"-----BEGIN [A-Z0-9 ]*%s[A-Z ]*-----[\s\S]*?(?:-----END [A-Z0-9 ]+-----|\Z)"


@dataclass(frozen=True)
class Pattern:
    """A kind of value and how it is recognised: the groups v, v2 and v3 are values.

    It is tried only near one of the ``hints``, which are lower case, and where ``gate`` finds anything; with ``at_hint`` only
    where a hint stands. ``strong`` ones leave no doubt and are looked for across the ends of lines too.
    """

    kind: str
    hints: tuple[str, ...]
    regex: re.Pattern[str]
    strong: bool
    at_hint: bool
    secret: bool
    gate: re.Pattern[str] | None


def _p(
    kind: str,
    hints: str,
    regex: str,
    any_case: bool = False,
    strong: bool = False,
    at_hint: bool = False,
    secret: bool = False,
    gate: str = "",
) -> Pattern:
    flags = re.MULTILINE | (re.IGNORECASE if any_case else 0)
    return Pattern(
        kind,
        tuple(hints.split("|")),
        re.compile(regex, flags),
        strong,
        at_hint,
        secret,
        re.compile(gate) if gate else None,
    )


PATTERNS: tuple[Pattern, ...] = (
    # Told by what stands before them.
    _p("user", "home/|users", rf"(?:/home/|/Users/|\b[a-zA-Z]:\\+[uU]sers\\+)(?P<v>{_WORD})"),
    _p(
        "user",
        "user|logname|login",
        r"(?:\b(?:(?:[A-Z]+_)?USER(?:NAME)?|LOGNAME)|\b(?:user(?:_?name)?|login)(?=\s*=|[\"']|:\s*[\"'])"
        rf"|^[ \t]*(?:user|login)(?=:)){_IS}(?P<v>{_WORD})(?=[\"'\s;&<}}\]]|$)",
    ),
    _p("user", "uid=|gid=", rf"\b(?:[ef]?[ug]id|fsuid|auid)=\d+\((?P<v>{_WORD})\)"),
    _p("user", ":/", rf"^(?P<v>{_WORD}):[x*!]?:[1-9]\d{{3,}}:\d+:[^:\n]*:/"),
    _p("person", ":/", r"^[\w.-]+:[x*!]?:[1-9]\d{3,}:\d+:(?P<v>[^:,\n]+)[^:\n]*:/"),
    _p(
        "user",
        "user |accepted |sudo -u|chown ",
        rf"(?:session (?:opened|closed) for user|Accepted \w+ for|invalid user|sudo -u|chown|by user) (?P<v>{_WORD})",
    ),
    _p("user", "@", rf"(?<![\w.@:/])(?P<v>[a-z_][\w-]{{1,31}})@{_HOST}{_PROMPT}"),
    _p("host", "@", rf"(?<![\w.@:/])[a-z_][\w-]{{1,31}}@(?P<v>{_HOST}){_PROMPT}"),
    _p("user", "@", rf"\b(?:ssh|scp|rsync|sftp|mosh)\b[^\n]*?[ \t](?P<v>{_WORD})@{_HOST}"),
    _p("host", "@", rf"\b(?:ssh|scp|rsync|sftp|mosh)\b[^\n]*?[ \t]{_WORD}@(?P<v>{_HOST})"),
    _p(
        "host",
        "host|node|master_addr|computername",
        rf"\b(?:(?:SLURM_)?SUBMIT_HOST|HOST|\w*NODE_?NAME|\w*NODELIST|MASTER_ADDR|COMPUTERNAME"
        rf"|(?i:host[ _-]?name|node_?name)){_IS}(?P<v>{_HOST})(?=[\"'\s,;&<)}}\]]|$)",
    ),
    _p("host", "linux ", rf"\bLinux (?!version )(?P<v>{_HOST}) \d+\.\d+\.\d+"),
    _p(
        "host",
        "kernel:|]:",
        rf"^(?:[A-Z][a-z]{{2}} +\d{{1,2}} \d\d:\d\d:\d\d|\d{{4}}-\d\d-\d\dT[\d:.,]+(?:[+-]\d\d:?\d\d|Z)) "
        rf"(?P<v>{_HOST}) (?:kernel|[\w./@-]+\[\d+\]):",
    ),
    _p(
        "host",
        ".",
        r"^(?:\d{1,3}\.){3}\d{1,3}[ \t]+(?P<v>[A-Za-z][\w.-]+)(?:[ \t]+(?P<v2>[A-Za-z][\w.-]+))?[ \t]*$",
    ),
    _p(
        "host",
        ":/",
        rf"^(?P<v>{_HOST}):/\S*[ \t]+"
        rf"(?:(?:on[ \t]+)?/\S*[ \t]+(?:type[ \t]+)?{_FS}\b|[\d.]+[KMGTP]?[ \t]+[\d.]+)",
    ),
    _p(
        "host",
        "//",
        rf"(?:^|[ \t])//(?P<v>{_HOST})/\S+[ \t]+(?:on[ \t]+)?/\S*[ \t]+(?:type[ \t]+)?{_FS}\b",
    ),
    _p(
        "host", "nfs|ceph|lustre|fs |cifs|smb3|fuse", rf"\b{_FS}[ \t]+(?://)?(?P<v>{_HOST})(?::/|/)"
    ),
    _p("host", "http", r"\bhttps?://(?:[^\s/@]+@)?(?P<v>[A-Za-z][\w-]+)(?=[:/])"),
    _p(
        "host",
        ".lan|.corp|.intranet|.localdomain|.home.arpa|.ts.net|.cluster.local",
        r"(?<![\w.@-])(?P<v>(?:[a-zA-Z0-9][\w-]*\.)+(?:lan|corp|intranet|localdomain|home\.arpa|ts\.net|cluster\.local))\b(?![\w(=.-])",
    ),
    _p(
        "host",
        ".local|.internal|.home|.private",
        r"(?<![\w.@-])(?P<v>[a-zA-Z][\w-]*(?:-\w*|\d)(?:\.[\w-]+)*\.(?:local|internal|home|private))\b(?![\w(=-])",
    ),
    _p(
        "domain",
        "search|domain",
        r"^(?:search|domain)[ \t]+(?P<v>[\w-]+\.[\w.-]+)(?:[ \t]+(?P<v2>[\w-]+\.[\w.-]+))?",
    ),
    _p(
        "container",
        "docker|container|libpod|crio|podman|kubepods|lxc|moby|overlay2",
        r"(?:docker|containers?|cri-containerd|libpod|crio|podman|containerd|kubepods|lxc|moby|overlay2)"
        r"(?:[-/:]\S*?[-/:]|[-/:]+)(?P<v>[0-9a-f]{64})",
    ),
    _p(
        "container",
        "container",
        rf"\bcontainer[ _-]?id{_IS}(?:\w+://)?(?P<v>[0-9a-f]{{64}}|[0-9a-f]{{12}})\b",
        any_case=True,
    ),
    _p(
        "serial",
        "serial|unique|tag|s/n",
        r"(?<![a-z])(?:serial(?:[ _-]?(?:number|num|no|nr))?|unique[ _-]?id|asset[ _-]?tag"
        r"|service[ _-]?tag|\bS/N)[\"']?\)?(?:\s*[:=>]\s*|\s*</t[dh]>\s*<td>\s*)[\"']?"
        r"(?P<v>(?=[\w.-]*\d)[A-Z0-9][\w.-]{4,}\w)(?![\w/])",
        any_case=True,
    ),
    _p("serial", "unique_id", r"^unique_id[ \t]+(?P<v>\d{6,})$"),
    _p("serial", "/by-id/", r"/by-id/(?:ata|nvme|scsi|usb|wwn|virtio)-(?P<v>[\w.:-]{6,})"),
    _p("machine-id", "machine", rf"\bmachine[ _-]?id{_IS}(?P<v>[0-9a-f]{{32}})\b", any_case=True),
    _p(
        "boot-id",
        "boot",
        rf"\bboot(?:[ _-]?id{_IS}| )(?P<v>[0-9a-f]{{32}}|{_UUID})\b",
        any_case=True,
    ),
    _p(
        "wifi",
        "ssid",
        r"\bE?SSID[\"']?\s*[:=]\s*(?:[\"'](?P<v>[^\"'\n]{2,32})[\"']|(?P<v2>[^\s\"'][^\n\"']{1,31}?)\s*$)",
        any_case=True,
    ),
    _p(
        "bucket",
        "://",
        r"\b(?:s3[an]?|gs|gcs|oss|r2|minio|wasbs?|abfss?)://(?:[^\s/@]+@)?(?P<v>[a-z0-9][a-z0-9._-]{2,62})"
        r"|//(?P<v2>[a-z0-9][a-z0-9-]{2,62})\.(?:s3[.-]|blob\.core\.|storage\.googleapis)",
    ),
    _p(
        "person",
        "author:|committer:|-by:",
        r"(?:Author|Committer|(?:Signed-off|Co-authored|Reported|Tested)-by):[ \t]*(?P<v>[^<\n]{3,60}?)[ \t]*<",
    ),
    _p(
        "person",
        "user.name|git_",
        r"\b(?:user\.name|GIT_(?:AUTHOR|COMMITTER)_NAME)[\"']?\s*[= ]\s*[\"']?(?P<v>[^\n\"'=]{3,60}?)[ \t]*(?:[\"']|$)",
    ),
    _p(
        "token",
        _SECRET_HINTS,
        rf"{_SECRET}{_IS}(?:(?<=[\"'])(?P<v>[^\"'\n\\\x1b]{{4,512}})(?=[\"'])"
        r"|(?<![\"'])(?P<v2>[^\s\"'`,;()\[\]{}<>&\x1b]{4,512}))",
        any_case=True,
        at_hint=True,
        secret=True,
    ),
    _p(
        "token",
        "--",
        r"--(?:\w+-)*(?:password|passwd|token|secret|api-?key|auth)(?:=|[ \t]+|[\"'],\s*)[\"']?(?P<v>[^\s\"'\x1b]{4,})",
    ),
    _p("token", "login", r"\blogin\s+\S+\s+password\s+(?P<v>\S+)"),
    _p(
        "token",
        "authorization|bearer|cookie",
        r"\b(?:Authorization[\"']?\s*[:=]\s*[\"']?(?:Basic|Bearer|token|Digest)\s+"
        r"|Cookie[\"']?\s*[:=]\s*[\"']?)(?P<v>[^\"'\n\x1b]{4,})|\bBearer\s+(?P<v2>[\w.~+/=-]{12,})",
        any_case=True,
    ),
    _p("url-credential", "@", r"://(?P<v>[^\s/:@\"'<>]{0,128}:[^\s/@\"'<>]{1,512}|[\w-]{12,})@"),
    _p(
        "url-credential",
        "=",
        r"[?&](?:[\w-]*token|auth|api_?key|key|sig|signature|password|pwd|secret|X-Amz-Credential"
        r"|X-Amz-Signature|AWSAccessKeyId|GoogleAccessId)=(?P<v>[^&\s\"'<>#]{4,})",
        any_case=True,
    ),
    # Told by their own shape.
    _p("gpu-uuid", "gpu-|mig-", rf"\b(?P<v>(?:GPU|MIG)-{_UUID}|GPU-[0-9a-f]{{16}})\b", strong=True),
    _p(
        "uuid",
        "-|_",
        rf"(?<![0-9a-zA-Z-])(?P<v>{_UUID})(?![\w-])|(?<=[a-z]-)(?P<v2>{_UUID})(?![\w-])|(?<=pod)(?P<v3>{_UUID})",
        strong=True,
        gate=r"[-_][0-9a-fA-F]{4}[-_][0-9a-fA-F]{4}[-_]",
    ),
    _p(
        "mac",
        ":|-",
        r"(?<![\w:-])(?P<v>[0-9a-fA-F]{2}(?P<s>[:-])(?:[0-9a-fA-F]{2}(?P=s)){4}[0-9a-fA-F]{2})(?![:-]?\w)",
        strong=True,
        gate=_PAIRS,
    ),
    _p(
        "guid",
        ":|-",
        r"(?<![\w:-])(?P<v>[0-9a-fA-F]{2}(?P<s>[:-])(?:[0-9a-fA-F]{2}(?P=s)){6,18}[0-9a-fA-F]{2})(?![\w:-])",
        strong=True,
        gate=_PAIRS,
    ),
    _p(
        "guid",
        "_guid|wwn-|eui.|naa.|nguid.",
        r"_guid\s*[:=]?\s*(?P<v>(?:[0-9a-f]{4}:){3}[0-9a-f]{4})"
        r"|\b(?:wwn-|eui\.|naa\.|nguid\.)(?P<v2>(?:0x)?[0-9a-f]{16,32})\b",
        strong=True,
    ),
    _p("sid", "s-1-5-21", r"\b(?P<v>S-1-5-21-\d+-\d+-\d+(?:-\d+)?)\b", strong=True),
    _p("iqn", "iqn.", r"\b(?P<v>iqn\.\d{4}-\d\d\.[\w.:-]+)"),
    _p(
        "token",
        "gh|gl|hf_|npm_|pypi-|dckr_|dapi|nvapi-|dop_|doo_|dor_|sk|rk_|sg.|ac|sq0",
        r"\b(?P<v>gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22,82}|gl(?:pat|dt|rt)-[\w-]{20}|hf_[A-Za-z]{34}|npm_[A-Za-z0-9]{36}"
        r"|pypi-[\w-]{16,}|dckr_pat_[\w-]{27}|dapi[0-9a-f]{32}|nvapi-[\w-]{40,70}|do[opr]_v1_[0-9a-f]{64}|SG\.[\w-]{22}\.[\w-]{43}"
        r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|sk-(?:[a-z]+-)*[\w-]{20,}|SK[0-9a-f]{32}|AC[0-9a-f]{32}|AKC[A-Za-z0-9]{10,}"
        r"|sq0(?:atp|csp)-[\w-]{22,43})(?![A-Za-z0-9])",
        strong=True,
        at_hint=True,
    ),
    _p(
        "token",
        "akia|asia|aida|aroa|aiza|xox|eyj|:aa|services/|webhooks/",
        r"\b(?P<v>(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}|AIza[\w-]{35}|xox[abeoprs]-[A-Za-z0-9-]{10,72}|\d{8,10}:AA[\w-]{33}"
        r"|eyJ[\w-]{8,}\.eyJ[\w-]{4,}(?:\.[\w-]*)?)(?![A-Za-z0-9])"
        r"|https?://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/(?P<v2>[\w/-]{16,})",
        strong=True,
    ),
    _p("token", "-us", r"\b(?P<v>[0-9a-f]{32}-us\d{1,2})\b", strong=True),
    _p(
        "token",
        ".",
        r"\b(?P<v>[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,38})(?![\w.-])",
        strong=True,
        gate=r"\.[\w-]{6}\.",
    ),
    _p(
        "fingerprint",
        "sha256:|md5:",
        r"\b(?P<v>SHA256:[A-Za-z0-9+/]{43})=?|\bMD5:(?P<v2>(?:[0-9a-f]{2}:){15}[0-9a-f]{2})",
    ),
    _p("private-key", "-----begin", rf"(?P<v>{_PEM % 'PRIVATE KEY'})", at_hint=True),
    _p(
        "certificate",
        "-----begin",
        rf"(?P<v>{_PEM % '(?:CERTIFICATE|PGP|SSH2|PUBLIC KEY)'})",
        at_hint=True,
    ),
    _p(
        "ssh-key",
        "aaaa",
        r"\b(?P<v>(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-\w+|sk-\w+(?:-\w+)*@openssh\.com)\s+"
        r"AAAA[A-Za-z0-9+/]{16,}={0,3}(?:[ \t]+[\w.+-]+@[\w.-]+)?)",
    ),
    _p(
        "email",
        "@",
        rf"(?<![\w.+@-])(?!git@)(?P<v>[A-Za-z0-9][\w.+-]*@(?:[A-Za-z0-9][\w-]*\.)+(?:{_TLD}))(?![\w(@-]|\.\w|:[\w~])",
    ),
    _p(
        "ipv4",
        ".",
        rf"(?<![\w.+~-])(?P<v>{_OCTET}(?:\.{_OCTET}){{3}})(?![\w+~]|\.\w|-(?!\d{{1,3}}\.))"
        rf"|(?<=[\d.]{{3}}-)(?P<v2>{_OCTET}(?:\.{_OCTET}){{3}})(?![\w+~-]|\.\w)",
        gate=r"\.\d{1,3}\.\d{1,3}\.\d",
    ),
    _p("host", "ip-", rf"\b(?P<v>ip-{_OCTET}(?:-{_OCTET}){{3}})\b"),
    _p(
        "ipv6",
        ":",
        r"(?<![\w:.])"
        r"(?P<v>(?:[23][0-9a-f]{3}|f[cde][0-9a-f]{2})(?::[0-9a-f]{0,4}){2,7}|::ffff:[\d.]{7,15})(?![\w:]|\.\d)",
        any_case=True,
        strong=True,
        gate=r"::|:[0-9a-fA-F]{3,4}:",
    ),
)
_VERSION_BEFORE = re.compile(
    r"(?:[<>=~!]=\s*|\b[vV]|\b(?:version|release|driver|firmware|v?bios|\w*cudnn|\w*cublas\w*|\w*nccl|rocm|cuda|toolkit|build"
    r"|wheel)[\"']?(?:\s*[:=|]\s*|\s+|\s*</t[hd]>\s*<td>)[\"']?|-cu\d\d\b[\"']?[\s:=,|\"']*|<td>nvidia-[\w-]+</td>\s*<td>)$",
    re.IGNORECASE,
)
_NO_TOKEN_BEFORE = re.compile(
    r"(?:pad|eos|bos|unk|mask|cls|sep|special|next|num|per|max|min|first|last|prompt|image|audio|new"
    r"|stop|by|each|s)[_ -]?$",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"none|null|true|false|str|int|bytes|bool|optional|any|\.\.\.|[*x•]+|os\.environ.*|getpass.*|"
    r"(?:self|args|cfg|config|settings|kwargs)\.\w+|[$%{<].*|[\d.,eE+_-]*"
    r"|[\d.,]+(?:[munµ]?s|[kmgt]i?b|%|x|it/s)",
    re.IGNORECASE,
)
_PIECE, _NEAR, _BEYOND = 2048, 256, 2048
"""A text is read in pieces of so many characters: a pattern is tried only in those that hold one of its hints, or nearly."""


def spans(view: View, known: Known, strong: bool = False) -> Iterator[Span]:
    """Every value that a pattern finds. They are remembered, to be found elsewhere too. ``strong`` tries the surest alone."""
    text, low = view.text, lower(view.text)
    pieces = [
        (start, low[max(0, start - 64) : start + _PIECE + _NEAR])
        for start in range(0, len(text), _PIECE)
        if view.differs(start, start + _PIECE + _NEAR)
    ]
    for pattern in PATTERNS:
        if pattern.strong or not strong:
            for match in (
                _at_hints(pattern, text, low)
                if pattern.at_hint
                else _near_hints(pattern, text, pieces)
            ):
                yield from _values(pattern, match, text, known)


def _at_hints(pattern: Pattern, text: str, low: str) -> Iterator[re.Match[str]]:
    for hint in pattern.hints:
        at = low.find(hint)
        while at >= 0:
            if match := pattern.regex.match(text, at):
                yield match
            at = low.find(hint, at + len(hint))


def _near_hints(
    pattern: Pattern, text: str, pieces: list[tuple[int, str]]
) -> Iterator[re.Match[str]]:
    for start, near in pieces:
        if any(hint in near for hint in pattern.hints) and (
            pattern.gate is None or pattern.gate.search(near)
        ):
            for match in pattern.regex.finditer(
                text, start, min(len(text), start + _PIECE + _BEYOND)
            ):
                if match.start() >= start + _PIECE:
                    break
                yield match


def _values(pattern: Pattern, match: re.Match[str], text: str, known: Known) -> Iterator[Span]:
    for group, value in match.groupdict().items():
        if value and group[0] == "v" and _is_value(pattern, match, group, text):
            # A short secret may be a word: it goes here, and stays elsewhere.
            short = (
                len(value) < 6 and pattern.kind in ("token", "url-credential") or len(value) > 2000
            )
            name = (known.name if short else known.add)(pattern.kind, value)
            if name:
                yield Span(match.start(group), match.end(group), pattern.kind, name)


def _is_value(pattern: Pattern, match: re.Match[str], group: str, text: str) -> bool:
    value, start = match[group], match.start(group)
    if pattern.kind == "ipv4":
        return not _VERSION_BEFORE.search(text[max(0, start - 60) : start])
    if pattern.kind == "ipv6":
        return sum(map(bool, value.split(":"))) >= 4 or bool(re.search("[a-fA-F]", value))
    if pattern.kind in ("mac", "uuid", "guid"):
        return len(set(value.lower()) - set("0f:-_")) > 0
    return not pattern.secret or _is_secret(
        match[0][: start - match.start()],
        value,
        text[match.end(group) :][:1],
        group == "v2",
        text[max(0, match.start() - 12) : match.start()],
    )


def _is_secret(name: str, value: str, after: str, bare: bool, before: str) -> bool:
    """Whether what follows a word as "token" or "password" is one, not code, a type, a count or a placeholder."""
    if re.match("token", name, re.IGNORECASE) and (
        _NO_TOKEN_BEFORE.search(before) or not re.search(r"[^\d.,]", value)
    ):
        return False
    if _NO_SECRET.fullmatch(value) and not (
        re.match("pass|pwd|psk", name, re.IGNORECASE) and re.fullmatch(r"\d{4,}", value)
    ):
        return False
    if not bare:
        return not value.isspace()
    if after in ("(", "[") or value.startswith("="):
        return False
    # A name of code, unless it stands as a setting of a file does.
    return not re.fullmatch(r"[A-Za-z_.]+", value) or (
        after not in (",", ")", "]")
        and value.lower() not in name.lower()
        and (bool(re.search(r"[A-Z]{4}", name)) or ":" in name or "= " not in name)
    )
