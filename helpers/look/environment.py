"""Settings that a process inherits and that change what a GPU program gets: environment variables, ulimits, libraries.

Variables are taken by allow-list. A name that sounds like a secret is left out even where its prefix is allowed.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import commands, files
from .bundle import Bundle
from .reading import Reading, not_available, seen

ALLOWED_NAMES = ("CONDA_DEFAULT_ENV", "CONDA_PREFIX", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCAL_RANK",
                 "PYTHONNOUSERSITE", "PYTHONPATH", "RANK", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "VIRTUAL_ENV", "WORLD_SIZE",
                 "container")
ALLOWED_PREFIXES = ("AMD_", "AMDSMI_", "CUBLAS", "CUDA_", "CUDNN_", "GPU_", "HIPBLAS", "HIP_", "HSA_", "KMP_", "MALLOC_",
                    "MIOPEN_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTORCH_", "RCCL_", "ROCBLAS_", "ROCM_",
                    "ROCR_", "TENSILE_", "TORCH", "TRITON_", "TF_FORCE_", "TF_GPU_", "XLA_CLIENT_", "XLA_PYTHON_", "GGML_CUDA_",
                    "OLLAMA_CONTEXT", "OLLAMA_FLASH", "OLLAMA_GPU_", "OLLAMA_KEEP_", "OLLAMA_KV_", "OLLAMA_LLM_", "OLLAMA_MAX_",
                    "OLLAMA_NUM_", "OLLAMA_SCHED_", "VLLM_ALLOW_", "VLLM_CPU_", "VLLM_GPU_", "VLLM_MAX_", "VLLM_SKIP_")
# Words of a name that say what its value is, wherever they stand; and words that do so where they end the name, since other
# words after them, or a plural, name what belongs to keys and tokens, or counts them: key_frames, num_keys, max_tokens.
_SECRET_WORDS = re.compile(r"\w*(secret|passw|credential)\w*|pass(phrase|code)s?|pwd|creds?|cookies?|proxy|o?auth"
                           r"|authori[sz]ation|authentication")
_SECRET_ENDS = re.compile(r"key|\w*(api|access|private|ssh|auth|account|encryption|license|signing)keys?|\w*token|pass|pat|psk")
_OF_SECRETS = ("api", "access", "private", "ssh", "auth", "account", "encryption", "license", "signing", "bearer", "refresh")
_AFTER_SECRET = ("id", "value", "string", "str", "base64", "b64", "hex", "json")
# What a tokenizer calls a token is a word of its alphabet.
_OF_A_TOKENIZER = ("pad", "eos", "bos", "unk", "sep", "cls", "mask", "image", "audio", "stop", "start", "end", "special")
VALUE_LIMIT = 4096
# Named as in limits.conf(5).
ULIMITS = (("as", "bytes"), ("core", "bytes"), ("data", "bytes"), ("fsize", "bytes"), ("memlock", "bytes"), ("nofile", "count"),
           ("nproc", "count"), ("stack", "bytes"))
LIBRARY = re.compile(r"lib(amdhip64|amd_smi|rocm_smi64|hsa-runtime64|hsakmt|rocblas|hipblas|hipblaslt|MIOpen|rccl|amdocl64"
                     r"|drm_amdgpu|cuda|cudart|cublas|cublasLt|cudnn|nccl|nvidia-ml|nvidia-ptxjitcompiler|dxcore)"
                     r"\.so(\.[0-9A-Za-z.]+)?")
LIBRARY_FOLDERS = ("/opt/rocm*/lib", "/opt/rocm*/lib64", "/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu",
                   "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/local/cuda*/lib64", "/usr/local/nvidia/lib64",
                   "/usr/lib/wsl/lib")


@dataclass(frozen=True)
class Variable:
    """One environment variable; an empty value is a value."""

    name: str
    value: str
    item: str


@dataclass(frozen=True)
class Limit:
    """One ulimit. A limit that is not set reads as not available: unlimited."""

    name: str
    soft: Reading
    hard: Reading


@dataclass(frozen=True)
class Library:
    """A GPU library on this box: the path it lies at, what that links to (its version), and how it was found."""

    name: str
    path: str
    real: str
    via: str
    item: str


def collect_environment(root: Path) -> list[dict[str, Any]]:
    """The table ``environment``. The home folder in a value is written ``~``; name and password in an address are left out."""
    return [{"name": name, "value": without_names(os.environ[name])} for name in sorted(os.environ) if is_allowed(name)]


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
    *before, last = words or [""]
    if last in ("keys", "tokens"):
        return bool(before) and before[-1] in _OF_SECRETS
    return bool(_SECRET_ENDS.fullmatch(last)) and not (last == "token" and bool(before) and before[-1] in _OF_A_TOKENIZER)


def without_names(value: str) -> str:
    """A value with the home folder written ``~`` and without a name and password in an address."""
    value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[:VALUE_LIMIT]
    home = os.path.expanduser("~")
    if len(home) > 1:
        value = re.sub(re.escape(home) + r"(?=[/:;,=\s]|$)", "~", value)
    return re.sub(r"://[^/@\s]+@", "://", value)


def collect_limits(root: Path) -> list[dict[str, Any]]:
    """The table ``limits``, in bytes or counts; a limit that is not set is the word ``unlimited``."""
    rows = []
    for name, unit in ULIMITS:
        kept = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        soft, hard = ("unlimited" if n == resource.RLIM_INFINITY else n for n in kept)
        rows.append({"name": name, "soft": soft, "hard": hard, "unit": unit})
    return rows


def collect_libraries(root: Path, with_commands: bool = True) -> list[dict[str, Any]]:
    """The table ``libraries``: GPU libraries in the usual folders and, for this box, in the loader's cache. None is opened."""
    rows = list(_in_folders(str(root)))
    if with_commands and str(root) == "/":
        text = commands.run(("ldconfig", "-p")).stdout.decode("utf-8", "replace")
        for line in text.splitlines():
            name, _, path = line.strip().partition(" => ")
            if LIBRARY.fullmatch(name.split(" ")[0]) and path.startswith("/"):
                rows.append({"name": name.split(" ")[0], "path": path, "real": os.path.realpath(path), "via": "ldconfig"})
    # One library is found by several links to it.
    found = {(row["name"], row["real"]): row for row in sorted(rows, key=lambda row: (row["via"], row["path"]), reverse=True)}
    return [found[key] for key in sorted(found)]


