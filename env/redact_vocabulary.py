"""Writes helpers/tell/vocabulary.json: the words of the field, which redaction takes for nobody's name.

``.venv/bin/python env/redact_vocabulary.py`` reads what is public and at hand: the names and the texts of Python's own
library, of the pinned packages with torch and its headers, the commands and modules of the system, and this project's tables.
A word counts where several files have it, so that no single author's name does. Made anew when the pins change. Of Debian's
packages the descriptions are read (``apt-get update -o Acquire::Languages=en`` fetches them). The words of other languages
are those of the translations (gettext) of the system's programs: glibc, coreutils, tar, systemd, GTK and others.

``env/redact_vocabulary.py GITDIR ...`` only widens the file, by what the sources and documents in bare git directories have,
and takes no word away: run it again after the file is made anew. It drops whoever is a first or last name in Faker's
languages, or wrote in one of those projects: run it with a Python that has faker, a tool of this script and not of the
project. What a program in C prints counts (once, where it is a format), and every flag of a processor in Linux's
cpufeatures.h; a file instead of a directory is a list, of which every word counts: pci.ids. ``--english FILE ...`` takes the
plain words of English from lists (Debian's wamerican-small and wbritish-small, made of SCOWL: Copyright 2000-2019 by Kevin
Atkinson, who permits any use of the lists where this notice stays): they count as nobody's name in a sentence alone.

Read so in 2026-11, 84 sources: Debian's linux-source-6.1 (its core, x86, and the drivers of buses, disks and cards) and
pci.ids; the wheels of transformers and sglang; huggingface/pytorch-image-models; jax-ml/jax;
kubernetes/node-problem-detector; smartmontools/smartmontools; apptainer/apptainer; aws/aws-cli; axolotl-ai-cloud/axolotl;
boto: boto3, botocore; containerd/containerd; Dao-AILab/flash-attention; dask/distributed; Delgan/loguru; docker/cli;
facebookresearch/xformers; freebsd/drm-kmod; freqtrade/freqtrade; ggml-org/ggml; helm/helm; hiyouga/LLaMA-Factory;
huggingface: accelerate, datasets, diffusers, huggingface_hub, peft, text-generation-inference, trl; InternLM/lmdeploy;
ipython/ipython; jupyter/notebook; jupyterhub/jupyterhub; jupyterlab/jupyterlab; kubernetes-sigs/kueue; kubernetes/kubectl;
Lightning-AI/pytorch-lightning; linux-nvme/nvme-cli; linux-rdma/rdma-core; microsoft: DeepSpeed, WSL;
mistralai/mistral-inference; moby/moby; mymarilyn/clickhouse-driver; NVIDIA: cutlass, DCGM, k8s-device-plugin, Megatron-LM,
nccl, nvidia-container-toolkit, open-gpu-kernel-modules, TransformerEngine; ollama/ollama; oobabooga/text-generation-webui;
open-mpi/ompi; openai/whisper; openucx/ucx; openzfs/zfs; optuna/optuna; pciutils/pciutils; prometheus/node_exporter;
psycopg/psycopg; pytest-dev/pytest; pytorch: ao, kineto, torchtune; redis/redis-py; ROCm: amdsmi, clr, HIP, rccl, ROCm,
rocm_smi_lib, rocminfo, rocprofiler, ROCR-Runtime; SchedMD/slurm; Syllo/nvtop; Textualize/rich; TimDettmers/bitsandbytes;
tqdm/tqdm; util-linux/util-linux; wandb/wandb.
"""

from __future__ import annotations

