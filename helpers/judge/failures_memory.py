"""The known failures of memory on the card: capacity, the allocator, libraries, holders, the driver, the program.

An entry is data: what must be seen, what speaks for and against it, what decides it, what to do. The rest of the catalogue
and the whole of it are in ``failures``.

``needs`` are groups of signals (any one of each group); ``base`` and the weights of ``speaks_for`` and ``against`` add up to a
score in which an observation that stands in the narrative alone counts half. ``decisive`` names the signals that prove the
failure; without one of them the answer is at most ``likely``. No entry knows another, so their order decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from helpers.run.shapes import Cause

Weights = Mapping[str, float]


@dataclass(frozen=True)
class Failure:
    """One known failure. ``experiment`` is (the reading that decides, how to take it); ``remedy`` is (what, command,
    precondition, blast radius); ``source`` is where the mechanism is described."""

    id: str
    label: Cause
    explanation: str
    needs: tuple[tuple[str, ...], ...]
    base: float
    experiment: tuple[str, str]
    remedy: tuple[str, str, str, str]
    source: str
    speaks_for: Weights = field(default_factory=dict)
    against: Weights = field(default_factory=dict)
    decisive: frozenset[str] = frozenset()


OOM = ("kind_oom", "kind_hip_oom_plain", "kind_collective_alloc", "kind_jax_oom", "kind_tf_oom", "kind_llama_oom",
       "kind_ollama_oom", "oom_words")
HOLDERS = ("Who has the device open, seen from the host as root",
           "sudo fuser -v /dev/kfd /dev/dri/renderD* /dev/nvidia*; ls /sys/class/kfd/kfd/proc; nvidia-smi -q -x")
RECORD = "python -m helpers record --out run.pickle -- python your_program.py"
WHATIF = f"{RECORD} && python -m helpers whatif run.pickle"
SNAPSHOT = ("A memory snapshot at the failure, which shows the stranded blocks", RECORD)
GROWTH = ("Allocated bytes after each of the first 20 iterations", "print(torch.cuda.memory_allocated()) once per iteration")
TOTALS = ("All totals on one boot: TTM limit, sysfs GTT and VRAM, KFD bank, rocminfo pool, torch total",
          "python -m helpers capture --out box && python -m helpers ttm box")
TOOLS = ("The same figure from sysfs or the driver itself", "cat /sys/class/drm/card*/device/mem_info_{vram,gtt}_{total,used}")
VERSIONS = ("The versions of framework, runtime and driver side by side",
    "python -m torch.utils.collect_env; cat /opt/rocm/.info/version")
ACCESS = ("Whether this user can open the nodes", "ls -ln /dev/kfd /dev/dri/renderD*; id; python -m helpers capture")
SERIAL = ("The first error, with kernels run one by one", "CUDA_LAUNCH_BLOCKING=1 AMD_SERIALIZE_KERNEL=3 python "
    "your_program.py")
RAM = ("Whether the kernel killed it", "sudo dmesg | grep -iE 'killed process|oom-kill'; cat /sys/fs/cgroup/memory.events")
LIBRARY = ("Free bytes just before the call", "print(torch.cuda.mem_get_info()) before the failing call")
STOP = ("Find the holder where all processes can be seen, and stop it there with SIGTERM",
    "sudo fuser -v /dev/kfd /dev/dri/renderD* /dev/nvidia*",
        "a shell on the host, outside every container", "none to look; stopping a process loses its work")
LESS = ("Ask for less: a smaller batch, resolution or context, checkpointing, or a lower precision", "", "the program lets you",
        "the results may change a little, speed too")
REBOOT = ("Reboot the machine", "sudo reboot", "no process holds the device; work is saved", "everything on the machine stops")
RAISE = ("Read all ceilings, then raise ttm.pages_limit for the module in use", "python -m helpers ttm live",
    "enough RAM is left for the system",
         "a boot setting: too high a limit can starve the system of RAM")
FIT = ("Install one set of wheels built for this chip and this runtime", "python -m torch.utils.collect_env",
    "a fresh environment, so that the old one stays",
       "that environment only")
GROUP = ("Give this user or container the group of the render node", "sudo usermod -aG render,video $USER   (container: "
    "--group-add with the number of the group)",
         "the node's group as ls -ln shows it", "the user's access rights")
NOT_CACHED = ("Give the second one its share: no preallocation, or empty the cache before it allocates",
              "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true", "both live on one GPU",
              "slower start of that framework")
NO_GRAPH = ("Keep no graphs: no_grad around evaluation, .item() or .detach() on what is stored", "",
    "the growth is seen in allocated bytes", "none")
AMD = "reference: amdgpu and KFD"
TORCH = "PyTorch c10/cuda/CUDACachingAllocator.cpp"


def entry(id: str, label: Cause, explanation: str, needs: tuple[tuple[str, ...], ...], base: float, experiment: tuple[str,
    str],
          remedy: tuple[str, str, str, str], source: str, speaks_for: Weights | None = None, against: Weights | None = None,
          decisive: tuple[str, ...] = ()) -> Failure:
    return Failure(id, label, explanation, needs, base, experiment, remedy, source, MappingProxyType(dict(speaks_for or {})),
                   MappingProxyType(dict(against or {})), frozenset(decisive))


NOT_OURS = {"mostly_outside": 2, "free_exceeds_total": 3, "free_yet_failed": 1.5, "own_limit": 3}
_SEEN_ALL = {"process_list_complete": 1.0, "device_open_none": 1.0, "kernel_leak": 1.5, "reset_only": 0.75,
    "equal_on_all": 0.75}
MEMORY: tuple[Failure, ...] = (
    # -- capacity
    entry("capacity-sum", "true-capacity", "What is allocated and the request together exceed what the process may have.",
          (("beyond_capacity", "request_exceeds_card"),), 2.5, GROWTH, LESS, TORCH, {"mostly_ours": 0.5, "too_big_words": 0.5,
          "request_exceeds_card": 0.5, "reserved_above_card": 0.5}, {**NOT_OURS, "half_of_ram": 1.5, "half_of_rest": 1.5,
          "ttm_default": 1.5, "total_is_carveout": 1, "grows": 1, "evaluation_only": 1}),
    entry("capacity-ours", "true-capacity", "This process itself holds most of the card.", (("mostly_ours",
          "reserved_above_card"),), 2.25, GROWTH, LESS, TORCH, {"cache_too_small": 0.5, "too_big_words": 0.5}, {**NOT_OURS,
          "much_stranded": 1, "stranded_enough": 0.25, "half_of_ram": 1, "half_of_rest": 1, "ttm_default": 1,
          "total_is_carveout": 1, "grows": 2, "evaluation_only": 2, "fails_late": 0.25, "spread_to_gpu0": 2.5}),
    entry("capacity-work", "true-capacity", "The work is large for the card.", (OOM, ("too_big_words",)), 1.5, GROWTH, LESS,
          TORCH, {}, {**NOT_OURS, "grows": 1, "evaluation_only": 1, "held_by_others_words": 0.5, "host_words": 0.5,
          "plenty_words": 0.75}),
    entry("no-room-for-cache", "true-capacity", "The weights alone fill the share that the server may take.",
          (("no_room_for_cache",),), 2, GROWTH, LESS, "vLLM KV cache check", {"too_big_words": 0.5}, {**NOT_OURS,
          "process_listed": 0.75, "host_words": 0.5}),
    # -- the allocator
    entry("stranded-much", "allocator-fragmentation", "Much is reserved and unallocated after the flush, and the request "
          "would fit.", (("much_stranded",),), 2.5, SNAPSHOT, ("Record the run and ask which setting would have saved it",
          WHATIF, "the failure recurs", "none: the run gets a little slower"), TORCH,
          {"constant_work": 0.5, "fragment_words": 0.5}, {**NOT_OURS, "beyond_capacity": 3, "request_exceeds_card": 3}),
    entry("stranded-some", "allocator-fragmentation", "Enough for the request is stranded in split blocks, another stream or "
          "a private pool.", (("stranded_enough",),), 1.5, SNAPSHOT,
          ("Record the run: it shows whether the stranded blocks are split, pending or of another stream",
          WHATIF, "the failure recurs", "none: the run itself"), TORCH,
          {"constant_work": 0.5, "fragment_words": 0.5}, {**NOT_OURS, "beyond_capacity": 3,
          "request_exceeds_card": 3, "grows": 0.75}),
    entry("steps-in-constant-work", "allocator-fragmentation",
          "Memory steps up although the work stays the same and keeps no graphs.", (("grows",), ("constant_work",)), 1.75,
          SNAPSHOT, ("Forbid splits of large blocks and compare", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:256",
          "no expandable_segments beside it", "some reuse is lost"), TORCH, {"serving_words": 0.5, "fragment_words": 0.5},
          {"graph_words": 1.5, "training_words": 0.75, "host_words": 1}),
    entry("fragments-told", "allocator-fragmentation", "Fragmentation is spoken of and nothing measured it.",
          (("fragment_words",), OOM), 1, SNAPSHOT, ("Record it and measure",
          WHATIF, "the failure recurs", "none"), TORCH,
          {"constant_work": 0.5}, {"cache_too_small": 2, "beyond_capacity": 3, "mostly_outside": 2, "mostly_ours": 0.5}),
    entry("preallocating-neighbour", "allocator-cache-not-returned",
          "One framework takes most of the card when it starts; the other finds nothing.", (("takes_all_by_default",),
          ("another_library",)), 2, LIBRARY, NOT_CACHED, "TensorFlow set_memory_growth; JAX gpu_memory_allocation", {},
          {"kind_oom": 0.25}),
    entry("collective-starved", "allocator-cache-not-returned",
          "The collective library allocates outside torch, and torch's cache does not make room.", (("collective_alloc",
          "kind_collective_alloc"),), 2, LIBRARY, ("Leave a reserve beside torch's cache before communicators are made",
          "torch.cuda.empty_cache() before init_process_group, or set_per_process_memory_fraction",
          "the failing rank's torch holds most of the card", "slower first steps"), "NCCL src/include/alloc.h",
          {"cache_words": 1}, {"two_ranks_one_gpu": 2, "mostly_outside": 1, "held_by_others_words": 0.5}),
    entry("cache-kept", "allocator-cache-not-returned", "A cache is said to keep what another library needs.", (("cache_words",
          ),), 1.5, LIBRARY, NOT_CACHED, TORCH, {"another_library": 0.5}, {"mostly_outside": 1, "much_stranded": 0.5}),
    # -- libraries
    entry("blas-handle", "library-workspace", "The handle or its workspace could not be allocated.", (("blas_handle",
          "kind_blas_alloc"),), 1.5, LIBRARY, ("Free room before the first matrix product, then look at what is free",
          "print(torch.cuda.mem_get_info())", "no fault came before", "none"), "cuBLAS, hipBLAS status codes",
          {"mostly_ours": 0.5, "blas_words": 0.25}, {"device_assert": 2, "memory_fault": 2, "mostly_outside": 1.5,
          "version_clash": 1, "works_on_cpu_differently": 1, "plenty_words": 1}),
    entry("convolution-workspace", "library-workspace", "The convolution search found no algorithm whose workspace fits.",
          (("conv_workspace",),), 2, LIBRARY, ("Use the fast find mode or smaller tiles",
          "MIOPEN_FIND_MODE=2, torch.backends.cudnn.benchmark=False", "it fails in a convolution", "slower convolutions"),
          "MIOpen find modes; cuDNN status codes", {"conv_words": 0.5}, {"device_assert": 1.5, "version_clash": 1,
          "mostly_outside": 1}),
    entry("convolution-told", "library-workspace", "It fails in convolutions at sizes that fit elsewhere.", (("conv_words",),
          ), 1.75, LIBRARY, ("Use the fast find mode or a lower precision there", "MIOPEN_FIND_MODE=2",
          "it fails in a convolution", "slower convolutions"), "MIOpen find modes", {"plenty_words": 0.25},
          {"much_stranded": 1, "grows": 0.5, "mostly_ours": 0.5}),
    entry("collective-workspace", "library-workspace", "The collective library did not get its buffers.", (("collective_alloc",
          ),), 1.25, LIBRARY, ("See what is free before communicators are made", "print(torch.cuda.mem_get_info())", "",
          "none"), "NCCL src/include/alloc.h"),
    # -- holders
    entry("outside-by-sum", "external-holder", "Most of what is in use is not this process's.", (("mostly_outside",),), 2.5,
          HOLDERS, STOP, "HIP free counts compute allocations of all processes (KFD)", {"process_listed": 0.5,
          "held_by_others_words": 0.5, "in_container": 0.5}, {"zombie_holder": 1.5, "survivors": 1.5, "was_killed": 0.5,
          "kernel_leak": 1, "others_alike": 1, "memory_stays": 0.25}, ("other_holder_measured",)),
    entry("outside-unseen", "external-holder", "Memory is in use, no visible process holds it, and not all processes can "
          "be seen from here.", (("unattributed",), ("blind_spot",)), 2.5, HOLDERS, STOP,
          "PID namespaces hide holders; /sys/class/kfd/kfd/proc has host PIDs", {"in_container": 0.5, "mostly_outside": 0.5},
          {"zombie_holder": 1}),
    entry("holder-measured", "external-holder", "Another live process was measured holding most of the card.",
          (("other_holder_measured",),), 2.5, HOLDERS, STOP, AMD, {"mostly_outside": 1, **dict.fromkeys(OOM[:2], 0.25)},
          {"zombie_holder": 2, "mostly_ours": 1.5}, ("other_holder_measured",)),
    entry("full-at-start", "external-holder", "Too little was free before the program took anything.", (("start_up_free",),),
          2, HOLDERS, STOP, "vLLM worker start-up check", {"process_listed": 1, "held_by_others_words": 0.5},
          {"frees_differ": 2.5, "survivors": 0.5, "metric_words": 0.5}),
    entry("no-room-for-context", "external-holder", "Even a context did not fit: the card was full before.",
          (("context_failed",),), 1.5, HOLDERS, STOP, "the first CUDA or HIP call makes a context", {"process_listed": 1,
          "held_by_others_words": 0.75, "some_cards_full": 0.5}, {"survivors": 0.5, "mostly_ours": 2}),
    entry("listed-holder", "external-holder", "A process with much memory is listed beside the failure.", (("process_listed",
          ), OOM), 1.75, HOLDERS, STOP, "nvidia-smi, rocm-smi", {"held_by_others_words": 0.5, "mostly_outside": 0.5},
          {"spread_to_gpu0": 1.5, "mostly_ours": 1.5, "grows": 1, "survivors": 1}),
    entry("in-use-unlisted", "external-holder", "Cards are in use and the list of processes is empty: often it cannot show "
          "them.", (("card_in_use",), ("no_process_listed",)), 1.5, HOLDERS, STOP,
          "nvidia-smi lists no processes of other PID namespaces", {"some_cards_full": 0.75, "held_by_others_words": 0.5,
          "in_container": 0.5}, {**_SEEN_ALL, "survivors": 1, "was_killed": 1, "device_open_lists": 1}),
    entry("some-outside", "external-holder", "A part of the card belongs to others.", (("some_outside",),), 1, HOLDERS, STOP,
          AMD, {"process_listed": 0.5, "held_by_others_words": 0.75}, {"beyond_capacity": 0.25}),
    entry("others-told", "external-holder", "Others are said to use the card.", (("held_by_others_words",),), 1.25, HOLDERS,
          STOP, AMD, {"context_failed": 0.5, "plain_oom": 0.25}, {"mostly_ours": 1, "grows": 0.5, "host_words": 0.25,
          "spread_to_gpu0": 0.5, "survivors": 0.5}),
    entry("full-though-thought-empty", "external-holder", "A card that should be empty was full at the start.", (OOM,
          ("plenty_words",)), 1, HOLDERS, STOP, AMD, {}, {"free_yet_failed": 1, "mostly_ours": 1, "windows": 0.5,
          "grows": 0.5}),
    entry("survivors", "stale-holder", "Processes of an earlier run survived and still have the device open.", (("card_in_use",
          "memory_stays", "no_process_listed", "unattributed", "mostly_outside"), ("survivors", "was_killed",
          "device_open_lists", "zombie_holder")), 2, HOLDERS,
          ("End the survivors: SIGTERM, then wait; a zombie goes with its parent",
          "sudo fuser -v /dev/kfd /dev/dri/renderD* /dev/nvidia*", "they are yours and idle", "their unsaved work"),
          "workers outlive a killed parent; containers without an init reap nobody", {"device_open_lists": 1,
          "survivors": 0.75, "mostly_outside": 0.25, "was_killed": 0.5, "no_process_listed": 0.25, "zombie_holder": 1.5},
          {"process_list_complete": 1.25, "device_open_none": 1.5, "kernel_leak": 2, "reset_only": 1, "grows": 0.75},
          ("zombie_holder",)),
    entry("unattributed-all-seen", "stale-holder", "Memory is in use with no visible owner; a dying process may still hold "
          "it.", (("unattributed",), ("all_processes_seen",)), 1.25, HOLDERS, STOP, AMD),
    entry("unattributed-unseen", "stale-holder", "Memory is in use, not all processes can be seen, and the owner may be a "
          "dead one.", (("unattributed",), ("blind_spot",)), 1.75, HOLDERS, STOP, AMD, {"zombie_holder": 1,
          "survivors": 0.5}),
    # -- the driver
    entry("unattributed-leak", "driver-leak", "Memory is in use, not all processes can be seen, and there may be no owner "
          "at all.", (("unattributed",), ("blind_spot",)), 1.5, HOLDERS, STOP, AMD, {"kernel_leak": 1, "reset_only": 0.5}),
    entry("kernel-counts-leak", "driver-leak", "The kernel found buffers left when their owner was gone.", (("kernel_leak",),
          ), 3, ("The kernel log from the first such line on",
          "sudo dmesg -T | grep -iE 'non-zero when fini|command submission'"), REBOOT, "amdgpu_vm.c, amdgpu_vm_fini",
          {"command_submission": 0.25, "reset_only": 0.5}, {}, ("kernel_leak",)),
    entry("ownerless", "driver-leak", "Memory is in use and a look at all processes finds no owner.", (("card_in_use",
          "memory_stays", "unattributed"), ("no_process_listed", "unattributed", "process_list_complete", "device_open_none"),
          ("process_list_complete", "device_open_none", "equal_on_all", "reset_only", "all_processes_seen")), 2, HOLDERS,
          REBOOT, "dangling dma-buf references in a driver branch leave the same amount on every GPU", {"equal_on_all": 0.75,
          "reset_only": 0.75, "process_list_complete": 0.5, "device_open_none": 0.75}, {"device_open_lists": 2,
          "survivors": 0.5, "zombie_holder": 2, "blind_spot": 2, "was_killed": 0.25, "grows": 0.25}),
    entry("queue-left-by-a-reset", "driver-leak", "A hang or reset of the card left a queue behind whose memory nobody owns.",
          (("gpu_reset",), ("unattributed", "card_in_use"), ("no_process_listed", "unattributed", "process_list_complete",
          "device_open_none")), 1.75, HOLDERS, REBOOT, "ROCm/ROCm#6677: the host may freeze later; a power cycle clears it",
          {"reset_only": 0.5, "all_processes_seen": 0.5, "process_list_complete": 0.5}, {"survivors": 0.5, "zombie_holder": 2,
          "blind_spot": 1.5}),
    entry("submission-flood", "driver-leak", "Command submission fails for lack of memory: GTT or RAM is used up.",
          (("command_submission", "kind_cs_enomem"),), 1.25, ("GTT and RAM at that moment",
          "cat /sys/class/drm/card*/device/mem_info_gtt_used; free -h"), REBOOT, "amdgpu_cs.c", {"reset_only": 0.5}),
    # -- the program
    entry("grows", "user-leak", "Memory grows with the iterations: something keeps references or graphs.", (("grows",),), 2,
          GROWTH, NO_GRAPH, "PyTorch FAQ: memory is not freed", {"training_words": 0.5, "graph_words": 1, "mostly_ours": 0.5,
          "evaluation_only": 0.5, "fails_late": 0.5}, {"constant_work": 1, "serving_words": 0.5, "mostly_outside": 2,
          "much_stranded": 1, "no_process_listed": 1, "survivors": 1, "kernel_leak": 2, "host_killed": 2,
          "command_submission": 2, "spread_to_gpu0": 0.5}),
    entry("evaluation-keeps-graphs", "user-leak", "Evaluation needs less than training and fails: graphs are kept.",
          (("evaluation_only",),), 2, GROWTH, NO_GRAPH, "PyTorch FAQ: memory is not freed", {"training_works": 0.75,
          "graph_words": 1, "training_words": 0.25}, {"mostly_outside": 2, "request_exceeds_card": 0.75, "host_killed": 2,
          "free_exceeds_total": 2, "reserved_above_card": 1, "beyond_capacity": 0.5, "own_limit": 2}),
    entry("fails-late", "user-leak", "It fails only after many iterations: growth, or one larger sample.", (("fails_late",),
          ), 1.25, GROWTH, NO_GRAPH, "PyTorch FAQ", {"training_words": 0.25, "graph_words": 0.5}, {"request_exceeds_card": 1,
          "mostly_outside": 1, "host_killed": 2, "kernel_leak": 2, "command_submission": 1}),
    entry("graphs-told", "user-leak", "Kept graphs or references are spoken of.", (("graph_words",),), 1.25, GROWTH,
          NO_GRAPH, "PyTorch FAQ", {"training_words": 0.25}, {"grows": 0}),
)
