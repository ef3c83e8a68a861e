"""What is known of each environment variable and allocator option that people set against memory trouble: one row a fact.

A row holds for the builds, chips, torch and ROCm versions it names; what a row needs and the box does not tell leaves it
undecided. ``source`` is where the fact was read: a file of the source code, an issue, a manual page, or "measured" (PyTorch's
own compiled allocator run behind a stand-in for the GPU runtime, the versions named).
"""

from __future__ import annotations

from dataclasses import dataclass

CLR = "ROCm/clr rocclr/utils/flags.hpp"
ROCR = "ROCR-Runtime core/util/flag.h, docs/env_variables.rst"
MIOPEN = "MIOpen documentation, environment variables"
TORCH_CONF = "PyTorch c10/cuda/CUDAAllocatorConfig.h"
CUDA_NOTES = "PyTorch documentation, CUDA semantics: memory management"
AT_HIP, AT_ROCR, AT_ALLOCATOR = "when HIP starts", "when ROCr starts", "at the allocator's first use"


@dataclass(frozen=True)
class Setting:
    """One variable: the build whose programs read it (empty: both), when, and what is said where no rule says otherwise."""

    name: str
    build: str
    read_when: str
    verdict: str
    says: str
    source: str


@dataclass(frozen=True)
class Rule:
    """A fact under conditions, all of which must hold. ``name`` is a variable, or ``option:NAME`` in the allocator's text.

    ``value`` is a regular expression for the whole text. ``beside`` is (another name, an expression for its value), or
    (another name, "") where that must be absent; the name ``caching`` with ``off`` stands for a disabled cache. ``since`` and
    ``below`` are torch releases, ``rocm_since`` and ``rocm_below`` ROCm's, ``gfx`` starts of chip names.
    """

    name: str
    verdict: str
    says: str
    source: str
    value: str = ""
    beside: tuple[str, str] = ("", "")
    build: str = ""
    gfx: tuple[str, ...] = ()
    since: str = ""
    below: str = ""
    rocm_since: str = ""
    rocm_below: str = ""


@dataclass(frozen=True)
class Option:
    """One key of the allocator's text; before ``since`` torch stops at its first use of the GPU with "Unrecognized"."""

    name: str
    since: str
    value: str
    expected: str
    says: str
    source: str


CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Names of the allocator's text, the one that wins first. A name that is set wins even where it is empty."""

# (name, build, since, below, read, why); the first row that fits decides. read None: not known.
CONF_READ: tuple[tuple[str, str, str, str, bool | None, str, str], ...] = (
    ("PYTORCH_CUDA_ALLOC_CONF", "cuda", "", "", True, "", TORCH_CONF),
    ("PYTORCH_CUDA_ALLOC_CONF", "rocm", "2.7", "", True, "", TORCH_CONF + " (USE_ROCM)"),
    ("PYTORCH_CUDA_ALLOC_CONF", "rocm", "", "2.7", None, "in ROCm builds before 2.7 the source is renamed for HIP, and which "
     "names are left was not checked", TORCH_CONF),
    ("PYTORCH_HIP_ALLOC_CONF", "rocm", "", "", True, "", TORCH_CONF + " (USE_ROCM)"),
    ("PYTORCH_HIP_ALLOC_CONF", "cuda", "2.11", "", True, "CUDA builds take its common keys", "measured: 2.11 to 2.15"),
    ("PYTORCH_HIP_ALLOC_CONF", "cuda", "2.8", "2.11", None, "not checked on a CUDA build of this release", TORCH_CONF),
    ("PYTORCH_HIP_ALLOC_CONF", "cuda", "", "2.8", False, "a CUDA build of this release does not look for it", TORCH_CONF),
    ("PYTORCH_ALLOC_CONF", "", "2.10", "", True, "", "measured: 2.11 to 2.15"),
    ("PYTORCH_ALLOC_CONF", "", "", "2.10", False, "torch reads it from 2.10 on; 2.9 warns people to use it and ignores it",
     "pytorch#183387"),
)

