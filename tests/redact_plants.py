"""Made-up secrets of 30 kinds, the tree of a box that knows some of them, and every place of a notebook that holds text.

Nothing here was ever real. Values with a prefix that scanners know are put together at run time.
"""

import base64
import html
import json
import random
import string
import struct
import urllib.parse
import zlib

EACH = 10
LOWER, HEX, ALNUM = string.ascii_lowercase, "0123456789abcdef", string.ascii_letters + string.digits
SYLLABLES = [
    "bra",
    "dok",
    "fen",
    "gul",
    "hax",
    "jor",
    "kip",
    "lum",
    "mur",
    "nol",
    "pex",
    "qui",
    "ryd",
    "sov",
    "tam",
    "vek",
    "wyz",
    "zan",
]


class Maker:
    """Random values that repeat from run to run."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def of(self, letters, count):
        return "".join(self.random.choice(letters) for _ in range(count))

    def word(self, parts=3):
        return "".join(self.random.choice(SYLLABLES) for _ in range(parts))

    def uuid(self):
        return "-".join(self.of(HEX, n) for n in (8, 4, 4, 4, 12))

    def octets(self, first):
        return ".".join(
            [first, *(str(self.random.randint(2, 250)) for _ in range(4 - first.count(".") - 1))]
        )


def secrets(seed=1):
    """Kind to ten values. The first group is known from the box, the second only told by patterns."""
    m = Maker(seed)
    made = {
        "host": lambda: m.word() + m.of("0123456789", 2),
        "user": m.word,
        "person": lambda: f"{m.word(2).title()} {m.word().title()}",
        "home": lambda: f"/data/people/{m.word(4)}",
        "machine-id": lambda: m.of(HEX, 32),
        "boot-id": m.uuid,
        "serial": lambda: m.of(string.ascii_uppercase, 3) + m.of(string.digits, 8),
        "unique-id": lambda: "a" + m.of(HEX, 14) + "7",
        "gpu-uuid": lambda: "GPU-" + m.uuid(),
        "mac": lambda: ":".join(["3c", *(m.of(HEX, 2) for _ in range(5))]),
        "container": lambda: m.of(HEX, 64),
        "nfs": lambda: "nas-" + m.word(),
        "environment": lambda: m.of(ALNUM, 24),
        "arguments": lambda: f"--run-for={m.word(5)}-{m.of(string.digits, 4)}",
        "wifi": lambda: f"{m.word().title()} Upstairs",
        "ssh-key": lambda: "AAAAC3NzaC1lZDI1" + m.of(ALNUM, 52),
        "ipv4": lambda: m.octets("10"),
        "ipv6": lambda: "fd12:" + ":".join(m.of("123456789abcdef", 4) for _ in range(7)),
        "email": lambda: f"{m.word()}.{m.word()}@{m.word()}.com",
        "github": lambda: "gh" + "p_" + m.of(ALNUM, 36),
        "hugging-face": lambda: "h" + "f_" + m.of(string.ascii_letters, 34),
        "aws-id": lambda: "AK" + "IA" + m.of(string.ascii_uppercase, 16),
        "aws-secret": lambda: m.of(ALNUM, 38) + "9x",
        "jwt": lambda: (
            ".".join("ey" + "J" + m.of(ALNUM, 20) for _ in range(2)) + "." + m.of(ALNUM, 30)
        ),
        "url": lambda: f"{m.word()}:{m.of(ALNUM, 12)}",
        "signature": lambda: m.of(HEX, 62) + "zz",
        "password": lambda: m.word() + "!" + m.of(string.digits, 3),
        "disk": m.uuid,
        "slack": lambda: "xo" + "xb-" + m.of(string.digits, 11) + "-" + m.of(ALNUM, 24),
        "private-key": lambda: m.of(ALNUM, 64),
    }
    return {kind: [make() for _ in range(EACH)] for kind, make in made.items()}


KNOWN = (
    "host",
    "user",
    "person",
    "home",
    "machine-id",
    "boot-id",
    "serial",
    "unique-id",
    "gpu-uuid",
    "mac",
    "container",
    "nfs",
    "environment",
    "arguments",
    "wifi",
    "ssh-key",
)
TOLD = {
    "aws-secret": "aws_secret_access_key = {}",
    "url": "https://{}@files.example.org/x",
    "signature": "https://b.example.org/x?X-Amz-Signature={}",
    "password": 'password="{}"',
    "disk": "root=UUID={} ro",
    "private-key": "-----BEGIN OPENSSH "
    + "PRIVATE KEY-----\n{}\n-----END OPENSSH "
    + "PRIVATE KEY-----",
    "ssh-key": "ssh-ed25519 {} key",
}
"""How a value stands that only its surroundings tell."""


def told(kind, value):
    return TOLD.get(kind, "{}").format(value)


def tree(root, made):
    """A box's files under ``root``; each of the ten values of the known kinds stands where its box would keep it."""

    def put(path, text):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    people = zip(made["user"], made["person"], made["home"], strict=True)
    put(
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\n"
        + "".join(
            f"{user}:x:{1000 + i}:1000:{person},,,:{home}:/bin/sh\n"
            for i, (user, person, home) in enumerate(people)
        ),
    )
    put(
        "etc/hosts",
        "127.0.0.1 localhost\n"
        + "".join(f"192.168.9.{i + 2} {host}\n" for i, host in enumerate(made["host"])),
    )
    put("etc/hostname", made["host"][0] + "\n")
    put("etc/machine-id", made["machine-id"][0] + "\n")
    put("proc/sys/kernel/random/boot_id", made["boot-id"][0] + "\n")
    for i in range(EACH):
        put(f"sys/class/net/eth{i}/address", made["mac"][i] + "\n")
        put(f"sys/class/dmi/id/{i}_serial", made["serial"][i] + "\n")
        put(f"sys/class/drm/card{i}/device/unique_id", made["unique-id"][i] + "\n")
        put(
            f"proc/driver/nvidia/gpus/{i}/information",
            f"Model: A card\nGPU UUID: \t {made['gpu-uuid'][i]}\n",
        )
        put(f"proc/{i + 100}/cmdline", f"/usr/bin/prog\0{made['arguments'][i]}\0")
        put(f"etc/NetworkManager/system-connections/{made['wifi'][i]}.nmconnection", "")
        put(f"etc/ssh/host{i}.pub", f"ssh-ed25519 {made['ssh-key'][i]} key\n")
    put(
        "proc/mounts",
        "".join(f"{host}:/export /mnt/{i} nfs4 rw 0 0\n" for i, host in enumerate(made["nfs"])),
    )
    put(
        "proc/self/cgroup",
        "".join(f"0::/system.slice/docker-{one}.scope\n" for one in made["container"]),
    )
    return {f"JOB_{i}_TOKEN": value for i, value in enumerate(made["environment"])}