import gettext
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import sysconfig
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from inspect import getmembers
from pathlib import Path, PurePosixPath

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
DESCRIPTIONS = "var/lib/apt/lists/*_Translation-en*"
KIN = re.compile(r"^(?:lib|python3?-|ruby-|golang-|r-|node-|php-)")
LETTERS = re.compile(r"[^\W\d_]{3,}")
LEAST_OF_PROGRAMS = 3
LEAST_OF_MESSAGES = 3
SHORTEST_OTHER = 7
LEAST = 3
LEAST_OF_TEXT = 4
LEAST_OF_HEADERS = 3
SHORTEST = 3
LEAST_OF_PACKAGES = 3
SIGNS_OF_KIN = 6
HASHED = frozenset(".py .sh".split())
SLASHED = frozenset(".c .h .cc .cpp .hpp .hip .cu .cuh .go .rs".split())
WRITTEN = frozenset(".md .rst .txt .yaml .yml .json".split())
NOT_THEIRS = LEFT_OUT | frozenset(
    "vendor vendored _vendor third_party third-party thirdparty 3rdparty 3rd-party external extern deps subprojects "
    "node_modules fixtures testdata test_data data e2e unittest unittests unit_tests locale locales i18n localization".split()
)
OF_PEOPLE = re.compile(
    r"(?i)author|maintainer|credit|owner|change|news|release|contribut|thank|copying|licen[cs]e|mailmap|notice|security|govern"
)
SLASHED_TEXT = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*\'""", re.DOTALL
)
OF_SOMEBODY = re.compile(
    r"\b(?:TODO|FIXME|XXX|NOTE|HACK|BUG) ?\([^)\n]*\)|(?<!\S)[^\s@~]*[@~]\S*|"
    r"(?i:\bauthors?\b|copyright|\(c\)|thanks to|[a-z]-by:|maintainers?\b|contact:)[^\n]{0,200}"
)
ADDRESSED = re.compile(r"([^\n:<>\"']{3,60}) <[^@\s<>]+@[^@\s<>]+>")
OF_PROCESSORS = "cpufeatures.h"
FLAG = re.compile(r"[a-z][a-z0-9]{3,19}")
FORMAT = re.compile(r'"((?:[^"\\\n]|\\.)*%(?:[^"\\\n]|\\.)*)"')
PLAIN = re.compile(r"[a-z]{4,20}")
NO_ACCENT = str.maketrans("øłđðı", "olddi", "") | {ord("ß"): "ss", ord("æ"): "ae", ord("þ"): "th"}
IN_TWO = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe", "ß": "ss"})
ENDINGS = "s es ed d ing ly er ers".split()
LARGEST = 1 << 20
LEAST_OF_FILES = 2
LEAST_OF_PROJECTS = 2
LEAST_OF_ONE = 6
MOST = 30_000


def words(text: str) -> set[str]:
    """The words of a text in lower case: whole names without underscores, and what capitals and digits part them into."""
    found = set()
    for name in set(NAME.findall(text)):
        parts = PART.findall(name)
        found |= {one.lower() for one in parts if len(one) >= SHORTEST}
        if len(name) <= 16 and re.search(r"\d", name) and len(parts) < 4:
            found.add(name.lower())
    return found


def names_and_texts(source: str, quoted: re.Pattern[str] = QUOTED) -> tuple[str, str]:
    """A program without its texts and remarks, and the lower-case words of those."""
    said: list[str] = []

    def kept(match: re.Match[str]) -> str:
        printed = quoted is SLASHED_TEXT and match.group()[0] == '"'
        said.extend(words(match.group()) if printed else SAID.findall(match.group()))
        return " "

    return quoted.sub(kept, source), " ".join(said)


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
    kept = set()
    pairs = Counter()
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


def described() -> set[str]:
    """Words in small letters that the descriptions of several Debian packages have; packages that begin alike are one."""
    packages: dict[str, set[str]] = defaultdict(set)
    for path in Path("/").glob(DESCRIPTIONS):
        read = ["/usr/lib/apt/apt-helper", "cat-file", str(path)]
        text = subprocess.run(read, capture_output=True, text=True, check=True).stdout
        for record in text.split("\n\n"):
            name, _, rest = record.removeprefix("Package: ").partition("\n")
            for word in set(SAID.findall(rest.partition("Description-en:")[2])):
                packages[word].add(KIN.sub("", name)[:SIGNS_OF_KIN])
    return {word for word, of in packages.items() if len(of) >= LEAST_OF_PACKAGES and len(word) > 3}


def unaccented(text: str) -> set[str]:
    """The words of names, in lower case: with their accents, without, and with two letters in place of one."""
    low = unicodedata.normalize("NFC", text).lower()
    parted = unicodedata.normalize("NFKD", low.translate(NO_ACCENT))
    bare = "".join(one for one in parted if not unicodedata.combining(one))
    return set(LETTERS.findall(f"{low} {bare} {low.translate(IN_TWO)}"))


def names_of_people() -> set[str]:
    """The first and last names of all of Faker's languages."""
    found: set[str] = set()
    people = importlib.import_module("faker.providers.person")
    for one in pkgutil.iter_modules(people.__path__):
        provider = importlib.import_module(f"{people.__name__}.{one.name}").Provider
        for kind, told in getmembers(provider, lambda told: isinstance(told, list | tuple | dict)):
            if re.search("(?:first|last|middle)_?name", kind):
                found |= unaccented(" ".join(map(str, told)))
    return found


def stored(git: str) -> Iterator[tuple[str, str]]:
    """The names and texts of the files of source, documents and people in the newest commit of a bare git directory."""
    command = ["git", f"--git-dir={git}"]
    listed = subprocess.run([*command, "ls-tree", "-rl", "HEAD"], capture_output=True, check=True)
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "cat-file", "--batch"], stdin=pipe, stdout=pipe) as read:
        assert read.stdin and read.stdout
        for line in listed.stdout.decode(errors="replace").splitlines():
            about, _, place = line.partition("\t")
            (digest, size), path = about.split()[2:], PurePosixPath(place)
            if path.suffix not in HASHED | SLASHED | WRITTEN and not OF_PEOPLE.search(path.name):
                continue
            if size.isdigit() and int(size) <= LARGEST and NOT_THEIRS.isdisjoint(path.parts):
                read.stdin.write(f"{digest}\n".encode())
                read.stdin.flush()
                read.stdout.readline()
                yield path.name, read.stdout.read(int(size) + 1).decode(errors="replace")