OPTIONS: tuple[Option, ...] = (
    Option("expandable_segments", "2.1", "True|False", "True or False",
           "segments grow instead of being cut to size: helps where sizes change from step to step", CUDA_NOTES),
    Option("max_split_size_mb", "", r"[0-9]+", "a whole number of MiB, 20 or more",
           "blocks above it are not split; a larger number allows more splitting. A last resort", CUDA_NOTES),
    Option("garbage_collection_threshold", "", r"0?\.[0-9]*[1-9][0-9]*", "a number between 0 and 1, both left out",
           "reclaims cached blocks above this share of the allowed memory: higher means later", CUDA_NOTES),
    Option("roundup_power2_divisions", "", r"0|[0-9]+|\[[0-9>:, ]+\]", "a power of two, or a list such as [256:4,>:1]",
           "rounds sizes up so that blocks can be used again; it spends memory inside blocks", CUDA_NOTES),
    Option("max_non_split_rounding_mb", "2.6", r"[0-9]+", "a whole number of MiB",
           "how much larger an unsplit block may be than what was asked", CUDA_NOTES),
    Option("backend", "", "native|cudaMallocAsync|hipMallocAsync", "native or cudaMallocAsync",
           "chooses the allocator", CUDA_NOTES),
    Option("per_process_memory_fraction", "2.10", r"0?\.[0-9]+|[01](\.0*)?", "a number from 0 to 1",
           "caps this process at that share of the GPU", CUDA_NOTES),
    Option("large_segment_size_mb", "2.11", r"[0-9]+", "a whole number of MiB",
           "the size of a segment for middle-sized blocks, 20 MiB by default", "PyTorch c10/core/AllocatorConfig.h, 2.11"),
    Option("throw_on_cudamalloc_oom", "2.13", "True|False", "True or False",
           "fails before asking the driver for memory beyond the fraction", "PyTorch c10/core/AllocatorConfig.h, 2.13"),
    Option("graph_capture_record_stream_reuse", "2.9", "True|False", "True or False",
           "frees blocks earlier while a CUDA graph is captured", CUDA_NOTES),
    Option("release_lock_on_cudamalloc", "", "True|False", "True or False", "locking only; not memory", CUDA_NOTES),
    Option("release_lock_on_hipmalloc", "", "True|False", "True or False", "locking only; not memory", TORCH_CONF),
    Option("pinned_use_cuda_host_register", "", "True|False", "True or False", "pinned host memory only", CUDA_NOTES),
    Option("pinned_use_hip_host_register", "", "True|False", "True or False", "pinned host memory only", TORCH_CONF),
    Option("pinned_num_register_threads", "", r"[0-9]+", "a power of two up to 128", "pinned host memory only", CUDA_NOTES),
    Option("pinned_use_background_threads", "2.6", "True|False", "True or False", "pinned host memory only", CUDA_NOTES),
    Option("pinned_reserve_segment_size_mb", "2.10", r"[0-9]+", "a whole number of MiB", "pinned host memory only", CUDA_NOTES),
    Option("pinned_max_round_threshold_mb", "2.13", r"[0-9]+", "a whole number of MiB", "pinned host memory only",
           "PyTorch c10/core/AllocatorConfig.h, 2.13"),
    Option("pinned_max_cached_size_mb", "2.13", r"[0-9]+", "a whole number of MiB", "pinned host memory only",
           "PyTorch c10/core/AllocatorConfig.h, 2.13"),
)