def _in_folders(root: str) -> Iterator[dict[str, Any]]:
    top = root.rstrip("/")
    base = os.path.realpath(top or "/").rstrip("/")
    for folder in LIBRARY_FOLDERS:
        for found in files.find(root, folder + "/lib*.so*"):
            name = found.source.rpartition("/")[2]
            if found.status == "ok" and LIBRARY.fullmatch(name):
                real = os.path.realpath(top + found.source)[len(base):]
                yield {"name": name, "path": found.source, "real": real, "via": "folder"}


def variables(bundle: Bundle) -> tuple[Variable, ...]:
    """The environment variables that were kept, by name."""
    item = bundle.read("environment").item
    rows = {str(row["name"]): str(row.get("value", "")) for row in bundle.table("environment") if "name" in row}
    return tuple(Variable(name, rows[name], item) for name in sorted(rows))


def limits(bundle: Bundle) -> tuple[Limit, ...]:
    """The ulimits of the capturing process, by name."""
    item = bundle.read("limits").item

    def reading(row: dict[str, Any], key: str) -> Reading:
        value, source = row.get(key), f"ulimit {row['name']} ({key})"
        unit = "bytes" if row.get("unit") == "bytes" else "count"
        if isinstance(value, bool) or not isinstance(value, int):
            return not_available("unlimited" if value == "unlimited" else "not captured", unit, source, item)
        return seen(value, unit, source, item)

    rows = {str(row["name"]): row for row in bundle.table("limits") if "name" in row}
    return tuple(Limit(name, reading(rows[name], "soft"), reading(rows[name], "hard")) for name in sorted(rows))


def libraries(bundle: Bundle) -> tuple[Library, ...]:
    """GPU libraries that were found, by name."""
    item = bundle.read("libraries").item
    return tuple(Library(name=str(row.get("name", "")), path=str(row.get("path", "")), real=str(row.get("real", "")),
                         via=str(row.get("via", "")), item=item) for row in bundle.table("libraries"))