def of_project(git: str) -> tuple[Counter[str], set[str]]:
    """In how many files of a project a word is, and those of the names and addresses of who wrote it."""
    if Path(git).is_file():
        listed = words(Path(git).read_text(encoding="utf-8", errors="replace"))
        return Counter({w: LEAST_OF_ONE for w in listed if PLAIN.fullmatch(w)}), set()
    counts: Counter[str] = Counter()
    wrote: set[str] = set()
    for name, text in stored(git):
        wrote |= unaccented(" ".join(ADDRESSED.findall(text)))
        if OF_PEOPLE.search(name):
            continue
        ending = PurePosixPath(name).suffix
        code = ""
        said = OF_SOMEBODY.sub(" ", text)
        if name == OF_PROCESSORS:
            counts.update(dict.fromkeys(filter(FLAG.fullmatch, words(said)), LEAST_OF_ONE))
        if ending in SLASHED:
            printed = words(" ".join(FORMAT.findall(said)))
            counts.update(dict.fromkeys(filter(PLAIN.fullmatch, printed), LEAST_OF_ONE))
        if ending not in WRITTEN:
            code, said = names_and_texts(said, QUOTED if ending in HASHED else SLASHED_TEXT)
        counts.update(w for w in words(code) | set(SAID.findall(said)) if PLAIN.fullmatch(w))
    told = ["git", f"--git-dir={git}", "log", "--format=%an %al%n%cn %cl", "HEAD"]
    people = subprocess.run(told, capture_output=True, check=True).stdout.decode(errors="replace")
    return counts, wrote | unaccented(people)


def widened(gits: list[str]) -> None:
    """Adds to the file the words that several projects have, or many files of one, unless they may be somebody's name."""
    table = json.loads(OUT.read_text(encoding="utf-8"))
    known = {word for row, text in table.items() if len(row) == 1 for word in text.split()}
    projects = Counter[str]()
    most = Counter[str]()
    people = names_of_people()
    with ProcessPoolExecutor(2) as pool:
        for counts, wrote in pool.map(of_project, gits):
            projects.update(w for w, count in counts.items() if count >= LEAST_OF_FILES)
            most |= counts
            people |= wrote
    enough = [
        w
        for w, count in projects.most_common()
        if count >= LEAST_OF_PROJECTS or most[w] >= LEAST_OF_ONE
    ]
    new = [
        w
        for w in enough
        if w not in known | people and people.isdisjoint(w + end for end in ENDINGS)
    ]
    for word in sorted(new[:MOST]):
        table[word[0]] += f" {word}"
    for row in {word[0] for word in new[:MOST]}:
        table[row] = " ".join(sorted(table[row].split()))
    table["languages"] = " ".join(w for w in table["languages"].split() if w not in set(new[:MOST]))
    OUT.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(new[:MOST])} words more in {OUT.relative_to(ROOT)}")


def english(lists: list[str]) -> None:
    """Puts the plain words of lists into the file, but the field's with their forms, and names of people."""
    sys.path.insert(0, str(ROOT))
    from helpers.tell import redact_known

    table = json.loads(OUT.read_text(encoding="utf-8"))
    people = names_of_people()
    texts = (Path(listed).read_text(encoding="utf-8") for listed in lists)
    found = {w for text in texts for w in text.split() if PLAIN.fullmatch(w)}
    kept = {word for word in found - people if not redact_known.is_word(word)}
    table["english"] = " ".join(sorted(kept))
    OUT.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(kept)} words of English in {OUT.relative_to(ROOT)}")


def main() -> None:
    if sys.argv[1:2] == ["--english"]:
        return english(sys.argv[2:])
    if len(sys.argv) > 1:
        return widened(sys.argv[1:])
    names = Counter()
    texts = Counter()
    heads = Counter()
    once = set()
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
    kept |= described()
    rows = {}
    for word in sorted(kept):
        rows.setdefault(word[0], []).append(word)
    table = {
        "how": "Made by env/redact_vocabulary.py, which says from what; no line is written by hand. Its English is of SCOWL, "
        "Copyright 2000-2019 by Kevin Atkinson, who permits any use where this notice stays."
    }
    table["addresses"] = " ".join(sorted(addresses))
    table |= {first: " ".join(these) for first, these in rows.items()}
    languages, pairs = translated()
    table |= {"languages": " ".join(sorted(languages - kept)), "pairs": " ".join(sorted(pairs))}
    table["english"] = json.loads(OUT.read_text(encoding="utf-8"))["english"]  # --english makes it
    OUT.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(kept)} words in {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
