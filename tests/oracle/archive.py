"""Packages of Debian and Ubuntu, unpacked and not installed: by this machine's apt, with lists and a cache of its own."""

from __future__ import annotations

import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from helpers.ground.child import watch
from tests.oracle.build import NotRun

KEYRINGS = Path("/usr/share/keyrings")
SIGNED = {"Debian": "debian-archive-keyring.gpg", "Ubuntu": "ubuntu-archive-keyring.gpg"}
PUBLIC = {"Debian": "", "Ubuntu": "http://archive.ubuntu.com/ubuntu"}
"""Where an archive is asked for that this machine's own sources do not name; of Debian they must."""
ERRORS = re.compile(r"^E: |ERROR|error: (?!ld )|undefined reference|fatal: ")
LIMIT_S = 3600.0


def run(*argv: str | Path, **how: Any) -> list[str]:
    """What a program prints. Raises NotRun with the first error that it names."""
    lines: list[str] = []
    ended = watch([str(word) for word in argv], LIMIT_S, on_line=lines.append, **how)
    if ended.exit_code != 0:
        told = [line for line in ended.last_words.splitlines() if ERRORS.search(line)]
        why = (told or [ended.last_line])[0].strip()[:300]
        raise NotRun(f"{Path(argv[0]).name} {ended.fate}: {why}")
    return lines


class Archive:
    """One suite of a distribution. Raises NotRun, which says to ``give`` what was wanted of it instead."""

    def __init__(
        self, origin: str, suite: str, folder: Path, give: str, components: str = "main"
    ) -> None:
        self.name = f"{origin} {suite}"
        self.folder = folder
        self.give = give
        form = ("$(REPO_URI) $(RELEASE)", "Created-By: Packages", f"Origin: {origin}")
        found = [line.split() for line in run("apt-get", "indextargets", "--format", *form)]
        mirror = next((uri for uri, *suites in found if "-" not in suites[0]), PUBLIC[origin])
        if not mirror:
            raise NotRun(f"no mirror of {origin} in apt's sources, expected one; give {give}=")
        (folder / "lists/partial").mkdir(parents=True)
        (folder / "cache/archives/partial").mkdir(parents=True)
        keys = self._keys(origin)
        signed = f"[signed-by={keys}] " if keys.exists() else ""
        kinds = ("deb", "deb-src") if origin == "Debian" else ("deb",)
        lists = [f"{kind} {signed}{mirror} {suite} {components}\n" for kind in kinds]
        (folder / "sources.list").write_text("".join(lists))
        told = f"Dir::Etc::sourcelist={folder}/sources.list Dir::Etc::sourceparts=- Dir::State::lists={folder}/lists"
        told += f" Dir::Cache={folder}/cache Acquire::Languages=none APT::Update::Error-Mode=any Acquire::Retries=1"
        told += " Acquire::http::Timeout=30 Debug::NoLocking=1 APT::Sandbox::User=root"
        self.options = [word for one in told.split() for word in ("-o", one)]
        self.ask("apt-get", "update")

    def _keys(self, origin: str) -> Path:
        """This machine's keys of the archive; Ubuntu's, where it has none, are those that Debian has as a package."""
        keys = KEYRINGS / SIGNED[origin]
        if origin == "Debian" or keys.exists():
            return keys
        debian = Archive("Debian", "sid", self.folder / "keys", self.give)
        return debian.unpacked("ubuntu-keyring") / keys.relative_to("/")

    def ask(self, program: str, *words: str) -> list[str]:
        try:
            return run(program, *self.options, *words, cwd=self.folder)
        except NotRun as error:
            raise NotRun(f"{self.name}, {words[0]}: {error}; give {self.give}=") from error

    def version(self, package: str) -> str:
        """Of the package, empty where the suite has none."""
        lines = self.ask("apt-cache", "madison", package)
        return lines[0].split("|")[1].strip() if lines else ""

    def source(self, torch: str) -> Path:
        """The archive of torch's source of a release."""
        lines = self.ask("apt-cache", "showsrc", "--only-source", "pytorch")
        there = [line.split()[1] for line in lines if line.startswith("Version:")]
        version = next((one for one in there if re.match(rf"{re.escape(torch)}[^\d.]", one)), "")
        if not version:
            seen = f"pytorch {', '.join(there) or 'not'} seen, expected {torch}"
            raise NotRun(f"{self.name}: {seen}; give {self.give}=")
        self.ask("apt-get", "source", "--download-only", "--tar-only", f"pytorch={version}")
        return next(self.folder.glob("pytorch_*.orig.tar.*"))

    def unpacked(self, *packages: str, only: str = "") -> Path:
        """The folder with the packages' files, or with the regular ones of them whose path matches ``only``."""
        root = self.folder / "root"
        root.mkdir(exist_ok=True)
        for package in packages:
            self.ask("apt-get", "download", package)
            file = next(self.folder.glob(f"{package}_*.deb"))
            if only:
                self._matching(file, re.compile(only), root)
            else:
                run("dpkg-deb", "-x", file, root)
        return root

    def _matching(self, file: Path, only: re.Pattern, root: Path) -> None:
        argv = ["dpkg-deb", "--fsys-tarfile", str(file)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as told:
            with tarfile.open(fileobj=told.stdout, mode="r|") as tar:
                for member in tar:
                    at = root / member.name
                    if member.isfile() and only.search(member.name):
                        at.parent.mkdir(parents=True, exist_ok=True)
                        at.write_bytes(tar.extractfile(member).read())
        if told.returncode != 0:
            raise NotRun(f"{self.name}: {file.name} cannot be unpacked; give {self.give}=")
