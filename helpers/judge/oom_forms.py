"""The wordings of GPU memory failures other than torch's own, as one table, and what a squeezed text holds of all of them.

Sources of the wordings: c10/core/impl/alloc_cpu.cpp, NCCL and RCCL alloc.h, XLA and TensorFlow bfc_allocator.cc, llama.cpp
ggml-cuda.cu and ggml-alloc.c, ollama llm/server.go, amdgpu_cs.c, amdgpu_amdkfd_gpuvm.c, mm/oom_kill.c, CUDA and HIP errors.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any

from helpers.judge.oom_fields import SIZE, UNMEASURED_BYTES, Found, Quantity, backend_of, read_size, torch_messages

_ELEMENT_BYTES = {"float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "float64": 8, "int32": 4,
                  "int64": 8, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16}


@dataclass(frozen=True)
class Form:
    """One wording: what it means, strings of which one stands in any text that has it, and the pattern. Groups name fields."""

    kind: str
    framework: str
    anchors: tuple[str, ...]
    pattern: re.Pattern[str]
    hint: str = ""


def _form(kind: str, framework: str, anchors: str, pattern: str, hint: str = "") -> Form:
    return Form(kind, framework, tuple(anchors.split("|")), re.compile(pattern.replace("SIZE", SIZE)), hint)


# The more telling wording stands first: what it takes, those below leave alone.
FORMS = (
    _form("other", "torch", "nvml_success", r"nvml_success==rinternalassertfailed", "report_failed"),
    _form("other", "", "free memory on device", r"freememoryondevice(?:cuda:(?P<device>[0-9]{1,3}))?\((?P<free>[0-9.]{1,12})/"
          r"(?P<capacity>[0-9.]{1,12}gib)\)onstartupislessthandesiredgpumemoryutilization\([0-9.]{1,8},(?P<requested>SIZE)\)",
          "startup_check"),
    _form("ollama_oom", "ollama", "requires more system memory|insufficient vram|vram usage didn't|llama runner process|"
          "requires more memory than",
          r"modelrequiresmore(?:system)?memory\((?P<requested>SIZE)\)thanis(?:currently)?available\("
          r"(?P<free>SIZE)\)|requiresmorememorythan|insufficientvram|gpuvramusagedidn'trecover"
          r"|llamarunnerprocess(?:hasterminated|nolongerrunning)(?:.{0,60}?outofmemory)?"),
    _form("llama_oom", "llama.cpp", "malloc failed|ggml|kv cache|compute buffers|buffer of size|unable to allocate",
          r"allocating(?P<requested>SIZE)ondevice(?P<device>[0-9]{1,3}):(?:cuda|hip)mallocfailed(?::outofmemory)?"
          r"|failedtoallocate(?:cuda|rocm|hip|vulkan"
          r"|sycl)(?P<device_2>[0-9]{0,3})(?:_host)?bufferofsize(?P<requested_2>[0-9]{1,20})"
          r"|ggml_vulkan:.{0,40}?memoryallocationofsize(?P<requested_3>[0-9]{1,20})failed"
          r"|(?:cuda|rocm)error:outofmemory.{0,40}?currentdevice:(?P<device_3>[0-9]{1,3}).{0,160}?ggml"
          r"|(?:cuda|rocm|hip)error2at.{0,120}?ggml.{0,40}?:outofmemory"
          r"|failedtoallocate(?:computebuffers|bufferforkvcache|computepp)|unabletoallocate(?:cuda|rocm|hip"
          r"|vulkan)[0-9]{0,3}buffer"),
    _form("tf_oom", "tensorflow", "oom when allocating|ran out of memory|from device|resourceexhaustederror",
          r"oomwhenallocatingtensorwithshape\[(?P<shape>[0-9,]{0,60})\](?:andtype(?P<dtype>[a-z0-9]{1,12}?)on)?"
          r"(?:.{0,80}?device:gpu:(?P<device>[0-9]{1,3}))?"
          r"|allocator\(gpu_(?P<device_2>[0-9]{1,3})_bfc\)ranoutofmemorytryingtoallocate"
          r"(?P<requested>SIZE)|failedtoalloc(?:ate)?[0-9.]{1,12}[kmgt]?i?b?\((?P<requested_2>[0-9]{1,20})bytes\)fromdevice(?::cuda_error_out_of_memory(?::outofmemory)?)?|resourceexhaustederror"),
    _form("jax_oom", "jax", "resource_exhausted|failed to allocate request",
          r"resource_exhausted:.{0,60}?outofmemory(?:whiletryingtoallocate|allocating|tryingtoallocate)(?P<requested>SIZE)"
          r"|(?:resource_exhausted:)?failedtoallocaterequestfor(?P<requested_2>SIZE)(?:\([0-9]{1,20}b\))?"
          r"(?:ondeviceordinal(?P<device>[0-9]{1,3}))?|resource_exhausted:?"),
    _form("oom", "", "cannot allocate|out of memory allocating",
          r"outofmemoryerrorongpu(?P<device>[0-9]{1,3})\.cannotallocate(?P<requested>SIZE)memoryongpu[0-9]{1,3},(?P<allocated>SIZE)"
          r"memoryhasbeenallocatedandavailablememoryisonly(?P<free>SIZE)|(?<!resource_exhausted:)outofmemoryallocating"
          r"(?P<requested_2>SIZE)\(allocatedsofar:(?P<allocated_2>SIZE)(?:,limitsetto:(?P<allowed>SIZE))?\)"),
    _form("collective_alloc", "nccl", "failed to cuda|failed to hip|cuda failure|hip failure|nccl failed|shared memory segment|"
          "failed to malloc|failed to calloc|nccl error", r"failedto(?:cuda|hip)?(?:host)?[cm]alloc(?:async"
                                                          r"|host)?(?P<requested>"
          r"[0-9]{1,20}(?:bytes)?)|(?:cuda|hip)failure[0-9]{0,4}'outofmemory'|nccl.{0,30}?failedto[cm]alloc"),
    _form("collective_alloc", "nccl", "shared memory segment", r"creatingsharedmemorysegment(?:.{0,80}?\(size"
          r"(?P<requested>[0-9]{1,20})\))?", "shared_memory"),
    _form("blas_alloc", "torch", "status_alloc|status_not_init|status_memory_error|statusallocfailed|fft_alloc_failed|"
          "allocation_failed", r"(?:cublas|hipblas(?:lt)?|cudnn|miopen|cusolver|hipsolver|cusparse"
                               r"|hipsparse)_?status_?(?:alloc_?"
          r"failed|internal_error_(?:host|device)_allocation_failed)|rocblas_status_memory_error|(?:cufft|hipfft)_alloc_failed"
          r"|(?:cublas|hipblas(?:lt)?)_status_not_initialized(?=.{0,40}?create)|cudnn_status_not_initialized"),
    _form("blas_alloc", "torch", "isenoughworkspace", r"isenoughworkspace.{0,200}?requir(?:ed|es):?(?P<requested>[0-9]{1,20})",
          "workspace_warning"),
    _form("device_index_assert", "torch", "num_gpus|device_count|invalid device ordinal|errorinvaliddevice",
          r"device(?:>|&gt;)=0(?:&|&amp;){2}device(?:<|&lt;)(?:num_gpus|device_count)|(?:(?:cuda"
          r"|hip)error:)?invaliddeviceordinal|(?:hip|cuda)errorinvaliddevice(?![a-z])"),
    _form("expandable_unsupported", "torch", "expandable_segments", "expandable_segments?(?:is)?notsupportedonthisplatform",
          "warning"),
    _form("device_assert", "torch", "device-side assert|errorassert|assertion", r"device-sideassert(?:ion)?(?:triggered"
                                                                                r"|failed)?"
          r"|(?:cuda|hip)errorassert|block:\[[0-9,]{1,30}\],thread:\[[0-9,]{1,30}\]assertion.{0,200}?failed"),
    _form("illegal_access", "", "illegal memory access|memory access fault|errorillegal|launch failure|errorlaunchfailure|"
          "memory_fault|memory_aperture", r"(?:(?:cuda|hip)error:)?anillegalmemoryaccess"
                                          r"|memoryaccessfaultbygpunode(?:-?[0-9]{1,3})?"
          r"|(?:hip|cuda)errorillegaladdress|(?:hip|cuda)errorlaunchfailure|(?:(?:cuda|hip)error:)?unspecifiedlaunchfailure"
          r"|hsa_status_error_memory_(?:fault|aperture_violation)"),
    _form("no_kernel_image", "", "no kernel image|errornobinary|invalid device function|devicefunction|not compatible with the|"
          "tensilelibrary|tensile host|invalid_isa|invalid_code_object", r"(?:(?:cuda|hip)error:)?nokernelimageisavailable"
          r"|(?:hip|cuda)errornobinaryforgpu|cudaerrornokernelimagefordevice|(?:(?:cuda|hip)error:)?invaliddevicefunction"
          r"|(?:hip|cuda)errorinvaliddevicefunction|isnotcompatiblewiththecurrentpytorchinstallation"
          r"|(?:rocblaserror:)?cannotread.{0,160}?tensilelibrary|couldnotinitializetensilehost"
          r"|hsa_status_error_invalid_(?:isa|code_object)"),
    _form("hip_version", "", "driver version|is too old|library version mismatch|not compiled with cuda|libamdhip64|undefined "
                             "symbol|forward compatibility", r"cudadriverversionisinsufficient|nvidiadriveronyoursystemistooold"
                                   r"|driver/libraryversionmismatch"
          r"|torchnotcompiledwithcudaenabled|libamdhip64\.so[.0-9]{0,8}:cannotopensharedobject|undefinedsymbol:_?hip"
          r"|forwardcompatibilitywasattempted|hip_version.{0,20}?mismatch"),
    _form("no_device", "", "gpus are available|capable device|errornodevice|no nvidia driver|/dev/kfd|no_device",
          r"no(?:cuda|hip)gpusareavailable|no(?:cuda|rocm)-capabledeviceisdetected|(?:hip|cuda)errornodevice"
          r"|cuda_error_no_device"
          r"|foundnonvidiadriver|unabletoopen/dev/kfd(?:read-write:(?:cannotallocatememory|permissiondenied"
          r"|nosuchfileordirectory))?"),
    _form("cs_enomem", "kernel", "not enough memory for command|failed to create bo", "notenoughmemoryforcommandsubmission"),
    _form("hip_oom_plain", "kernel", "failed to create bo", r"kfd.{0,20}?failedtocreatebo.{0,20}?ret-12"),
    _form("cpu_alloc", "torch", "defaultcpuallocator", r"defaultcpuallocator:(?:can'tallocatememory|notenoughmemory):youtriedto"
          r"allocate(?P<requested>[0-9]{1,20})(?:bytes)?"),
    _form("cpu_alloc", "", "unable to allocate|bad_alloc|errno 12", r"unabletoallocate(?P<requested>SIZE)foranarray"
                                                                    r"|std::bad_alloc|\[errno12\]cannotallocatememory"),
    _form("host_killed", "kernel", "killed process|kill process|oom-kill|oomkilled|out_of_memory+0",
          r"outofmemory:kill(?:ed)?process[0-9]{1,10}(?:.{0,80}?anon-rss:(?P<process>[0-9]{1,16}kb))?|oom-kill:constraint="
          r"|invokedoom-killer|oomkilled"),
    _form("host_killed", "", "signal: killed|sigkill|exit code 137|exitcode: -9|exited with code 137|status 137",
          r"killedbysignal:killed|signal:killed|signal9\(sigkill\)|exitcode:?-9(?![0-9])|exit(?:ed)?(?:with)?(?:code"
          r"|status):?137"),
    _form("hip_oom_plain", "", "error: out of memory|erroroutofmemory|errormemoryalloc|error_out_of_memory|runtime error (2)|"
          "out_of_resources", r"(?:cuda|hip)error:?outofmemory|hiperroroutofmemory|cudaerrormemoryallocation"
          r"|cuda_error_out_of_memory(?::outofmemory)?|cudaruntimeerror\(2\):outofmemory|hsa_status_error_out_of_resources"),
    _form("other", "", "hsa_status_error|no available memory for the cache|hw exception", r"hsa_status_error_[a-z_]{1,60}"
          r"|hwexceptionbygpunode(?:-?[0-9]{1,3})?"
          r"|noavailablememoryforthecacheblocks"),
)
TORCH_ANCHORS = ("out of memory", "tried to allocate", "outofmemoryerror", "total capac", "already allocated", "by pytorch",
                 "memory in use", "exceed allowed memory")


def messages_in(text: str) -> tuple[Found, ...]:
    """Every failure in a squeezed text, in its order; what two wordings claim belongs to the more telling one."""
    taken: list[tuple[int, int]] = []
    found: list[Found] = []

    def claim(one: Found) -> None:
        at = bisect_left(taken, (one.start, one.end))
        before = at > 0 and taken[at - 1][1] > one.start
        if not before and (at == len(taken) or taken[at][0] >= max(one.end, one.start + 1)):
            insort(taken, (one.start, one.end))
            found.append(one)

    for form in FORMS:
        if any(anchor.replace(" ", "") in text for anchor in form.anchors):
            for match in form.pattern.finditer(text):
                claim(_of(form, match))
    if any(anchor.replace(" ", "") in text for anchor in TORCH_ANCHORS):
        for one in torch_messages(text):
            claim(one)
    return tuple(sorted(found, key=lambda one: one.start))


def _of(form: Form, match: re.Match[str]) -> Found:
    unread: list[str] = []
    words = match.string[match.start():match.end() + 60]
    hints = [form.hint] if form.hint else []
    if form.kind == "blas_alloc" and "create(" in words:
        hints.append("at_create")
    values: dict[str, Any] = {"kind": form.kind, "framework": form.framework, "hints": tuple(hints)}
    shape = dtype = ""
    for group, text in match.groupdict().items():
        name = group.split("_")[0]
        if not text:
            continue
        if name == "device":
            values[name] = int(text)
        elif name == "shape":
            shape = text
        elif name == "dtype":
            dtype = text
        else:
            values[name] = read_size(text if form.hint != "startup_check" or name != "free" else text + "gib", unread, False)
    if shape and dtype in _ELEMENT_BYTES:
        size = _ELEMENT_BYTES[dtype]
        for side in shape.split(","):
            size = min(size * int(side or 1), UNMEASURED_BYTES - 1)
        values["requested"] = Quantity(size, 0, f"[{shape}] of {dtype}")
    values["backend"] = backend_of(match.group())
    if not values["backend"] and form.framework != "kernel" and form.hint != "warning":
        values["backend"] = backend_of(match.string[max(0, match.start() - 60):match.end() + 20])
    return Found(match.start(), match.end(), values, tuple(unread))
