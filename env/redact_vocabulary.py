"""Writes helpers/tell/vocabulary.json: the words of the field, which redaction takes for nobody's name.

``.venv/bin/python env/redact_vocabulary.py`` reads what is public and at hand: the names and the texts of Python's own
library, of the pinned packages with torch and its headers, the commands and modules of the system, and this project's tables.
A word counts where several files have it, so that no single author's name does. Made anew when the pins change. The words of
other languages are those of the translations (gettext) of the system's programs: glibc, coreutils, tar, systemd, GTK and others.
"""

from __future__ import annotations

import gettext
import json
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "helpers" / "tell" / "vocabulary.json"
STANDARD, PACKAGES = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
OF_PACKAGES = (
    "torch numpy numba matplotlib pandas pyarrow duckdb distributed dask optuna psutil requests rich click yaml pydantic "
    "IPython ipykernel ipywidgets jupyter_client jupyter_server nbformat nbconvert papermill packaging setuptools _pytest "
    "sympy networkx hypothesis jinja2 fsspec fontTools"
)
LIBRARIES = [STANDARD, *(PACKAGES / name for name in OF_PACKAGES.split())]
HEADERS = [PACKAGES / "torch" / "include" / name for name in ("ATen", "c10", "torch/csrc")]
HEADERS += [Path("/usr/include") / name for name in ("linux", "drm", "libdrm", "rdma", "net")]
COMMANDS = "usr/bin/* usr/sbin/* sys/module/* sys/class/* proc/sys/*/* lib/systemd/system/*"
OWN = (
    "helpers/**/*.json helpers/**/*.yaml helpers/**/*.py helpers/**/*.j2 notebooks/*.ipynb env/*.yaml env/presets/* "
    "README.md env/boxes/*.json"
)
NOT_OWN = ("redact.yaml", "secrets.json", "vocabulary.json")
LEFT_OUT = frozenset("test tests testing idlelib lib2to3 site-packages ensurepip".split())
QUOTED = re.compile(
    r'''\"""(?:[^\\]|\\.)*?"""|\'{3}(?:[^\\]|\\.)*?\'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|#[^\n]*''',
    re.DOTALL,
)
SAID = re.compile(r"(?<![\w.@/-])[a-z]{3,}(?![\w@/-])")
NAME = re.compile(r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9]*")
ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+\.[a-z]+(?:/[\w.-]+)?)")
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
LANGUAGES = (
    "de fr es it pt pt_BR nl pl cs sk sv da nb fi hu ro tr ru uk el zh_CN zh_TW ja ko".split()
)
TRANSLATIONS = "/usr/share/locale/{}/LC_MESSAGES/*.mo"
NO_WORDS = ("iso_", "xkeyboard")  # countries, peoples and their scripts
CJK = re.compile("[\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]{2,}")
LETTERS = re.compile(r"[^\W\d_]{3,}")
LEAST_OF_PROGRAMS, LEAST_OF_MESSAGES, SHORTEST_OTHER = 3, 3, 7
LEAST, LEAST_OF_TEXT, LEAST_OF_HEADERS, SHORTEST = 3, 4, 3, 3


def words(text: str) -> set[str]:
    """The words of a text in lower case: whole names without underscores, and what capitals and digits part them into."""
    found = set()
    for name in set(NAME.findall(text)):
        parts = PART.findall(name)
        found |= {one.lower() for one in parts if len(one) >= SHORTEST}
        if len(name) <= 16 and re.search(r"\d", name) and len(parts) < 4:
            found.add(name.lower())
    return found


def names_and_texts(source: str) -> tuple[str, str]:
    """A program without its texts and remarks, and the lower-case words of those."""
    said: list[str] = []

    def kept(match: re.Match[str]) -> str:
        said.extend(SAID.findall(match.group()))
        return " "

    return QUOTED.sub(kept, source), " ".join(said)


def sources(folders: list[Path], *ends: str) -> Iterator[str]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in ends and LEFT_OUT.isdisjoint(path.relative_to(folder).parts):
                yield path.read_text(encoding="utf-8", errors="replace")


def text_of(path: Path) -> str:
    """The text of a file of ours; of a notebook the cells and what they print, without pictures."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    shown = [one.get("data", one) for cell in cells for one in cell.get("outputs", [])]
    plain = ["".join(one.get("text/plain", one.get("text", ""))) for one in shown]
    return "\n".join(["".join(cell["source"]) for cell in cells] + plain)


def translated() -> tuple[set[str], set[str]]:
    """Words that the translations of several programs have, and pairs of signs that several messages in Chinese and the like have."""
    kept, pairs = set(), Counter()
    for language in LANGUAGES:
        programs = Counter()
        for path in sorted(Path("/").glob(TRANSLATIONS.format(language)[1:])):
            if path.name.startswith(NO_WORDS):
                continue
            with path.open("rb") as file:
                try:
                    told = gettext.GNUTranslations(file)._catalog
                except UnicodeDecodeError:  # an older one, of the signs of one language alone
                    continue
            texts = [
                text.lower()
                for key, text in told.items()
                if key and isinstance(text, str) and "credits" not in str(key) and "@" not in text
            ]
            programs.update({word for text in texts for word in LETTERS.findall(text)})
            for text in texts:
                runs = CJK.findall(text)
                pairs.update({run[at : at + 2] for run in runs for at in range(len(run) - 1)})
        kept |= {word for word, count in programs.items() if count >= LEAST_OF_PROGRAMS}
    # A short word without an accent may as well be somebody's name: anna gives, in Finnish.
    kept = {w for w in kept if not CJK.search(w) and (len(w) >= SHORTEST_OTHER or not w.isascii())}
    return kept, {pair for pair, count in pairs.items() if count >= LEAST_OF_MESSAGES}


def main() -> None:
    names, texts, heads, once = Counter(), Counter(), Counter(), set()
    addresses: set[str] = set()
    for source in sources(LIBRARIES, ".py"):
        code, said = names_and_texts(source)
        names.update(words(code))
        texts.update(words(said))
    for source in sources(HEADERS, ".h", ".hpp", ".cuh"):
        heads.update(words(re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)))
    for pattern in COMMANDS.split():
        once |= {word for path in Path("/").glob(pattern) for word in words(path.name)}
    for pattern in OWN.split():
        for path in ROOT.glob(pattern):
            if path.name not in NOT_OWN:
                text = text_of(path)
                once |= words(ADDRESS.sub(" ", text))
                addresses |= {one.lower() for one in ADDRESS.findall(text)}
    kept = once
    for counts, least in ((names, LEAST), (texts, LEAST_OF_TEXT), (heads, LEAST_OF_HEADERS)):
        kept |= {word for word, count in counts.items() if count >= least}
    rows = {}
    for word in sorted(kept):
        rows.setdefault(word[0], []).append(word)
    table = {
        "how": "Made by env/redact_vocabulary.py, which says from what; no line is written by hand."
    }
    table["addresses"] = " ".join(sorted(addresses))
    table |= {first: " ".join(these) for first, these in rows.items()}
    languages, pairs = translated()
    table |= {"languages": " ".join(sorted(languages - kept)), "pairs": " ".join(sorted(pairs))}
    OUT.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(kept)} words in {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
