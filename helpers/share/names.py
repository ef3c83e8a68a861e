"""Numbers in place of names on a shared page: ``process-1``, ``your file 1, line 82``."""

from __future__ import annotations

import re

from helpers.tell.tables import NOBODY

from . import public

LIBRARIES = frozenset(
    """accelerate bitsandbytes datasets deepspeed diffusers flash_attn keras lightning numpy
    pandas peft python pytorch_lightning safetensors sklearn timm torch torchaudio torchinductor
    torchvision transformers triton trl unsloth vllm xformers""".split()
)
"""Packages of Python that anybody can install, whose files everybody knows."""
PLACE = re.compile(
    r"(?P<cell>cell \d{1,6}), line (?P<row>\d{1,9})|(?P<file>[^\s(),]+\.[A-Za-z]\w{0,7}):(?P<line>\d{1,9})\b"
)
"""A line of a program as our verdicts write it: "cell 3, line 2" of a notebook, or
"train.py:82".
"""
LIBRARY_FILE = re.compile(r"(\w+)/[\w/]+\.py")
"""A file of a package, by its path from site-packages on."""


class Names:
    """Gives each name of a page a label of its own, such as ``process-1`` or ``your file 1``."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[object, int]] = {}
        self._labels: set[object] = {NOBODY, ""}
        """Texts that name nobody, and so may be shown."""

    def of(self, kind: str, name: object, between: str = "-") -> str:
        """The label of a name: its kind and its number among the names of that kind.

        The label of a label is the same. An empty name stays empty.
        """
        if name is None:
            return ""
        if name in self._labels:
            return str(name)
        numbers = self._numbers.setdefault(kind, {})
        number = numbers.setdefault(name, len(numbers) + 1)
        label = f"{kind}{between}{number}"
        self._labels.add(label)
        return label

    def variables(self, text: str) -> str:
        """The text with the label of each variable that has one, in place of its name."""
        for name, number in self._numbers.get("variable", {}).items():
            whole_word = rf"(?<!\w){re.escape(str(name))}(?!\w)"
            text = re.sub(whole_word, f"variable {number}", text)
        return text

    def box(self, name: str) -> str:
        """A box by its public name, else by its number."""
        public_name = public.box(name)
        if public_name:
            return public_name
        return self.of("box", name)

    def group(self, name: object) -> str:
        """A group of users by its name if every distribution has it, else by its number."""
        if name in public.GROUPS:
            return str(name)
        return self.of("group", name)

    def lines(self, text: str) -> str:
        """The lines of programs that a text names, each once: ``your file 1, line 82``."""
        labels = [self.line(place) for place in PLACE.finditer(text)]
        return "; ".join(dict.fromkeys(labels))

    def line(self, place: re.Match[str]) -> str:
        """The label of a line that PLACE matched: in a library its file, else the number of the
        file.
        """
        if place["cell"]:
            return place[0]
        # From site-packages or dist-packages (Debian) on, where there is one.
        _, _, file = f"-packages/{place['file']}".rpartition("-packages/")
        library = LIBRARY_FILE.fullmatch(file)
        if library is None or library[1] not in LIBRARIES:
            file = self.of("your file", file, " ")
        return f"{file}, line {place['line']}"
