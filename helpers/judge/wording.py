"""The words that error texts, tools and people use for what they saw, as patterns with the name of the signal each gives.

Sources: PyTorch's, NCCL's, ROCr's and the kernel's own message texts, and plain English for the narrative. Data only.
"""

from __future__ import annotations

import re


def _words(name: str, pattern: str, says: str, places: str = "any") -> tuple[str, str, re.Pattern[str], str]:
    return name, places, re.compile(pattern, re.IGNORECASE), says


# Places: error (the error text), tool (tool output and environment), hard (both), told (the narrative), any.
# Bounded repeats only: a hostile text costs linear time.
_GAP = r"[^.\n]{0,80}?"
PATTERNS = (
    # the context is broken
    _words("device_assert", r"device-side assert|Assertion `[^`\n]{1,200}` failed|index out of (?:range|bounds)|"
           r"(?:srcIndex|indexSelect\w*|scatter_gather\w*|t >= 0 && t < n_classes)",
           "A check inside a kernel, or an index, failed"),
    _words("memory_fault", r"illegal memory access|Memory access fault by GPU|unspecified launch failure|misaligned address|"
           r"HSA_STATUS_ERROR_(?:MEMORY_APERTURE|EXCEPTION|ILLEGAL)|hipErrorIllegalAddress|\[gfxhub\d?\] page fault|"
           r"an illegal instruction|Xid[^\n]{0,60}?: (?:13|31|43|45)\b", "A kernel touched memory that is not its own"),
    _words("gpu_reset", r"GPU reset\b(?! *button)|VRAM is lost|MODE[12] reset|ring \S{1,30} timeout|MES failed to respond|"
           r"fallen off the bus|Xid[^\n]{0,60}?: (?:79|48|62|64|95|119|120)\b", "The GPU was reset or stopped answering"),
    _words("works_on_cpu_differently", r"same (?:code|call|model|script)? ?on (?:the )?cpu", "The CPU names another error"),
    # chip and build
    _words("no_kernel_for_chip", r"no kernel image is available|invalid device function|hipErrorNoBinaryForGpu|"
           r"not compatible with the current PyTorch|Unable to find code object|no binary for gpu|"
           r"TensileLibrary\w{0,60}gfx\w{1,8}|Cannot read [^\n]{0,80}TensileLibrary|rocBLAS error[^\n]{0,120}gfx|"
           r"not supported in kfd|unsupported (?:gpu|gfx|arch)|(?:gpu|gfx\w{3,5}|architecture|chip|card)\b[^.\n]{0,40}? "
           r"(?:is|are) (?:not|no longer) supported|amdgpu is not supported|cuda capability [^\n]{0,40}no longer support",
           "The build or the kernel driver has no support for this chip", "hard"),
    _words("no_kernel_for_chip", r"(?:chip|gpu|card|gfx\w{3,5}|architecture)\b[^.\n]{0,60}?(?:not (?:among|in|part of)|"
           r"missing from|no longer (?:in|part)|dropped|unsupported|not supported)|no kernels? for|not built for",
           "The build lacks this chip", "told"),
    _words("version_clash", r"CUDA driver version is insufficient|driver/library version mismatch|undefined symbol|"
           r"version `[^'\n]{1,40}' not found|forward compatibility was attempted|cannot open shared object file|"
           r"no version information available|compiled with [^\n]{0,60}but (?:found|running)|"
           r"symbol lookup error|is too old \(found version|ABI mismatch|built (?:for|with|against) (?:CUDA|ROCm|"
           r"HIP)[^.\n]{0,60}?(?:but|while)|different (?:CUDA|ROCm|HIP) versions|PyTorch was compiled with|not compiled "
           r"with (?:CUDA|ROCm|HIP|GPU)|\btorch\b[^\n]{0,20}\d\+cpu|hipErrorInvalidImage|"
           r"libamdhip64\.so\.\d[^\n]{0,60}(?:not found|no such)", "Two parts of the stack are of versions that do not fit"),
    _words("worked_before_update", r"(?:after|since|until|from)\b[^.\n]{0,40}?(?:updat|upgrad|downgrad|new(?:er)? (?:release|"
           r"version|build)|switch(?:ing|ed) to|release \d|version \d)|(?:worked|fine|works|good|"
           r"ok)\b[^.\n]{0,30}?(?:with|on|in|under|was|is) (?:the )?(?:old|previous|earlier|\d+\.\d+)|\(\d+\.\d+[\w.]* "
           r"(?:was|is|works) (?:fine|good|ok)|no longer (?:starts?|works?|fits?|runs?)", "It changed with a version"),
    _words("gfx_override", r"HSA_OVERRIDE_GFX_VERSION(?:_\d+)?\b", "The chip is passed off as another one"),
    # access
    _words("open_refused", r"(?:/dev/kfd|/dev/dri\S{0,20}|/dev/nvidia\S{0,12}|renderD\d+|render "
           r"node)[^\n]{0,60}?(?:permission denied|operation not permitted|EACCES|EPERM|not permitted)|(?:permission "
           r"denied|operation not permitted)[^\n]{0,60}?(?:/dev/kfd|"
           r"/dev/dri|/dev/nvidia|renderD)|(?:user|you) (?:is|are) not (?:a )?(?:member|part|in)[^\n]{0,30}?(?:render|video)|"
           r"missing the following required groups|Failed to initialize NVML: Insufficient Permissions|"
           r"avc: +denied[^\n]{0,200}?(?:kfd|dri|nvidia|hsa_device)", "The device node may not be opened"),
    _words("no_device_found", r"No (?:CUDA|HIP|ROCm) GPUs? (?:are|is) available|hipErrorNoDevice|no (?:ROCm|CUDA|HIP)-capable "
           r"device|no (?:usable )?GPU (?:was )?(?:found|detected|visible)|enumerates? (?:zero|no|0) (?:devices?|gpus?)|"
           r"device_count\(?\)?[^\n]{0,12}?\b0\b|is_available\(?\)?[^\n]{0,12}?False|found 0 (?:ROCm|CUDA) devices",
           "The runtime finds no GPU"),
    _words("node_missing", r"(?:/dev/kfd|/dev/dri\S{0,12}|/dev/nvidia\S{0,12})[^\n]{0,60}?(?:no such file|not found|does not "
           r"exist|missing|not mounted|absent)|Unable to open /dev/kfd[^\n]{0,30}?No such", "The device node is not there"),
    _words("access_words", r"(?:render|video) group|group[- ]add|usermod|udev rule|rootless|selinux|keep-groups|--privileged|"
           r"not in (?:the )?group|permissions?\b", "Groups or permissions are spoken of", "told"),
    # settings
    _words("unknown_option", r"unknown parameter '[^'\n]{1,60}' ignored|Unrecognized (?:key|CachingAllocator option|option)|"
           r"Unrecognized key '[^'\n]{1,60}'|invalid value for [^\n]{0,60}ALLOC_CONF|max_split_size_mb too small|"
           r"Error parsing[^\n]{0,40}Alloc|amdgpu\.gtt_size=", "The program or the kernel does not know a setting", "hard"),
    _words("setting_not_read", r"misspel|typo|(?:set(?:ting)?|variable|option|flag|parameter)s?\b[^.\n]{0,80}?(?:no effect|"
           r"ignored|not (?:read|honou?red|picked up|applied|used)|too late|after (?:import|the first)|never (?:read|"
           r"reached))|wrong (?:unit|variable|name)|(?:has|have|had|with) no effect", "A setting is said not to act"),
    _words("wrong_index", r"device >= 0 && device < num_gpus|invalid device ordinal|hipErrorInvalidDevice|device index must "
           r"be", "A device number is asked for that this process does not have"),
    _words("fraction_words", r"\d[\d.]* [KMG]iB allowed|set_per_process_memory_fraction|per_process_memory_fraction",
           "torch works under a limit that was set for the process", "hard"),
    _words("expandable_refused", r"expandable_segments? not supported|expandable_segments?[^\n]{0,60}(?:is|are) (?:not "
           r"supported|ignored)", "This build refuses expandable segments", "hard"),
    _words("expandable_breaks", r"(?:expandable[_ ]segments?)[^.\n]{0,120}?(?:hang|crash|assert|corrupt|zeroed|wrong|invalid|"
           r"segfault|abort|fail)|(?:hang|crash|assert|corrupt|segfault|abort|fail)[^.\n]{0,100}?"
           r"(?:with|when|under|only|if|uses?) [^.\n]{0,40}?expandable[_ ]segments?|hsaKmtMemoryVaMap|hipMemAddressReserve|"
           r"ExpandableSegment[^\n]{0,60}|cuMem(?:Create|Map|SetAccess|AddressReserve)[^\n]{0,40}",
           "Something breaks with expandable segments on"),
    # the host
    _words("host_killed", r"Out of memory: Kill|Memory cgroup out of memory|oom-kill:|oom_kill|OOMKilled|killed by signal: "
           r"Killed|exit(?:ed with)? (?:code|status) (?:137|-9)\b|exitcode ?[:=]? ?-9|died with <Signals\.SIGKILL|signal "
           r"9\b|SIGKILL \(|oom-killer|earlyoom|systemd-oomd",
           "The kernel killed a process because RAM or its control group was full", "hard"),
    _words("host_alloc_failed", r"DefaultCPUAllocator|can't allocate memory|\bMemoryError\b|Unable to allocate [\d.]+ [KMG]iB "
           r"for an array|OSError: \[Errno (?:12|28)\]|Cannot allocate memory|bus error[^\n]{0,60}|insufficient shared "
           r"memory|shm|paging file is too small|cudaHostAlloc|pinned memory|hipHostMalloc|std::bad_alloc|exceeds "
           r"resident system memory limit", "An allocation of host memory failed", "hard"),
    _words("host_words", r"(?:host|system|main|CPU) (?:RAM|memory)[^.\n]{0,60}?(?:full|exhaust|runs? out|ran out|fills?|used "
           r"up|limit)|\bswap(?:s|ping|ped)?\b|\bRAM\b[^.\n]{0,40}?(?:fills?|full|exhaust|runs? out|ran out|climbs|grows)|"
           r"cgroup|container'?s? (?:memory )?limit|loader worker|shared memory|/dev/shm|killed",
           "RAM, swap or a container's limit is spoken of", "told"),
    # libraries
    _words("blas_handle", r"(?:CU|HIP|ROC)BLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|(?:cublas|hipblas|"
           r"rocblas)(?:Lt)?Create|rocblas_status_memory_error|CUSOLVER_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR)|"
           r"CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT)|(?:CUFFT|HIPFFT)_ALLOC_FAILED",
           "A mathematics library did not get its handle or workspace", "hard"),
    _words("conv_workspace", r"CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|INTERNAL_ERROR)|miopenStatus(?:AllocFailed|"
           r"InternalError|UnknownError)|MIOpen(?:\(HIP\))?:? ?(?:Error|Warning)[^\n]{0,200}?(?:workspace|alloc)|Unable "
           r"to find a valid cuDNN|No suitable algorithm|"
           r"workspace (?:size|allocation|memory)[^\n]{0,60}(?:fail|too|exceed|insufficient)|GemmFwdRest|required workspace",
           "A convolution library did not get its workspace", "hard"),
    _words("conv_words", r"\bconv(?:olution)?s?\b|cudnn|miopen|find[- ]mode|workspaces?\b|\bVAE\b|autotun",
           "Convolutions or workspaces are spoken of", "told"),
    _words("blas_words", r"cublas|hipblas|rocblas|BLAS handle|workspace", "A mathematics library is spoken of", "told"),
    _words("collective_alloc", r"(?:NCCL|RCCL)\b[^\n]{0,80}?(?:calloc|out of memory|alloc)|ncclUnhandledCudaError|Cuda "
           r"failure '?(?:2 '?)?out of memory|ncclCommInitRank[^\n]{0,80}?memory|ncclSystemError[^\n]{0,80}?memory",
           "A collective library's own allocation failed", "hard"),
    _words("two_ranks_one_gpu", r"Duplicate GPU detected", "Two ranks use the same GPU", "hard"),
    _words("takes_all_by_default", r"\btensorflow\b|\btf\.\w+|\bkeras\b|\bJAX\b|\bXLA\b|XLA_PYTHON_CLIENT|preallocat",
           "A framework that takes most of the card when it starts is there"),
    _words("another_library", r"\b(?:py)?torch\b|\bonnx\w*|\bcupy\b|\bpaddle\w*|\bopencv\b|\bRAPIDS\b|\bcudf\b|\bnccl\b|"
           r"\bTensorRT\b|\bvLLM\b|second (?:framework|library)|other (?:framework|library)",
           "A second library that needs device memory is there"),
    _words("cache_words", r"(?:cach(?:e|ed|ing)|reserved?)[^.\n]{0,80}?(?:starv|not (?:returned|released|given back)|keeps?|"
           r"holds?|never (?:returned|released))|empty_cache[^.\n]{0,60}?(?:helps?|works?|cures?|frees?|makes?)|(?:torch|"
           r"pytorch|framework)[^.\n]{0,30}?(?:had |has )?(?:reserved|cached|holds) (?:almost |nearly )?"
           r"(?:everything|all|most)|(?:re-?creat|rebuil|second)[^.\n]{0,40}?(?:communicator|process group|engine|context)|"
           r"(?:inference|rollout|sampling|serving) engine[^.\n]{0,60}?(?:train|same (?:gpu|card|process))",
           "A cache is said to keep what others need", "told"),
    # who holds it
    _words("held_by_others_words", r"(?:in use|used|held|occupied|taken|filled|full)\b[^.\n]{0,20}? (?:by|of) (?:others?|"
           r"other (?:people|users?|jobs?|process)\w*|another|someone|somebody|a (?:second|different)|(?:the )?(?:desktop|"
           r"browser|compositor|display|window|game|xorg|notebook|kernel))|\bother (?:people|users?|jobs|programs|"
           r"applications)\b|someone else|another (?:process|job|user|program|notebook|container|service|model|instance)|"
           r"shared (?:machine|server|node|box|cluster|workstation)|(?:desktop|browser|compositor)[^.\n]{0,30}?(?:holds?|"
           r"takes?|uses?)|already (?:full|in use|occupied)", "Somebody else's use is spoken of"),
    _words("no_process_listed", r"no running processes|(?:empty|no|without)\b[^.\n]{0,20}? process(?:es)?(?: list)?\b|process "
           r"list[^.\n]{0,30}?empty|\(empty\)|(?:lists?|shows?|finds?) (?:no|none|nothing|zero)\b[^.\n]{0,20}?(?:process|"
           r"it|PID)?|no (?:compute |gpu |visible )?process|process(?:es)?[^.\n]{0,10}?: ?none|nothing (?:uses|is using|"
           r"holds|runs|is running)|KFD processes? .{0,20}running: 0|no KFD PIDs",
           "No process is shown that would hold the memory"),
    _words("memory_stays", r"(?:memory|vram|bar1|gib|gb|mib|mb|usage|card|gpu)\b[^.\n]{0,60}?(?:stays?|remains?|still (?:in "
           r"use|used|full|occupied|held|allocated|there)|not (?:freed|released|returned|given back|reclaimed)|never "
           r"(?:freed|released|returned|reclaimed)|cannot be reclaimed|stranded)|"
           r"(?:does|do|did|is|are) not (?:free|release|return|come back)[^.\n]{0,30}?(?:memory|vram|gpu)?",
           "Memory is said to stay in use"),
    _words("was_killed", r"\bkill(?:s|ed|ing)?\b(?! by signal)|ctrl-?[cz]\b|SIGKILL|SIGTERM|SIGSTOP|crash(?:ed|es)?|"
           r"interrupt(?:ed|ion)|abort(?:ed|s)?\b|terminat(?:ed|ion)|restart(?:ed|ing)? the kernel|disconnect",
           "The program was ended or died", "told"),
    _words("survivors", r"surviv|zombie|defunct|orphan|<defunct>|\bState:\s*Z|\bstat\w*\b[^\n]{0,5}\bZl?\b|"
           r"child(?:ren)?\b[^.\n]{0,40}?(?:still|remain|left|alive)|(?:worker|process|kernel|script|job|server|notebook|"
           r"python)(?:s|es)?\b[^.\n]{0,40}?(?:still (?:alive|running|there|open)|left (?:over|behind)|remain)|leftover|stale|"
           r"nohup|old (?:process|container|worker|run)|previous (?:process|run|container|session|job)|suspended|stopped "
           r"job", "Processes of an earlier run are still there"),
    _words("device_open_lists", r"(?:fuser|lsof)\b[^\n]{0,120}?(?:list|show|find|held|hold|names?|python|\b\d{2,7}\b)",
           "fuser or lsof names who has the device open", "tool"),
    _words("device_open_none", r"(?:fuser|lsof)\b[^\n]{0,80}?(?:\bno(?:thing|ne| process| pid| output)?\b|empty)",
           "fuser or lsof names nobody"),
    _words("process_list_complete", r"\bps\b[^\n]{0,10}?:|only (?:monitor\w*|daemons?|system)\b|(?:rdcd|gpuagent|dcgm|"
           r"nvidia-persistenced)|on the host[^.\n]{0,60}?"
           r"(?:no|nothing)|as root[^.\n]{0,60}?(?:no|nothing)|(?:idle|drained) node",
           "The processes of the whole machine were looked at"),
    _words("reset_only", r"(?:only|needs?|until|requires?|short of|except|after)\b[^.\n]{0,40}?(?:re-?boot|power[- ]cycle|"
           r"reset|reload\w*|driver reload)|(?:reboot|power[- ]cycle|driver reload|rmmod|modprobe "
           r"-r)\w*[^.\n]{0,40}?(?:clears|frees|only|needed|helps|required|releases|cures)|"
           r"even (?:after|by) (?:re)?(?:initiali|load|unload)", "Only a reset, reload or reboot is said to free it"),
    _words("kernel_leak", r"is non-zero when fini|memory manager not clean|refcount[^\n]{0,40}leak|BO[^\n]{0,20}leak|"
           r"\bleaked\b[^\n]{0,40}(?:buffer|BO|vram)", "The kernel itself counts buffers that nobody freed", "hard"),
    _words("command_submission", r"Not enough memory for command submission", "The kernel could not place a command's buffers",
           "hard"),
    _words("equal_on_all", r"(?:every|all|each)\b[^.\n]{0,30}?(?:GPU|card|device)s?\b[^.\n]{0,60}?(?:same|equal|identical)|"
           r"same (?:amount|number|figure)[^.\n]{0,40}?(?:every|all|each)", "The same amount is in use on every GPU"),
    _words("start_up_free", r"Free memory on device[^\n]{0,60}on startup is less than desired|"
           r"less than desired GPU memory utilization", "A server found too little free memory before it took any", "hard"),
    _words("context_failed", r"(?:out of memory|hipErrorOutOfMemory|cudaErrorMemoryAllocation)[^\n]{0,120}?(?:emptyCache|"
           r"empty_cache|_lazy_init|cuda_?init|cudaGetDeviceCount|set_?device|cuInit|cuCtxCreate|hipInit|"
           r"cuDevicePrimaryCtxRetain|synchronize|mem_get_info)|(?:emptyCache|empty_cache|_lazy_init|"
           r"cuCtxCreate|cuDevicePrimaryCtxRetain|set_device)[^\n]{0,160}?out of memory|(?:fails?|out of "
           r"memory)\b[^.\n]{0,60}?(?:at model creation|before anything|at the (?:very )?first (?:call|allocation|tensor)|"
           r"when (?:the )?context)", "Not even a context could be made: the device was full before this program took "
           "anything"),
    _words("spread_to_gpu0", r"(?:each|every|all|also|both|other)\b(?=[^.\n]{0,90}?(?:process|rank|replica|worker|hold|occup|"
           r"\d ?[MG]))[^.\n]{0,90}?\bon (?:GPU|cuda:|device|card|rank) ?(?:#|no\.? ?)?0\b|"
           r"(?:GPU|cuda:|device) ?0\b[^.\n]{0,60}?(?:more than|fuller|first to|twice|fills? (?:up )?first|each (?:rank|"
           r"process)|(?:by|from) (?:all|every|each|the other))|\bon (?:the )?(?:first|same|one|default) (?:GPU|device|"
           r"card)\b[^.\n]{0,60}?(?:rank|process|replica|worker|all|every|each)|"
           r"(?:rank|replica|process|worker)(?:s|es)?\b[^.\n]{0,60}?(?:on|to|land on|share|use) (?:the )?(?:first|same|one|"
           r"default) (?:GPU|device|card)|(?:the )?first (?:GPU|card|device)\b[^.\n]{0,40}?(?:fills?|is full|full|runs? "
           r"out|holds? more|uses? more)|only (?:the )?(?:first|one|GPU ?0)[^.\n]{0,40}?(?:full|used|fills)|unbalanced|"
           r"imbalance|uneven", "Several processes or replicas sit on one GPU"),
    _words("parallel_words", r"\bDDP\b|DataParallel|DistributedDataParallel|\branks?\b|local_rank|torchrun|replicas?\b|"
           r"multi-?gpu|accelerate launch|\d ?x ?(?:gpu|card)s?|data[- ]parallel|tensor[- ]parallel",
           "More than one rank or GPU is at work"),
    # growth
    _words("grows", r"\b(?:grow(?:s|ing|th)?|climb(?:s|ing)?|creep(?:s|ing)?|accumulat\w+|keeps? (?:increasing|rising|growing|"
           r"climbing)|increas(?:es|ing)(?! (?:the |its )?(?:batch|resolution|size|context|number|length))|rises|"
           r"rising|explod\w+|builds? up|leak(?:s|ing)?|piles? up|never (?:goes down|falls|shrinks)|more (?:memory )?(?:every|"
           r"each))\b", "Memory grows while it runs"),
    _words("fails_late", r"after (?:about |some |a few |several |around |~ ?)?(?:\d+ ?k?|hundreds? of|thousands? of|many|a "
           r"few|some) (?:iteration|step|epoch|batch|sample|request|image|generation|run|hour)",
           "It fails only after many iterations"),
    _words("graph_words", r"no_grad|inference_mode|retain_graph|\.item\(\)|\bdetach\b|volatile|autograd|loss ?\+=|"
           r"(?:computation(?:al)?|autograd|whole|keeps?|kept|retain\w*|free\w*) graphs?\b|graphs? (?:\w+ )?(?:kept|retained|"
           r"alive|stored)|backward|\bgradients? (?:are )?kept|(?:losses|tensors|outputs|history|metrics|results) (?:\w+ "
           r")?(?:kept|stored|appended|collected|saved) ?(?:in a list)?|\.append\(|references?",
           "Graphs or kept references are spoken of"),
    _words("evaluation_only", r"(?:validat|evaluat|\btest(?:ing)?\b|\bval\b|inference|predict)\w*[^.\n]{0,60}?(?:fails?|out "
           r"of memory|OOM|explod|runs? out|dies|crash|not|breaks)|(?:fails?|explod\w+|out of memory|OOM|dies|runs? out|"
           r"grows|crash\w*)\b[^.\n]{0,60}?(?:in|during|of|at|when|only in)[^.\n]{0,30}?(?:validat|evaluat|\btest|eval\b)|"
           r"\(\)? ?in (?:validate|evaluate|eval|test)\(\)", "It fails in evaluation, which needs less than training"),
    _words("training_works", r"training (?:works|runs|fits|is fine|succeeds|itself|goes)|train(?:s|ed)? (?:fine|well)",
           "Training itself fits", "told"),
    _words("training_words", r"\btrain(?:s|ing|ed|er)?\b|epochs?\b|\bloss\b|fine-?tun|optimi[sz]er|backward",
           "It is a training run"),
    _words("serving_words", r"\b(?:inference|serving|basecall\w*|prediction|request|server|generation|decod(?:e|ing)|"
           r"translation|transcri\w+)\b", "It is inference or serving, where no graphs are kept"),
    _words("constant_work", r"(?:constant|fixed|same|identical|unchanged) (?:workload|batch|input|size|shape|model|sequence|"
           r"work|load)|over and over|in steps|stepwise|step by step|var(?:ying|iable|ies)[^.\n]{0,30}?(?:length|shape|"
           r"size|sequence|input)|(?:different|changing|dynamic) (?:length|shape|size|sequence|input|resolution)\w*",
           "Sizes recur or vary while memory steps up: what a splitting allocator does"),
    _words("fragment_words", r"fragment\w*|(?:large|big|enough|plenty)[^.\n]{0,30}?(?:reserved|cached|unallocated)|max_split|"
           r"garbage_collection_threshold|(?:reserved|cached)[^.\n]{0,60}?(?:far |well |much )?(?:above|exceed|larger|"
           r"higher|more than|greater)[^.\n]{0,20}?allocated", "Reserved memory above allocated, or fragments, are spoken of"),
    _words("loads_weights", r"(?:weight|checkpoint|model)s?\b[^.\n]{0,30}?(?:load|post-?process|convert|shard)|\bload(?:s|"
           r"ing)?\b[^.\n]{0,30}?(?:weight|checkpoint|model)", "It fails while weights are loaded"),
    # capacity
    _words("too_big_words", r"(?:needs?|requires?|takes?|wants?|asks? for)\b[^.\n]{0,40}?\d+ ?Gi?B|\b(?:[2-9]|1[0-2]|16) "
           r"?Gi?B (?:card|gpu|laptop|of vram)|small card|batch[- ]?size|batch of|"
           r"(?:higher|larger|bigger|full|high|4k|1024|2048)[- ]?(?:resolution|image|model|context|sequence|batch)|"
           r"over-?large|too (?:large|big|much|long)|does not fit|doesn't fit|without (?:gradient )?checkpointing|default "
           r"(?:param|setting|config)\w*|how much (?:gpu )?memory|long (?:sequence|context|prompt|video)|"
           r"\d+ ?B (?:model|param)|one (?:huge|single|large)", "The size of the work is spoken of", "told"),
    _words("plenty_words", r"(?:although|while|with|despite|but|even though|yet|plenty|most|much)\b[^.\n]{0,50}?(?:free|empty|"
           r"available|unused|idle)|(?:thought|believed|supposed|known) to be (?:empty|free|idle)|"
           r"memory is plentiful|(?:nearly|almost|mostly|otherwise) (?:empty|free|idle)|idle (?:card|gpu)|tiny|small (?:matri|"
           r"tensor|model)", "Memory is said to be free or the work small"),
    # numbers that do not fit
    _words("free_exceeds_total", r"\bfree\b[^.\n]{0,60}?(?:larger|greater|higher|more|bigger|above|exceeds?|\w+ times)(?: "
           r"than)? (?:the |its |reported )?total|free ?> ?total", "Free is said to be above the total"),
    _words("activity_metric", r"showmemuse|GPU memory use \(%\)|mem_busy_percent|memory activity|utilization\.memory|memory "
           r"controller|Memory Activity", "The figure is the activity of the memory controller, not occupancy"),
    _words("not_measured", r"memory[^\n]{0,40}?(?:\[?N/A\]?|\[?Not Supported\]?)",
           "The tool does not measure the memory of this device", "tool"),
    _words("no_room_for_cache", r"No available memory for the cache blocks|larger than the maximum number of tokens that can "
           r"be stored in KV cache|KV cache is needed, which is larger than|model requires more (?:system )?memory",
           "The weights leave no room for the working cache", "hard"),
    _words("metric_words", r"(?:report|show|display|print|detect|claim|count|say|list|offer|read)(?:s|ed|"
           r"ing)?\b[^.\n]{0,80}?(?:wrong|incorrect|only 4|negative|impossible|N/A|0 (?:percent|%|MB|MiB|bytes)|zero|"
           r"as (?:free|available)|more than (?:there is|the|it has)|larger than|too (?:much|little|high|low))|never changes|"
           r"(?:figure|number|value|total|reading)s? (?:is|are|differ|disagree|do not|never|contradict|"
           r"does not|stays)|(?:does|do) not (?:count|subtract|include|see)|\boffers? \d+|not (?:counted|subtracted|included)|"
           r"exporter|dashboard|monitor(?:ing)? tool|tools? (?:disagree|differ|add)|sums?\b|adds? (?:up|both)",
           "A displayed figure is said to be wrong"),
    _words("carveout_words", r"carve-?out|UMA (?:frame ?buffer|size)|frame ?buffer size|BIOS|dedicated (?:vram|memory|gpu "
           r"memory)|\bVGM\b|strict VRAM|UMA_SPECIFIED|"
           r"(?:only|just)\b[^.\n]{0,25}?(?:512 ?M|[1248] ?Gi?B|16 ?Gi?B|256 ?M)", "The firmware's carve-out is spoken of"),
    _words("shared_memory_words", r"shared (?:gpu )?memory|unified memory|whole (?:shared |system )?memory|\bGTT\b|all "
           r"(?:available )?shared|\bUMA\b", "The memory shared with the CPU is spoken of"),
    _words("ttm_words", r"ttm(?:\.|_|\b)|amdttm|pages_limit|amd-ttm|gttsize|\bGTT\b|kernel parameter",
           "TTM or GTT settings are spoken of"),
    _words("two_ttm_modules", r"\bamd_?ttm\b(?!\.)",
        "The out-of-tree module amdttm is there: settings for ttm do not reach it", "hard"),
    _words("limit_not_taken", r"(?:did|does|do|has|have|is|are) not (?:chang|tak|appl|updat|grow|rais|reach)\w*|unchanged|"
           r"still (?:shows?|reports?|sees|at|half|the)|no change|remains? (?:at|the)|without effect|"
           r"although[^.\n]{0,40}?(?:\d+M|GTT|kernel|log)|half (?:of )?(?:the |its |of )?(?:RAM|memory)|despite",
           "A raised limit is said not to have arrived"),
    _words("other_build_differs", r"(?:good|bad|old(?:er)?|new(?:er)?|nightly|stable|other|previous|working|"
           r"broken)[- ](?:build|version|release|wheel|nightly|rocm|hip)|\(nightly\)|build \d|same (?:kernel|host|box|"
           r"machine)|kernel[^.\n]{0,60}?(?:identical|unchanged|same)|regress|between the two builds",
           "Another build on the same kernel shows another total"),
    _words("not_bytes", r"address space|virtual (?:address|space|memory)|too many open files|file descriptor|ulimit|RLIMIT|"
           r"max_map_count|handles? (?:exhaust|limit)|vm\.max_map", "Something other than bytes may have run out"),
    _words("windows", r"\bWindows (?:1[01]|Server)|\bWDDM\b|\bADLX\b|driver 3[12]\.0", "The box runs Windows"),
    _words("hang_words", r"\bhangs?\b|\bhung\b|deadlock|freez|stuck (?:at|in) (?:init|all_?reduce|barrier)|never returns",
           "It hangs"),
    _words("peer_words", r"peer[- ]to[- ]peer|\bP2P\b|peer access|IOMMU|\bACS\b|PCIe atomics|PCI rejects atomics|atomic ops "
           r"is not supported|NCCL_P2P_DISABLE|hipErrorPeerAccess\w*|peer access is not supported",
           "Peer access, the IOMMU or PCIe atomics are spoken of"),
    _words("integrated_beside", r"(?:iGPU|integrated (?:gpu|graphics))[^.\n]{0,80}?(?:also|listed|second|beside|device (?:0|"
           r"1)|picked|chosen|first|as well)|(?:device 1|cuda:1|GPU\[1\])[^\n]{0,60}?(?:Raphael|Granite Ridge|gfx1036|"
           r"gfx1035|Radeon Graphics)", "An integrated GPU is in the device list"),
)