def known_besides(made):
    """Values of the known kinds of which a box has only one: the other nine are told as a log would."""
    lines = [f"machine-id: {one}" for one in made["machine-id"]] + [
        f"boot_id: {one}" for one in made["boot-id"]
    ]
    return "\n".join(lines)


def split_by_colour(text):
    middle = len(text) // 2
    return f"{text[:middle]}\x1b[1;31m{text[middle:]}\x1b[0m"


def split_by_line(text):
    middle = len(text) // 2
    return f"{text[:middle]}\n    {text[middle:]}"


def split_by_tag(text):
    middle = len(text) // 2
    return f'<span class="n">{text[:middle]}</span><b>{text[middle:]}</b>'


FORMS = {
    "plain": str,
    "url": lambda t: urllib.parse.quote(t, safe=""),
    "url-lower": lambda t: urllib.parse.quote(t, safe="").lower(),
    "json": lambda t: json.dumps(json.dumps(t + "\n")),
    "json-wide": lambda t: "".join(f"\\u{ord(c):04x}" for c in t),
    "html": lambda t: html.escape(t).replace("@", "&#64;").replace("/", "&#x2F;"),
    "colour": split_by_colour,
    "line": split_by_line,
    "tag": split_by_tag,
    "upper": str.upper,
    "beside": lambda t: f"x\n\\n{t}\\n({t})",
    "base64": lambda t: base64.b64encode(f"of the job {t} here".encode()).decode(),
}


