"""Pages, notebooks and bundles without what should have stayed home: who, where, which card, which key.

Values known from the box (``known_values``) and values that patterns tell are replaced by pseudonyms that stay the same over
text, notebook and bundle as long as one ``Known`` is used for all. Numbers that matter stay: PCI addresses, versions, sizes,
digests, times. Words drawn in a picture's pixels are not read. ``second_scan`` lets another program look again.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping

from .redact_box import known_values, learn_live
from .redact_files import RedactError, redact_bundle, redact_files
from .redact_known import PSEUDONYM, Known
from .redact_notebook import redact_data, redact_notebook
from .redact_words import Replaced, learn, redact_text, replace

__all__ = [
    "Known",
    "RedactError",
    "Replaced",
    "known_values",
    "learn",
    "learn_live",
    "redact_bundle",
    "redact_data",
    "redact_files",
    "redact_notebook",
    "redact_text",
    "replace",
    "second_scan",
]

_NO_SECRET = re.compile(r"[0-9a-f]{8,64}|iVBOR.*|/9j/.*|/[\w./-]*")
"""Ids, commits and digests in hexadecimal, the base64 of a picture and paths: by their mere entropy they are no secrets."""


def second_scan(texts: Mapping[str, str]) -> list[str] | str:
    """What detect-secrets finds in texts that should be clean: "NAME line N: KIND", never the value. Text by name.

    A reason instead of a list where detect-secrets is not installed. What is a pseudonym of ours is left out.
    """
    try:
        from detect_secrets import SecretsCollection  # type: ignore[import-not-found, unused-ignore]
        from detect_secrets.settings import default_settings  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return "second scan not run because detect-secrets is not installed"
    found = []
    for name, text in texts.items():
        with (
            default_settings(),
            tempfile.NamedTemporaryFile(
                "w", suffix=".txt", encoding="utf-8", errors="replace"
            ) as file,
        ):
            file.write(text)
            file.flush()
            secrets = SecretsCollection()
            secrets.scan_file(file.name)
            for _, secret in secrets:
                value = secret.secret_value or ""
                if not (
                    PSEUDONYM.search(value)
                    or "Entropy" in secret.type
                    and _NO_SECRET.fullmatch(value)
                ):
                    found.append(f"{name} line {secret.line_number}: {secret.type}")
    return found