NO_CACHE = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
DATA_LOSS = "ROCm/legacy-rocm-build#6603"
RULES: tuple[Rule, ...] = (
    # Expandable segments.
    Rule("option:expandable_segments", "unsupported", "ROCm builds before 2.11 warn once that the platform does not support it "
         "and go on without it", "pytorch#173330, #177974 (enabled in 2026)", "True", build="rocm", below="2.11"),
    Rule("option:expandable_segments", "unknown", "of ROCm builds of 2.11 and 2.12 some have it (AMD's branches) and some warn "
         "and ignore it: look for the warning", "ROCm/pytorch#3106, #3178", "True", build="rocm", since="2.11", below="2.13"),
    Rule("option:expandable_segments", "unsupported", "needs a build for ROCm 7.0 or later", "pytorch#179930", "True",
         build="rocm", since="2.13", rocm_below="7.0"),
    Rule("option:expandable_segments", "dangerous", "on ROCm 7.14 a hang while memory is mapped is reported and open",
         "pytorch#192259", "True", build="rocm", since="2.12", rocm_since="7.14"),
    Rule("option:expandable_segments", "dangerous", "with max_split_size_mb beside it, data in use was set to zero on ROCm "
         "7.14 (19 of 20 runs, also on gfx1100); none of 30 on 7.2", DATA_LOSS, "True",
         ("option:max_split_size_mb", ".+"), "rocm", since="2.12", rocm_since="7.14"),
    Rule("option:expandable_segments", "dangerous", "with max_split_size_mb beside it freed regions above that size are never "
         "used again, and reserved memory grows without end", "measured: 2.11 to 2.15; pytorch#123548, #193400", "True",
         ("option:max_split_size_mb", ".+"), "cuda"),
    Rule("option:expandable_segments", "dangerous", "with max_split_size_mb beside it these releases can stop at an internal "
         "assertion", "pytorch#123548, #134338", "True", ("option:max_split_size_mb", ".+"), "cuda", since="2.1", below="2.5"),
    Rule("option:expandable_segments", "dangerous", "with max_split_size_mb beside it freed regions above that size are never "
         "used again, and reserved memory grows without end", "pytorch#123548", "True",
         ("option:max_split_size_mb", ".+"), "rocm", since="2.13", rocm_since="7.0"),
    # The other options.
    Rule("option:max_split_size_mb", "dangerous", "below 20 torch stops at its first use of the GPU",
         "PyTorch c10/core/AllocatorConfig.cpp", "0*1?[0-9]"),
    Rule("option:garbage_collection_threshold", "ineffective", "does nothing unless a memory fraction below 1 is set too, here "
         "or by torch.cuda.set_per_process_memory_fraction; and it never joins split blocks", "measured: 2.11, 2.14",
         beside=("option:per_process_memory_fraction", "")),
    Rule("option:max_split_size_mb", "dangerous", "before 2.10 it must be more than 20, or torch stops at its first use",
         "measured: 2.6", "0*20", below="2.10"),
    Rule("option:roundup_power2_divisions", "dangerous", "not a power of two: torch stops at its first use of the GPU",
         "measured: 2.6, 2.11, 2.13, 2.14", r"(?!(1|2|4|8|16|32|64|128|256|512|1024)$)[0-9]{1,4}"),
    Rule("option:backend", "effective", "another allocator: segments, their options and memory snapshots do not exist there",
         CUDA_NOTES, "(cuda|hip)MallocAsync"),
    # The allocator's text as a whole.
    *(Rule(name, "contradictory", "the cache that this text tunes is switched off beside it", CUDA_NOTES,
           ".+", ("caching", "off")) for name in CONF_NAMES),
    Rule("PYTORCH_CUDA_ALLOC_CONF", "effective", "2.9 calls the name deprecated; it is still the one that this release reads",
         "pytorch#183387", build="cuda", since="2.9", below="2.10"),
    # Caching off. Before 2.6 a build has only its own name; ROCm's sources are renamed for HIP as they are built. From 2.7 on
    # (pytorch#145905) the value is tested, not only the presence.
    *(rule for name, own in zip(NO_CACHE, ("cuda", "rocm"), strict=True) for build, since, below in (
        (own, "", "2.6"), ("", "2.6", "2.7")) for rule in (
        Rule(name, "contradictory", "the value says off, and these releases test only whether the name is there: caching IS "
             "disabled", "pytorch#145661; measured: 2.6", "0|", build=build, since=since, below=below),
        Rule(name, "debug_only", "disables the cache whatever its value: each tensor is a raw allocation, slow, with no "
             "statistics", "pytorch#145661; measured: 2.6", "(?!0$).+", build=build, since=since, below=below))),
    *(rule for name in NO_CACHE for rule in (
        Rule(name, "ineffective", "0 keeps the cache on, as without it", "measured: 2.11, 2.14", "0", since="2.7"),
        Rule(name, "ineffective", "only 1 disables the cache; anything else warns and keeps it", "measured: 2.11, 2.14",
             "(?![01]$).*", since="2.7"))),
    Rule("PYTORCH_NO_HIP_MEMORY_CACHING", "ineffective", "CUDA builds look for it from 2.6 on", "measured: 2.11, 2.14",
         build="cuda", below="2.6"),
    Rule("PYTORCH_NO_CUDA_MEMORY_CACHING", "unknown", "ROCm builds before 2.6 are renamed for HIP, and which names stay was "
         "not checked", "PyTorch torch/utils/hipify", build="rocm", below="2.6"),
    # The compute stack.
    Rule("HSA_XNACK", "unsupported", "ROCr lists this chip without XNACK: no page faults on demand, no oversubscription",
         "ROCR-Runtime core/runtime/isa.cpp", "1", gfx=("gfx10", "gfx11")),
    Rule("HSA_XNACK", "effective", "this chip can fault pages in on demand; slower, and only for managed or system memory",
         "ROCR-Runtime core/runtime/isa.cpp", "1", gfx=("gfx90a", "gfx94", "gfx95")),
    Rule("HSA_XNACK", "ineffective", "0 asks for no page faults, which is what most systems do anyway", ROCR, "0"),
    Rule("HSA_XNACK", "ineffective", "only 0 and 1 are values; anything else leaves the default", ROCR, "(?![01]$).*"),
    Rule("HSA_OVERRIDE_GFX_VERSION", "dangerous", "code for gfx1100 on gfx1151 goes with memory faults; torch builds for "
         "gfx1151 exist", "ROCm#5824", r"11\.0\.0", gfx=("gfx1151",)),
    Rule("HIP_VISIBLE_DEVICES", "effective", "counts among the GPUs that ROCR_VISIBLE_DEVICES leaves, from 0 again",
         "HIP documentation, GPU isolation", ".+", ("ROCR_VISIBLE_DEVICES", ".+"), "rocm"),
    Rule("CUDA_VISIBLE_DEVICES", "shadowed", "HIP_VISIBLE_DEVICES is set too, and HIP looks at that first",
         "ROCm/clr rocclr/device/rocm/rocdevice.cpp", ".*", ("HIP_VISIBLE_DEVICES", ".+"), "rocm"),
    *(Rule(name, "effective", "hides every GPU", "ROCm/clr rocdevice.cpp; CUDA programming guide", "-1")
      for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")),
    *(Rule(name, "effective", "empty counts as set: it hides every GPU", "CUDA programming guide; ROCR-Runtime flag.h", "()")
      for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")),
    Rule("HIP_LAUNCH_BLOCKING", "ineffective", "0 is the default", CLR, "0"),
    Rule("AMD_SERIALIZE_KERNEL", "ineffective", "0 is the default", CLR, "0"),
    Rule("AMD_SERIALIZE_KERNEL", "ineffective", "values are 0 to 3", CLR, "(?![0-3]$).*"),
    Rule("GPU_SINGLE_ALLOC_PERCENT", "effective", "can only shrink what one allocation may take", CLR, "[1-9]?[0-9]"),
    Rule("GPU_MAX_HEAP_SIZE", "effective", "can only shrink what HIP offers", CLR, "[1-9]?[0-9]"),
    Rule("MIOPEN_LOG_LEVEL", "ineffective", "4 is the default of a release build", MIOPEN, "4"),
    Rule("MIOPEN_DISABLE_CACHE", "ineffective", "0 is the default", MIOPEN, "0"),
    Rule("XLA_PYTHON_CLIENT_PREALLOCATE", "effective", "memory is taken as it is needed and not given back",
         "JAX documentation, GPU memory allocation", "(?i:false|0)"),
)

SETTINGS: tuple[Setting, ...] = (
    *(Setting(name, "", AT_ALLOCATOR, "effective", "options of torch's caching allocator, for this process only", CUDA_NOTES)
      for name in CONF_NAMES),
    *(Setting(name, "", "at the first allocation, once", "debug_only",
              "disables the cache: each tensor is a raw allocation, slow, with no statistics; setting it later does nothing",
              "pytorch#92074, #131114")
      for name in NO_CACHE),
    Setting("PYTORCH_ROCM_ARCH", "", "while torch is compiled", "ineffective",
            "a list of targets for building torch; a program that runs does not read it", "PyTorch cmake/public/LoadHIP.cmake"),
    Setting("TORCH_BLAS_PREFER_HIPBLASLT", "rocm", "when a BLAS library is chosen", "effective",
            "chooses the library for matrix products; not memory, apart from that library's own workspace",
            "PyTorch aten/src/ATen/Context.cpp"),
    Setting("CUBLAS_WORKSPACE_CONFIG", "cuda", "when cuBLAS starts", "effective",
            "sets the workspace of each cuBLAS handle: memory beside torch's cache", "cuBLAS documentation, reproducibility"),
    Setting("CUDA_LAUNCH_BLOCKING", "", "when the runtime starts", "debug_only", "waits after each kernel; slow, not memory",
            "CUDA programming guide"),
    Setting("CUDA_DEVICE_ORDER", "cuda", "when CUDA starts", "effective", "changes which GPU has which index",
            "CUDA programming guide"),
    Setting("CUDA_VISIBLE_DEVICES", "", "when the runtime starts", "effective",
            "which GPUs the process sees, numbered from 0 again; a wrong index fails as device >= 0 && device < num_gpus",
            "CUDA programming guide; HIP documentation, GPU isolation"),
    Setting("HIP_VISIBLE_DEVICES", "rocm", AT_HIP, "effective",
            "which GPUs the process sees, numbered from 0 again; a wrong index fails as device >= 0 && device < num_gpus",
            "HIP documentation, GPU isolation"),
    Setting("ROCR_VISIBLE_DEVICES", "rocm", AT_ROCR, "effective",
            "which GPUs reach HIP at all, by index or GPU-uuid; HIP numbers what is left from 0", ROCR),
    Setting("GPU_DEVICE_ORDINAL", "rocm", AT_HIP, "effective", "which GPUs the process sees", CLR),
    Setting("NVIDIA_VISIBLE_DEVICES", "cuda", "when the container starts", "effective",
            "read by the container runtime; setting it inside does nothing", "NVIDIA Container Toolkit documentation"),
    Setting("HSA_XNACK", "rocm", AT_ROCR, "unknown", "asks for page faults on demand; whether this chip has them is not known",
            "ROCR-Runtime core/runtime/isa.cpp"),
    Setting("HSA_ENABLE_SDMA", "rocm", AT_ROCR, "debug_only", "0 copies by kernels, not by the copy engines; frees no memory",
            ROCR),
    Setting("HSA_ENABLE_INTERRUPT", "rocm", AT_ROCR, "debug_only", "0 polls for signals; frees no memory", ROCR),
    Setting("HSA_NO_SCRATCH_RECLAIM", "rocm", AT_ROCR, "effective",
            "1 keeps scratch memory with each queue: in use, and in no framework's count", ROCR),
    Setting("HSA_SCRATCH_SINGLE_LIMIT", "rocm", AT_ROCR, "effective",
            "scratch up to this many bytes stays with a queue: in use, and in no framework's count", ROCR),
    Setting("HSA_DISABLE_FRAGMENT_ALLOCATOR", "rocm", AT_ROCR, "debug_only",
            "each allocation goes to the driver by itself, in whole blocks: it takes more memory", ROCR),
    Setting("HSA_OVERRIDE_GFX_VERSION", "rocm", "when the topology is read", "unknown",
            "makes ROCm load code for another chip; no effect on memory, faults where the chips differ",
            "ROCR-Runtime libhsakmt/src/topology.c"),
    Setting("HIP_FORCE_DEV_KERNARG", "rocm", AT_HIP, "effective", "kernel arguments in device memory: latency only", CLR),
    Setting("HIP_LAUNCH_BLOCKING", "rocm", AT_HIP, "debug_only", "waits after each kernel; slow, not memory", CLR),
    Setting("AMD_SERIALIZE_KERNEL", "rocm", AT_HIP, "debug_only", "waits around each kernel; slow, not memory", CLR),
    Setting("AMD_SERIALIZE_COPY", "rocm", AT_HIP, "debug_only", "waits around each copy; slow, not memory", CLR),
    Setting("HIP_HIDDEN_FREE_MEM", "rocm", AT_HIP, "effective", "takes so many MiB off the free memory that HIP reports", CLR),
    Setting("GPU_SINGLE_ALLOC_PERCENT", "rocm", AT_HIP, "effective", "a cap on one allocation; HIP's own value is 100", CLR),
    Setting("GPU_MAX_HEAP_SIZE", "rocm", AT_HIP, "effective", "a cap in per cent; its default is 100", CLR),
    Setting("GPU_MAX_ALLOC_PERCENT", "rocm", "never", "ineffective", "not among the runtime's flags: nothing reads it", CLR),
    Setting("GPU_MAX_HW_QUEUES", "rocm", AT_HIP, "effective", "hardware queues a process uses, each with its own scratch", CLR),
    Setting("MIOPEN_USER_DB_PATH", "rocm", "when MIOpen starts", "effective", "where tuning results lie; not memory", MIOPEN),
    Setting("MIOPEN_LOG_LEVEL", "rocm", "when MIOpen starts", "debug_only", "logging; not memory", MIOPEN),
    Setting("MIOPEN_ENABLE_LOGGING", "rocm", "when MIOpen starts", "debug_only", "logging; not memory", MIOPEN),
    Setting("MIOPEN_DISABLE_CACHE", "rocm", "when MIOpen starts", "debug_only",
            "compiles its kernels anew in every run: slower, and no memory is won", MIOPEN),
    Setting("XLA_PYTHON_CLIENT_PREALLOCATE", "", "when JAX starts its backend", "effective",
            "JAX takes most of the GPU at its start", "JAX documentation, GPU memory allocation"),
    Setting("XLA_PYTHON_CLIENT_MEM_FRACTION", "", "when JAX starts its backend", "effective",
            "the share of the GPU that JAX takes at its start; 0.75 by default", "JAX documentation, GPU memory allocation"),
    Setting("TF_FORCE_GPU_ALLOW_GROWTH", "", "when TensorFlow starts", "effective",
            "true: memory is taken as it is needed instead of nearly all at the start", "TensorFlow guide, use a GPU"),
)

# Real names near those above that are no concern here, so that they are not taken for a slip of the pen.
OTHER_NAMES = frozenset((
    "PYTORCH_VERSION", "PYTORCH_JIT", "PYTORCH_KERNEL_CACHE_PATH", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "PYTORCH_MIOPEN_SUGGEST_NHWC", "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_TUNABLEOP_ENABLED", "PYTORCH_TEST_WITH_ROCM",
    "PYTORCH_BUILD_VERSION",
    "PYTORCH_XPU_ALLOC_CONF", "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "HSA_ENABLE_SDMA_GANG", "HSA_ENABLE_PEER_SDMA",
    "HSA_ENABLE_MWAITX", "HSA_ENABLE_DEBUG", "HSA_ENABLE_SCRATCH_ASYNC_RECLAIM", "HSA_SCRATCH_SINGLE_LIMIT_ASYNC",
    "HSA_USE_SVM", "HSA_TOOLS_LIB", "HIP_PATH", "HIP_PLATFORM",
    "AMD_LOG_LEVEL", "AMD_LOG_MASK", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "CUDA_CACHE_DISABLE", "CUDA_MODULE_LOADING",
    "CUDA_VERSION", "ROCM_PATH", "ROCM_HOME", "ROCM_VERSION", "GPU_ENABLE_WAVE32_MODE", "GPU_ENABLE_PAL", "NVIDIA_REQUIRE_CUDA",
    "NVIDIA_DRIVER_CAPABILITIES", "MIOPEN_LOG_FILE", "MIOPEN_FIND_MODE", "MIOPEN_FIND_ENFORCE", "MIOPEN_SYSTEM_DB_PATH",
    "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_ENABLE_LOGGING_CMD", "MIOPEN_CHECK_NUMERICS", "TORCH_USE_HIP_DSA", "TORCH_USE_CUDA_DSA",
    "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_CUDA_ARCH_LIST", "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_FLAGS", "TF_GPU_ALLOCATOR",
))
PREFIXES = ("PYTORCH", "TORCH_BLAS", "PYTOCH", "PYTROCH", "HSA_", "HIP_", "ROCR_", "AMD_SERIAL", "GPU_", "MIOPEN_", "CUDA_VIS",
            "CUDA_LAUNCH", "XLA_PYTHON", "TF_FORCE", "CUBLAS_WORK")
