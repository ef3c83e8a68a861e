"""Made-up secrets of 30 kinds, the tree of a box that knows some of them, and every place of a notebook that holds text.

Nothing here was ever real. Values with a prefix that scanners know are put together at run time.
"""

import base64
import html
import json
import random
import re
import string
import struct
import urllib.parse
import zlib
from pathlib import Path

DATA = Path(__file__).with_name("data")
EACH = 10
MUST_KEEP = [
    one
    for line in (DATA / "redact_keep.txt").read_text(encoding="utf-8").splitlines()
    for one in line.split("|")
]
"""Strings that must come through unchanged: the numbers and names that a case of memory is told with."""
KINDS = json.loads((DATA / "redact_kinds.json").read_text(encoding="utf-8"))["kinds"]
KNOWN = tuple(kind for kind, row in KINDS.items() if row.get("known"))
ALPHABETS = {
    "hex": "0123456789abcdef",
    "nozero": "123456789abcdef",
    "digit": string.digits,
    "upper": string.ascii_uppercase,
    "letter": string.ascii_letters,
    "alnum": string.ascii_letters + string.digits,
}
SYLLABLES = "bra dok fen gul hax jor kip lum mur nol pex qui ryd sov tam vek wyz zan".split()


def secrets(seed=1):
    """Kind to ten values, the same for one seed. The known kinds are known from the box, the others only by detectors."""
    rng = random.Random(seed)

    def piece(match):
        name = match[1]
        count = int(match[2] or 0)
        if name == "uuid":
            return re.sub(
                "x+", lambda x: letters("hex", len(x[0])), f"{'x' * 8}-xxxx-xxxx-xxxx-{'x' * 12}"
            )
        if name == "byte":
            return str(rng.randint(2, 250))
        if name.lower() == "word":
            word = "".join(rng.choice(SYLLABLES) for _ in range(count))
            return word.title() if name == "Word" else word
        return letters(name, count)

    def letters(alphabet, count):
        return "".join(rng.choice(ALPHABETS[alphabet]) for _ in range(count))

    return {
        kind: [re.sub(r"<(\w+) ?(\d*)>", piece, row["value"]).replace("·", "") for _ in range(EACH)]
        for kind, row in KINDS.items()
    }


def told(kind, value):
    return KINDS[kind].get("told", "{}").replace("·", "").format(value)


def tree(root, made):
    """A box's files under ``root``; each of the ten values of the known kinds stands where its box would keep it."""
    people = list(zip(made["user"], made["person"], made["home"], strict=True))
    files = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n"
        + "".join(
            f"{user}:x:{1000 + i}:1000:{person},,,:{home}:/bin/sh\n"
            for i, (user, person, home) in enumerate(people)
        ),
        "etc/hosts": "127.0.0.1 localhost\n"
        + "".join(f"192.168.9.{i + 2} {host}\n" for i, host in enumerate(made["host"])),
        "etc/hostname": made["host"][0] + "\n",
        "etc/machine-id": made["machine-id"][0] + "\n",
        "proc/sys/kernel/random/boot_id": made["boot-id"][0] + "\n",
        "proc/mounts": "".join(f"{host}:/export /mnt nfs4 rw 0 0\n" for host in made["nfs"]),
        "proc/self/cgroup": "".join(
            f"0::/system.slice/docker-{one}.scope\n" for one in made["container"]
        ),
    }
    for i in range(EACH):
        files |= {
            f"sys/class/net/eth{i}/address": made["mac"][i] + "\n",
            f"sys/class/dmi/id/{i}_serial": made["serial"][i] + "\n",
            f"sys/class/drm/card{i}/device/unique_id": made["unique-id"][i] + "\n",
            f"proc/driver/nvidia/gpus/{i}/information": f"GPU UUID: \t {made['gpu-uuid'][i]}\n",
            f"proc/{i + 100}/cmdline": f"/usr/bin/prog\0{made['arguments'][i]}\0",
            f"etc/NetworkManager/system-connections/{made['wifi'][i]}.nmconnection": "",
            f"etc/ssh/host{i}.pub": f"ssh-ed25519 {made['ssh-key'][i]} key\n",
        }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return {f"JOB_{i}_TOKEN": value for i, value in enumerate(made["environment"])}