def png(words):
    """A picture of one pixel with words in its metadata and behind its end."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
        + chunk(b"tEXt", b"Author\0" + words.encode())
        + chunk(b"eXIf", b"MM\0*" + words.encode())
        + chunk(b"IDAT", zlib.compress(b"\0\0"))
        + chunk(b"IEND", b"")
        + words.encode()
    )


def jpeg(words):
    """The frame of a JPEG with words in EXIF and a comment."""

    def segment(marker, data):
        return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data

    return (
        b"\xff\xd8"
        + segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
        + segment(0xE1, b"Exif\0\0" + words.encode())
        + segment(0xFE, words.encode())
        + segment(0xDB, bytes(65))
        + segment(0xDA, b"\1\1\0\0\x3f\0")
        + b"\x12\x34\xff\x00"
        + b"\xff\xd9"
        + words.encode()
    )


def encoded(raw):
    return base64.b64encode(raw).decode()


def places(text):
    """A notebook of many cells; each holds ``text(n)`` in place n of those that hold text. The count of places with it."""
    numbers = iter(range(10_000))

    def t():
        return text(next(numbers))

    def out(**data):
        return {"output_type": "display_data", "data": data, "metadata": {}}

    mime = {
        "text/plain": t(),
        "text/html": f"<p title='{t()}'>{t()}</p>",
        "text/markdown": f"* {t()}",
        "text/latex": f"\\text{{{t()}}}",
        "application/javascript": f"let a = '{t()}';",
        "image/svg+xml": f"<svg><text>{t()}</text><desc>{t()}</desc></svg>",
        "application/json": {"a": [t(), {"b": t()}]},
        "application/vnd.maker.x+json": {"rows": [[1, t()], [2, t()]]},
        "application/vnd.jupyter.widget-view+json": {"model_id": "0" * 32},
    }
    cells = [
        {
            "cell_type": "markdown",
            "id": "a1",
            "source": f"# Notes\n{t()}\nand",
            "metadata": {"who": t()},
            "attachments": {
                "shot.png": {"image/png": encoded(png(t()))},
                "note.txt": {"text/plain": t()},
            },
        },
        {"cell_type": "raw", "id": "a2", "source": t(), "metadata": {}},
        {
            "cell_type": "code",
            "id": "a3",
            "execution_count": 1,
            "source": ["x = 1\n", f"y = {t()!r}\n", f"# {t()}"],
            "metadata": {"tags": [t()], "papermill": {"exception": None, "path": t()}},
            "outputs": [out(**{key: value}) for key, value in mime.items()],
        },
        {
            "cell_type": "code",
            "id": "a4",
            "execution_count": 2,
            "source": "",
            "metadata": {},
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": [f"{t()}\n", "next\n"]},
                {"output_type": "stream", "name": "stderr", "text": t()},
                {
                    "output_type": "error",
                    "ename": "OSError",
                    "evalue": t(),
                    "traceback": [
                        "\x1b[0;31m-----\x1b[0m",
                        f"\x1b[0;32m/x/{t()}\x1b[0m in \x1b[0;36mf\x1b[0m\n 1 {t()}",
                        f"OSError: {t()}",
                    ],
                },
                {
                    "output_type": "execute_result",
                    "execution_count": 2,
                    "metadata": {"text/plain": {"note": t()}},
                    "data": {"text/plain": [f"{t()}\n", "b"]},
                },
            ],
        },
        {
            "cell_type": "code",
            "id": "a5",
            "execution_count": 3,
            "source": "",
            "metadata": {},
            "outputs": [
                out(**{"image/png": encoded(png(t())) + "\n"}),
                out(**{"image/jpeg": encoded(jpeg(t()))}),
            ],
        },
    ]
    widgets = {
        "application/vnd.jupyter.widget-state+json": {
            "version_major": 2,
            "version_minor": 0,
            "state": {
                "f" * 32: {
                    "model_name": "TextModel",
                    "model_module": "c",
                    "state": {"value": t(), "description": t(), "options": [t(), t()]},
                    "buffers": [
                        {"encoding": "base64", "path": ["value"], "data": encoded(t().encode())}
                    ],
                }
            },
        }
    }
    metadata = {
        "kernelspec": {
            "name": "python3",
            "display_name": f"Python 3 ({t()})",
            "language": "python",
        },
        "title": t(),
        "authors": [{"name": t()}],
        "widgets": widgets,
        "papermill": {
            "input_path": f"/srv/{t()}/a.ipynb",
            "parameters": {"where": t(), t(): 1},
            "environment_variables": {"A": t()},
        },
    }
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}, next(numbers)


def told_again(data):
    """Every text in data as a reader could see it: with escapes undone, colours, tags and line ends left out, base64 read."""
    texts = []

    def walk(one):
        if isinstance(one, dict):
            for key, value in one.items():
                walk(str(key))
                walk(value)
        elif isinstance(one, (list, tuple)):
            if one and all(isinstance(o, str) for o in one):
                walk("".join(one))
            for value in one:
                walk(value)
        elif isinstance(one, (str, int, float)):
            texts.append(str(one))

    walk(data)
    seen = []
    for text in texts:
        seen.append(text)
        for run in __import__("re").findall(r"[A-Za-z0-9+/]{16,}={0,2}", text):
            try:
                seen.append(base64.b64decode(run + "=" * (-len(run) % 4)).decode("latin-1"))
            except ValueError:
                continue
    return "\n".join(bare(text) for text in seen) + "\n" + "\n".join(seen)


def bare(text):
    import re

    for _ in range(3):
        text = html.unescape(urllib.parse.unquote(text))
        text = (
            re.sub(r"\\u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), text)
            .replace('\\"', '"')
            .replace("\\\\", "\\")
        )
    text = re.sub(r"\x1b\[[0-9;]*m|<[^<>]*>", "", text)
    return re.sub(r"\s+", "", text)
