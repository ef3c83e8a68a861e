"""A pip of forty lines for hosts that a test makes up: exact pins, wheels of a folder, nothing resolved. Real pip takes ten
times as long, and is asked where its own settings or files are what a test is about."""

import os
import shutil
import sys
import zipfile
from pathlib import Path


def wanted(words):
    """The pins of the locks and those named; what is for another system is skipped aloud, as pip does it."""
    for lock in [words[at + 1] for at, word in enumerate(words) if word == "-r"]:
        for line in Path(lock).read_text().splitlines():
            if "; sys_platform == 'win32'" in line:
                print(f"Ignoring {line.split('==')[0]}: markers don't match your environment")
            elif line and not line.startswith("#"):
                yield line
    yield from (word for word in words if "==" in word and not word.startswith("-"))


def main(words):
    python = Path(words[words.index("--python") + 1]) if "--python" in words else None
    if words[:2] == ["config", "list"] or "config" in words:
        for name, value in os.environ.items():
            if name.startswith("PIP_"):
                print(f":env:.{name[4:].lower().replace('_', '-')}={value!r}")
    if not {"install", "download"} & set(words):
        return 0
    folders = [*os.environ.get("PIP_FIND_LINKS", "").split()]
    folders += [words[at + 1] for at, word in enumerate(words) if word == "--find-links"]
    found = []
    for pin in wanted(words):
        name, version = pin.split("==")
        wheels = [Path(folder, f"{name}-{version}-py3-none-any.whl") for folder in folders]
        there = [wheel for wheel in wheels if wheel.is_file()]
        if not there:
            print(f"ERROR: Could not find a version that satisfies {pin} (from versions: none)")
            print(f"ERROR: No matching distribution found for {pin}")
            return 1
        print(f"Collecting {pin}")
        found.append(there[0])
    if "download" in words:
        for wheel in found:
            shutil.copy2(wheel, words[words.index("--dest") + 1])
        return 0
    site = next(python.parent.parent.glob("lib/python3.*/site-packages"))
    print(f"Installing collected packages: {', '.join(wheel.name for wheel in found)}")
    for wheel in found:
        if not (
            site / (wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info/RECORD")
        ).exists():
            zipfile.ZipFile(wheel).extractall(site)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
