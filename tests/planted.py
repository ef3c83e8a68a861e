"""Values that nobody may read on a shared page, of 60 kinds, planted in 40 ways into notebooks, records of runs and bundles.

Everything follows from a seed. A value is planted into a leaf of a document as JSON, or into a line of a text that a tool printed:
in place of it, before it, behind it, in the middle, as an option, a path, an assignment, a sentence, and so on.
"""

import base64
import copy
import html
import json
import random
import re
import shutil
from pathlib import Path

from helpers.look.bundle import BundleWriter, open_bundle

WORDS = """harvest orchard lantern meadow copper violet harbour velvet saffron juniper willow falcon heron kestrel badger
otter maple cedar granite cobalt amber coral ivory marble thunder blizzard horizon voyage odyssey compass beacon paragon mosaic
tapestry symphony sonata minuet waltz tango rhubarb pumpkin walnut chestnut almond cinnamon nutmeg basil thyme parsley""".split()
PEOPLE = """Ottoline Marrow|Jürgen Großmann|Zoë Ekström|Nguyễn Văn Ước|Łucja Wójcik|Ömer Çelik|李小龍|田中さくら
Олена Шевчук|Συλβία Νίκου""".replace("\n", "|").split("|")
HEX = "0123456789abcdef"
ALNUM = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Plants:
    """A source of values; each is of the next kind."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0

    def some(self, letters, length):
        return "".join(self.random.choices(letters, k=length))

    def word(self):
        return self.random.choice(WORDS)

    def number(self, low=10, high=99):
        return self.random.randint(low, high)

    def next(self):
        """The next kind and a value of it."""
        name = KINDS[self.count % len(KINDS)]
        self.count += 1
        return name, MAKERS[name](self)


MAKERS = {
    "project, one word": lambda p: p.word(),
    "project, two words": lambda p: f"{p.word()} {p.word()}",
    "project, hyphen": lambda p: f"{p.word()}-{p.word()}",
    "project, underscore": lambda p: f"{p.word()}_{p.word()}_{p.number()}",
    "project, capitals": lambda p: p.word().upper(),
    "project, camel": lambda p: p.word().title() + p.word().title(),
    "class of a net": lambda p: f"{p.word().title()}TurbineNet",
    "function": lambda p: f"forward_{p.word()}",
    "variable": lambda p: f"{p.word()}_patients",
    "module": lambda p: f"{p.word()}.{p.word()}",
    "script": lambda p: f"{p.word()}_train.py",
    "notebook": lambda p: f"{p.word()} notes.ipynb",
    "customer": lambda p: f"{p.word().title()} Biotech GmbH",
    "hospital": lambda p: f"St. {p.word().title()} Hospital",
    "person": lambda p: p.random.choice(PEOPLE),
    "first name": lambda p: p.random.choice(PEOPLE).split()[0],
    "person, initials": lambda p: f"{p.word()[0].upper()}. {p.word().title()}son",
    "login": lambda p: f"{p.word()[0]}{p.word()}",
    "login, number": lambda p: f"{p.word()}{p.number()}",
    "host": lambda p: f"{p.word()}-gpu{p.number()}",
    "host, full": lambda p: f"{p.word()}.{p.word()}.example",
    "pod": lambda p: f"{p.word()}-train-{p.some('bcdfghjklmnpqrstvwxz2456789', 10)}",
    "namespace": lambda p: f"ns-{p.word()}",
    "container": lambda p: f"{p.word()}_web_1",
    "image": lambda p: f"registry.{p.word()}.example/{p.word()}:v{p.number()}",
    "cluster": lambda p: f"{p.word()}-prod-eu",
    "bucket": lambda p: f"s3://{p.word()}-data/{p.word()}",
    "share": lambda p: f"//{p.word()}/projects",
    "path": lambda p: f"/data/{p.word()}/{p.word()}",
    "path, home": lambda p: f"/home/{p.word()}/x",
    "path, Windows": lambda p: f"C:\\Users\\{p.word()}\\run",
    "path, mount": lambda p: f"/mnt/{p.word()}",
    "dataset": lambda p: f"{p.word()}-scans-2031",
    "dataset, file": lambda p: f"{p.word()}.parquet",
    "column": lambda p: f"{p.word()}_margin",
    "model": lambda p: f"{p.word().title()}-7B-private",
    "weights": lambda p: f"{p.word()}_v2.safetensors",
    "experiment": lambda p: f"exp{p.number()}-{p.word()}",
    "branch": lambda p: f"feature/{p.word()}-{p.word()}",
    "commit": lambda p: p.some(HEX, 40),
    "remote": lambda p: f"git@{p.word()}.example:{p.word()}/{p.word()}.git",
    "ticket": lambda p: f"{p.word()[:4].upper()}-{p.number(1000, 9999)}",
    "mail": lambda p: f"{p.word()}@{p.word()}.example",
    "address, 4": lambda p: f"10.{p.number(100, 250)}.{p.number(100, 250)}.{p.number(100, 250)}",
    "address, 6": lambda p: f"fd{p.some(HEX, 2)}:{p.some(HEX, 4)}::{p.some(HEX[1:], 4)}",
    "MAC": lambda p: ":".join(p.some(HEX, 2) for _ in range(6)),
    "UUID": lambda p: "-".join(p.some(HEX, length) for length in (8, 4, 4, 4, 12)),
    "serial": lambda p: f"S{p.some('ABCDEFGHJKLMNPQRSTUVWXYZ0123456789', 11)}",
    "link": lambda p: f"https://{p.word()}.example/{p.word()}?id={p.number()}",
    "link, login": lambda p: f"https://{p.word()}:{p.some(ALNUM, 12)}@{p.word()}.example/",
    "token, GitHub": lambda p: "ghp_" + p.some(ALNUM, 36),
    "token, Hugging Face": lambda p: "hf_" + p.some(ALNUM, 34),
    "token, AWS": lambda p: "AKIA" + p.some("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16),
    "token, Slack": lambda p: f"xoxb-{p.some('123456789', 12)}-{p.some(ALNUM, 24)}",
    "token, none's": lambda p: p.some(ALNUM, 40),
    "token, JWT": lambda p: f"eyJ{p.some(ALNUM, 20)}.eyJ{p.some(ALNUM, 30)}.{p.some(ALNUM, 43)}",
    "password": lambda p: f"password={p.word()}{p.number()}!",
    "key": lambda p: f"-----BEGIN OPENSSH PRIVATE KEY----- {p.some(ALNUM, 60)}",
    "phone": lambda p: f"+49 {p.number(100, 999)} {p.number(100000, 999999)}",
    "sentence": lambda p: f"the {p.word()} contract ends in May",
}
KINDS = list(MAKERS)
WAYS = {
    "alone": "{v}",
    "before": "{v} {t}",
    "behind": "{t} {v}",
    "behind a colon": "{t}: {v}",
    "in brackets": "{t} ({v})",
    "in quotes": "{t} '{v}'",
    "in double quotes": '{t} "{v}"',
    "in backticks": "`{v}` {t}",
    "as an option": "{t} --run {v}",
    "as an option with a sign": "{t} --run={v}",
    "as a variable": "{v}={t}",
    "as a value": "NAME={v}",
    "as an assignment": "name = '{v}'",
    "as a key": '{{"{v}": 1}}',
    "as an item": '["{v}"]',
    "as a comment": "{t}  # {v}",
    "as a line": "{t}\n{v}",
    "as the first line": "{v}\n{t}",
    "in a list": "- {v}\n- {t}",
    "in a path": "/opt/{v}/bin",
    "as a file's line": "/opt/{v}:82",
    "as a frame": '  File "/opt/{v}", line 82, in {v}',
    "as a process": "{v} (4242): {t}",
    "as a holder": "Process 4242 ({v}) has 20.10 GiB memory in use",
    "with a size": "{v} 20.10 GiB",
    "behind a size": "20.10 GiB {v}",
    "in a sentence": "This is {v} of the team.",
    "in capitals": "{u}",
    "in markup": "<b>{v}</b>",
    "in a comment of markup": "<!-- {v} --> {t}",
    "in an attribute": '<img alt="{v}">',
    "in bold": "**{v}** {t}",
    "in a link": "[{t}]({v})",
    "in a table": "| {v} | {t} |",
    "behind a tab": "{t}\t{v}",
    "glued before": "{v}{t}",
    "glued behind": "{t}{v}",
    "with dots": "{t}...{v}...",
    "twice": "{v} {v}",
    "with an escape": "\x1b[31m{v}\x1b[0m {t}",
}


def leaves(document, path=()):
    """The places of every text of a document as JSON, and of every key."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from leaves(value, (*path, key))
    elif isinstance(document, list):
        for place, value in enumerate(document):
            yield from leaves(value, (*path, place))
    elif isinstance(document, str):
        yield path


