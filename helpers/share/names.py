"""What stands for the names of a page: ``process-1``, ``your file 1, line 82``."""

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
LIBRARY_FILE = re.compile(r"(\w+)/[\w/]+\.py")


class Names:
    """What stands for the names of a page: ``process-1``, ``your file 1``, each its own number."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[object, int]] = {}
        self._labels: set[object] = {NOBODY, None, ""}

    def of(self, kind: str, name: object, between: str = "-") -> str:
        """The label of a name, with its number among those of its kind; nothing for no name.

        A label is its own label.
        """
        if name in self._labels:
            return str(name or "")
        numbers = self._numbers.setdefault(kind, {})
        label = f"{kind}{between}{numbers.setdefault(name, len(numbers) + 1)}"
        self._labels.add(label)
        return label

    def variables(self, text: str) -> str:
        """A text with the number of each variable that has one."""
        for name, number in self._numbers.get("variable", {}).items():
            text = re.sub(
                rf"(?<!\w){re.escape(str(name))}(?!\w)", f"variable {number}", text
            )
        return text

    def box(self, name: str) -> str:
        """A box by its public name, else by its place among the others."""
        return public.box(name) or self.of("box", name)

    def group(self, name: object) -> str:
        """A group that everybody knows by its name, else by its place among the others."""
        if name in public.GROUPS:
            return str(name)
        return self.of("group", name)

    def lines(self, text: str) -> str:
        """The lines of programs that a text names: ``your file 1, line 82``."""
        return "; ".join(dict.fromkeys(map(self.line, PLACE.finditer(text))))

    def line(self, place: re.Match[str]) -> str:
        """A line, by the number of its file, or by its place in a well-known library."""
        if place["cell"]:
            return place[0]
        file = re.split("-packages/", place["file"])[-1]
        library = LIBRARY_FILE.fullmatch(file)
        if library is None or library[1] not in LIBRARIES:
            file = self.of("your file", file, " ")
        return f"{file}, line {place['line']}"