def known_besides(made):
    """Values of the known kinds of which a box has only one: the other nine are told as a log would."""
    lines = [f"machine-id: {one}" for one in made["machine-id"]]
    return "\n".join(lines + [f"boot_id: {one}" for one in made["boot-id"]])


def between(before, middle, after):
    """A way to write a text: with something before it, in its middle and behind it."""

    def form(text):
        half = len(text) // 2
        return before + text[:half] + middle + text[half:] + after

    return form


FORMS = {
    "plain": str,
    "url": lambda t: urllib.parse.quote(t, safe=""),
    "url-lower": lambda t: urllib.parse.quote(t, safe="").lower(),
    "json": lambda t: json.dumps(json.dumps(t + "\n")),
    "json-wide": lambda t: "".join(f"\\u{ord(c):04x}" for c in t),
    "html": lambda t: html.escape(t).replace("@", "&#64;").replace("/", "&#x2F;"),
    "colour": between("", "\x1b[1;31m", "\x1b[0m"),
    "line": between("", "\n    ", ""),
    "tag": between('<span class="n">', "</span><b>", "</b>"),
    "upper": str.upper,
    "beside": lambda t: f"x\n\\n{t}\\n({t})",
    "base64": lambda t: encoded(f"of the job {t} here".encode()),
}


def png(words):
    """A picture of one pixel with words in its metadata and behind its end."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    words = words.encode()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    said = chunk(b"tEXt", b"Author\0" + words) + chunk(b"eXIf", b"MM\0*" + words)
    drawn = chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + said + drawn + words


def encoded(raw):
    return base64.b64encode(raw).decode()


def places(text):
    """The notebook of redact_places.json with ``text(n)`` in the n-th place that holds text, and the count of places."""
    count = 0

    def filled(words):
        nonlocal count
        pieces = words.split("◆")
        count += len(pieces) - 1
        for n in range(count - len(pieces) + 1, count):
            pieces[:2] = [pieces[0] + text(n) + pieces[1]]
        kind, _, rest = pieces[0].partition(" ")
        makers = {"png": png, "base64": str.encode}
        return encoded(makers[kind](rest)) if kind in makers else pieces[0]

    def walk(one):
        if isinstance(one, dict):
            return {filled(key): walk(value) for key, value in one.items()}
        if isinstance(one, list):
            return [walk(value) for value in one]
        return filled(one) if isinstance(one, str) else one

    return walk(json.loads((DATA / "redact_places.json").read_text(encoding="utf-8"))), count


def told_again(data):
    """Every text in data as a reader could see it: with escapes undone, colours, tags and line ends left out, base64 read."""
    texts = []

    def walk(one):
        if isinstance(one, dict):
            walk(list(one))
            walk(list(one.values()))
        elif isinstance(one, (list, tuple)):
            if one and all(isinstance(o, str) for o in one):
                walk("".join(one))
            for value in one:
                walk(value)
        elif isinstance(one, (str, int, float)):
            texts.append(str(one))

    walk(data)
    for text in list(texts):
        for run in re.findall(r"[A-Za-z0-9+/]{16,}={0,2}", text):
            try:
                texts.append(base64.b64decode(run + "=" * (-len(run) % 4)).decode("latin-1"))
            except ValueError:
                continue
    return "\n".join([*(bare(text) for text in texts), *texts])


def bare(text):
    for _ in range(3):
        text = html.unescape(urllib.parse.unquote(text))
        text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), text)
        text = text.replace('\\"', '"').replace("\\\\", "\\")
    return re.sub(r"\s+", "", re.sub(r"\x1b\[[0-9;]*m|<[^<>]*>", "", text))