def put(document, path, text):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = text


def at(document, path):
    for key in path:
        document = document[key]
    return document


class Garden:
    """Plants values, and keeps which were planted where."""

    def __init__(self, seed):
        self.plants = Plants(seed)
        self.random = self.plants.random
        self.planted = []

    def written(self, text, where):
        """A text with the next value planted into it, in the next way."""
        kind, value = self.plants.next()
        way = list(WAYS)[len(self.planted) % len(WAYS)]
        self.planted.append((kind, way, where, value))
        return WAYS[way].format(v=value, u=value.upper(), t=text)

    def into_json(self, document, share, fixed=()):
        """A copy with values in a share of its texts; those of the keys ``fixed`` stay."""
        planted = copy.deepcopy(document)
        for path in list(leaves(document)):
            if self.random.random() < share and not set(path) & set(fixed):
                put(planted, path, self.written(str(at(document, path)), str(path)))
        return planted

    def into_lines(self, text, share, where):
        """A text with values in a share of its lines; of a table of JSON lines, in their leaves."""
        lines = []
        for line in text.splitlines() or [""]:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                line = json.dumps(self.into_json(row, share))
            elif self.random.random() < share:
                line = self.written(line, where)
            lines.append(line)
        return "\n".join(lines) + "\n"

    def into_bundle(self, folder, out, share):
        """A copy of a bundle with values in its texts, its sources and its name."""
        bundle = open_bundle(folder)
        writer = BundleWriter(self.written("box", "box"), "recorded", "0.1.0", bundle.captured_at)
        for item in bundle.items:
            read = bundle.read(item.source)
            source = item.source
            if self.random.random() < share / 4:
                source = self.written(source, "source").replace("\n", " ")
            if not item.path:
                writer.add(item.kind, source, status=item.status, why=self.written(item.why, "why"))
                continue
            writer.add(item.kind, source, self.into_lines(read.text, share, item.source))
        for number in range(3):
            source = self.written("/sys/class/x", "source").replace("\n", " ") + str(number)
            writer.add("file", source, self.written("1", source))
        return writer.write(out)

    def into_run(self, batch, share):
        """Plants values into the records, the notebooks and the name of a batch's copy."""
        for path in batch.glob("*/*"):
            if path.name not in ("run.json", "notebook.ipynb"):
                continue
            try:
                document = json.loads(path.read_text())
            except ValueError:  # a run that died left a part of it
                continue
            if path.name == "run.json":
                planted = self.into_json(document, share, STAYS)
            else:
                planted = self.into_notebook(document, share)
            path.write_text(json.dumps(planted))
        return batch

    def into_notebook(self, notebook, share):
        """A notebook with values in a share of its texts, and a cell of its owner with some more."""
        planted = self.into_json(notebook, share, ("nbformat", "cell_type", "output_type", "id"))
        stream = {"output_type": "stream", "name": "stdout", "text": self.written("x", "stdout")}
        cell = {
            "cell_type": "code",
            "id": "planted",
            "metadata": {},
            "execution_count": 1,
            "source": self.written("1", "source"),
            "outputs": [stream],
        }
        planted["cells"].append(cell)
        return planted


STAYS = (
    "schema_version run_id batch_id state stopped_by danger confidence cause unit status "
    "started_at ended_at boot_id"
).split()


def survivors(garden, *texts):
    """The planted values that can be read in texts, in the pictures of pages, too."""
    whole = " ".join(map(readable, texts)).casefold()
    return [row for row in garden.planted if row[3].casefold() in whole]


def readable(page):
    """The words of a page: unescaped, with its pictures' own."""
    pictures = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", page)
    drawn = [base64.b64decode(picture).decode() for picture in pictures]
    page = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.S)
    return html.unescape(re.sub("<wbr>|\u200b", "", page + " ".join(drawn)))


def copied(folder, out):
    """A copy of a folder."""
    shutil.copytree(folder, out)
    return Path(out)
