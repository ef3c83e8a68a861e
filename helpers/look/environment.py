"""Settings that a process inherits and that change what a GPU program gets: environment variables and ulimits.

Variables are taken by allow-list. A name that sounds like a secret is left out even where its prefix is allowed.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from typing import Any

from .bundle import Bundle
from .reading import Reading

ALLOWED_NAMES = (
    "CONDA_DEFAULT_ENV CONDA_PREFIX LANG LC_ALL LD_LIBRARY_PATH LD_PRELOAD LOCAL_RANK PYTHONNOUSERSITE PYTHONPATH RANK "
    "SLURM_JOB_GPUS SLURM_STEP_GPUS VIRTUAL_ENV WORLD_SIZE container"
).split()
ALLOWED_PREFIXES = tuple(
    "AMD_ AMDSMI_ CUBLAS CUDA_ CUDNN_ GPU_ HIPBLAS HIP_ HSA_ KMP_ MALLOC_ MIOPEN_ MKL_ NCCL_ NVIDIA_ OMP_ OPENBLAS_ "
    "PYTORCH_ RCCL_ ROCBLAS_ ROCM_ ROCR_ TENSILE_ TORCH TRITON_ TF_FORCE_ TF_GPU_ XLA_CLIENT_ XLA_PYTHON_ GGML_CUDA_ "
    "OLLAMA_CONTEXT OLLAMA_FLASH OLLAMA_GPU_ OLLAMA_KEEP_ OLLAMA_KV_ OLLAMA_LLM_ OLLAMA_MAX_ OLLAMA_NUM_ OLLAMA_SCHED_ "
    "VLLM_ALLOW_ VLLM_CPU_ VLLM_GPU_ VLLM_MAX_ VLLM_SKIP_".split()
)
# Words of a name that say what its value is, wherever they stand; and words that do so where they end the name, since other
# words after them, or a plural, name what belongs to keys and tokens, or counts them: key_frames, num_keys, max_tokens.
_SECRET_WORDS = re.compile(
    r"\w*(secret|passw|credential)\w*|pass(phrase|code)s?|pwd|creds?|cookies?|proxy|o?auth"
    r"|authori[sz]ation|authentication"
)
_SECRET_ENDS = re.compile(
    r"key|\w*(api|access|private|ssh|auth|account|encryption|license|signing)keys?|\w*token|pass|pat|psk"
)
_OF_SECRETS = (
    "api access private ssh auth account encryption license signing bearer refresh".split()
)
_AFTER_SECRET = "id value string str base64 b64 hex json".split()
# What a tokenizer calls a token is a word of its alphabet.
_OF_A_TOKENIZER = "pad eos bos unk sep cls mask image audio stop start end special".split()
VALUE_LIMIT = 4096
# Named as in limits.conf(5); those of COUNTS are no sizes.
ULIMITS, COUNTS = "as core data fsize memlock nofile nproc stack".split(), ("nofile", "nproc")


@dataclass(frozen=True)
class Variable:
    """One environment variable; an empty value is a value."""

    name: str
    value: str
    item: str


@dataclass(frozen=True)
class Limit:
    """One ulimit, the soft one, which holds. A limit that is not set reads as not available: unlimited."""

    name: str
    soft: Reading


def collect_environment() -> list[dict[str, Any]]:
    """The table ``environment``. The home folder in a value is written ``~``; name and password in an address are left out."""
    names = filter(is_allowed, sorted(os.environ))
    return [{"name": name, "value": without_names(os.environ[name])} for name in names]


def is_allowed(name: str) -> bool:
    """Whether a variable of that name may be kept."""
    if sounds_secret(name):
        return False
    return name in ALLOWED_NAMES or name.startswith(ALLOWED_PREFIXES)


def sounds_secret(name: str) -> bool:
    """Whether the value of an option or a variable of that name is not to be shown: HF_TOKEN, --api-key, dbPassword."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)]
    while len(words) > 1 and words[-1] in _AFTER_SECRET:
        words.pop()
    if any(_SECRET_WORDS.fullmatch(word) for word in words):
        return True
    last, before = words[-1] if words else "", words[-2] if len(words) > 1 else ""
    if last in ("keys", "tokens"):
        return before in _OF_SECRETS
    of_alphabet = last == "token" and before in _OF_A_TOKENIZER
    return bool(_SECRET_ENDS.fullmatch(last)) and not of_alphabet


def without_names(value: str) -> str:
    """A value with the home folder written ``~`` and without a name and password in an address."""
    value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[:VALUE_LIMIT]
    home = os.path.expanduser("~")
    if len(home) > 1:
        value = re.sub(re.escape(home) + r"(?=[/:;,=\s]|$)", "~", value)
    return re.sub(r"://[^/@\s]+@", "://", value)


def collect_limits() -> list[dict[str, Any]]:
    """The table ``limits``, in bytes or counts; a limit that is not set is the word ``unlimited``."""
    rows = []
    for name in ULIMITS:
        unit = "count" if name in COUNTS else "bytes"
        kept = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        soft, hard = ("unlimited" if n == resource.RLIM_INFINITY else n for n in kept)
        rows.append({"name": name, "soft": soft, "hard": hard, "unit": unit})
    return rows


def variables(bundle: Bundle) -> tuple[Variable, ...]:
    """The environment variables that were kept, by name."""
    item = bundle.read("environment").item
    table = bundle.table("environment")
    kept = {str(row["name"]): str(row.get("value", "")) for row in table if "name" in row}
    return tuple(Variable(name, kept[name], item) for name in sorted(kept))


def limits(bundle: Bundle) -> tuple[Limit, ...]:
    """The ulimits of the capturing process, by name."""
    text = bundle.read("limits")
    found = {}
    for row in bundle.table("limits"):
        name, value = row.text("name"), row.number("soft")
        unit = "bytes" if row.get("unit") == "bytes" else "count"
        why = "unlimited" if row.get("soft") == "unlimited" else "not captured"
        at = text.of(f"ulimit {name} (soft)")
        found[name] = at.missing(why, unit) if value is None else at.seen(value, unit)
    return tuple(Limit(name, found[name]) for name in sorted(found) if name)
