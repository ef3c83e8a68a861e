"""What fails beside the memory itself: builds, chips, settings, libraries, broken contexts, limits of one allocation.

All texts are made up; each names the mechanism in its own words.
"""

from __future__ import annotations

import json

import pytest

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, sentences
from helpers.judge.observations import DATA, marks
from helpers.judge.statements import read_statements
from helpers.shapes import Verdict

BARE = "RuntimeError: CUDA error: out of memory"
NOT_STARTED = (
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
)
FAULT = "Memory access fault by GPU node-1 (Agent handle: 0x2f10) on address 0x7e00. Reason: Page not present."
EXPANDABLE = {"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}


def judged(error: str = "", narrative: str = "", tools=None, environment=None) -> Verdict:
    return diagnose(
        case_evidence(
            {
                "error_text": error,
                "narrative": narrative,
                "tool_outputs": tools or {},
                "environment": environment or {},
            }
        )
    )


def said(narrative: str) -> set[str]:
    return {one.name for one in read_statements(case_evidence({"narrative": narrative}))}


# -- limits of one allocation, and of addresses ---------------------------------------------------
@pytest.mark.parametrize("error", [
    "vkCreateBuffer(): pCreateInfo->size (6442450944) is larger than the maximum allowed buffer size "
    "VkPhysicalDeviceMaintenance4Properties.maxBufferSize (4294967295).",
    "ggml_vulkan: Requested buffer size exceeds device memory allocation limit: ErrorOutOfDeviceMemory",
    "clCreateBuffer failed: INVALID_BUFFER_SIZE",
    "Uncaptured error: Buffer size (734003200) exceeds the max buffer size limit (268435456).",
    "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate 6.00 GiB",
])  # fmt: skip
def test_a_buffer_larger_than_the_driver_gives_in_one_piece_is_no_lack_of_memory(error):
    verdict = judged(error)
    assert (verdict.cause, verdict.confidence) == ("other", "likely")
    assert "one piece" in verdict.title


@pytest.mark.parametrize("error", [
    "cuMemAddressReserve(&base, bytes, 0, 0, 0) failed: CUDA_ERROR_OUT_OF_MEMORY",
    "error: could not reserve virtual address space for the pool",
    "hipMemAddressReserve returned hipErrorOutOfMemory",
])  # fmt: skip
def test_addresses_that_run_out_are_told_from_memory(error):
    verdict = judged(error)
    assert verdict.cause == "other" and "addresses" in verdict.title


def test_wsl_refusing_with_most_of_the_card_free_is_wsls_own_limit():
    story = "It fails with most of the card free: 18 GB is free when it dies."
    assert judged(BARE, story, environment={"os": "Ubuntu 24.04 on WSL2"}).cause == "other"
    assert judged(BARE, story, environment={"os": "Ubuntu 24.04"}).cause != "other"


def test_a_copy_to_the_cpu_that_is_not_waited_for_pins_host_memory():
    error = f'  kept.append(state.to("cpu", non_blocking=True))\n{BARE}'
    assert judged(error).cause == "host-oom"


# -- libraries ------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [
    NOT_STARTED, "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "CUDNN failure: CUDNN_STATUS_NOT_INITIALIZED",
    "E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED",
])  # fmt: skip
def test_a_library_that_does_not_start_is_named_and_never_for_sure(error):
    verdict = judged(error)
    assert (verdict.cause, verdict.confidence) == ("library-workspace", "weak")


def test_a_library_that_does_not_start_behind_changed_indices_is_a_broken_context():
    story = "Forty labels were added to the head, and the first forward pass stops."
    assert judged(NOT_STARTED, story).cause == "context-corruption"


# -- builds and chips -----------------------------------------------------------------------------
def test_a_build_without_code_for_the_card_is_that_even_where_its_cuda_is_older_too():
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    machine = {"gpu": "RTX 5080", "cuda": "12.1"}
    assert judged(error, environment=machine).cause == "unsupported-gfx"


def test_an_older_cuda_than_the_chip_is_a_mismatch_where_a_library_fails():
    error = (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    )
    machine = {"gpu": "RTX 4080", "cuda": "11.0.3"}
    assert judged(error, environment=machine).cause == "version-mismatch"


@pytest.mark.parametrize("error", [
    "rocBLAS error: Could not load /srv/rocm/lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat",
    "the import stops: missing libhipfft.so.0",
    "Could not load library libcudnn_ops_infer.so.8. Error: libnvrtc.so: cannot open",
    "W dso_loader.cc] could not load dynamic library 'cublas64_11.dll'; dlerror: cublas64_11.dll not found",
])  # fmt: skip
def test_a_library_of_another_release_is_a_mismatch(error):
    assert judged(error).cause == "version-mismatch"


@pytest.mark.parametrize("story", [
    "Every HIP program faults, whatever it does.", "Even the smallest kernel crashes with it.",
    "The bundled example programs abort with the fault as well.", "A plain vector addition fails too.",
    "Our smoke test ends in the same page fault.",
])  # fmt: skip
def test_a_fault_that_no_program_avoids_is_the_stacks(story):
    assert judged(FAULT, story).cause == "version-mismatch"
    assert judged(FAULT, "It comes at random in my training loop.").cause == "context-corruption"


def test_firmware_named_by_its_date_is_a_version():
    tools = {"linux-firmware": "20260110 faults; with 20251202 it does not happen"}
    assert judged(FAULT, tools=tools).cause == "version-mismatch"


# -- a broken context -----------------------------------------------------------------------------
@pytest.mark.parametrize("story", [
    "The refusal of the large buffer is caught, and the next kernel launch fails with out of memory although it is tiny.",
    "One request is too large on purpose. The following small one then fails with out of memory too.",
    "The allocation error is swallowed; a later call stops with out of memory.",
])  # fmt: skip
def test_an_error_that_was_caught_and_meets_the_next_call_is_a_broken_context(story):
    assert judged("check failed: out of memory", story).cause == "context-corruption"


# -- expandable segments and settings -------------------------------------------------------------
def test_a_refused_driver_call_with_expandable_segments_on_is_theirs():
    error = "RuntimeError: CUDA driver error: out of memory"
    assert judged(error, environment=EXPANDABLE).cause == "expandable-segments-unsupported"
    assert judged(error).cause != "expandable-segments-unsupported"


def test_a_pause_that_gives_nothing_back_with_expandable_segments_on_is_theirs():
    story = "Sleep mode leaves the memory in use: nothing is freed."
    assert judged("", story, environment=EXPANDABLE).cause == "expandable-segments-unsupported"


@pytest.mark.parametrize("text", [
    "The fraction is set to 0.3 and the process still takes the whole card.",
    "With the cap enabled the usage is the same.", "I exported the limit; whatever I set it to, usage is the same.",
    "A reserve was asked for and most of the card is used regardless.",
    "The variable is given in the compose file, yet memory use stays at the default.",
])  # fmt: skip
def test_a_setting_that_is_made_while_the_opposite_happens_is_inert(text):
    assert "setting-inert-said" in said(text)


@pytest.mark.parametrize("text", [
    "The batch size is set to 4 and training fails.", "With the default settings the whole card is used.",
    "I set up a new machine with a larger card.", "The limit of the card is 24 GB.",
])  # fmt: skip
def test_a_setting_that_is_only_spoken_of_is_not_called_inert(text):
    assert "setting-inert-said" not in said(text)


@pytest.mark.parametrize("text", [
    "The notebook sets the variable in a later cell.", "The limit is made once CUDA is initialised.",
    "The environment is changed after the workers were started.", "The launcher exports it too late.",
    "os.environ is changed in the middle of the script: the option comes below the imports.",
])  # fmt: skip
def test_a_setting_that_comes_after_it_is_read_is_late_in_any_words(text):
    assert "setting-late-said" in said(text)


@pytest.mark.parametrize("text", [
    "While the server is running with these options memory grows.", "The limits of the card are known.",
    "The configuration is loaded from a file.", "The options are listed in the manual.",
])  # fmt: skip
def test_a_setting_beside_a_running_program_is_not_late(text):
    assert "setting-late-said" not in said(text)


@pytest.mark.parametrize("text", [
    "With CUDA_LAUNCH_BLOCKING=1 the error becomes a device-side assert.",
    "The GPU hung, and afterwards each call fails.", "The first error was an illegal memory access; then all else fails.",
])  # fmt: skip
def test_a_fault_that_comes_first_is_read_in_any_words(text):
    assert "fault-first" in said(text)
    assert "fault-first" not in said("It fails the same with and without CUDA_LAUNCH_BLOCKING=1.")


def test_numbers_of_memory_and_updates_of_weights_are_no_versions():
    for text in (
        "Since step 4 it holds 2.88 GiB more.",
        "After the second weight update memory stays high.",
    ):
        assert not said(text) & {"changed-with-version", "works-with-another-version"}


def test_a_limit_that_ollama_no_longer_reads_is_said_to_do_nothing():
    machine = {"env_vars": {"OLLAMA_MAX_VRAM": "4000000000"}}
    verdict = judged("", "The runner takes 7 GB.", environment=machine)
    assert verdict.cause == "config-ineffective"


def test_a_reservation_that_a_setting_forbids_is_a_setting_that_reached_nothing():
    tools = {"monitor": "75 % of the card is in use after the first JAX call (described)"}
    story = "JAX takes 75 percent of the card at once."
    machine = {"env_vars": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}}
    assert judged("", story, tools, machine).cause == "config-ineffective"
    assert judged("", story, tools).cause != "config-ineffective"


def test_a_gpu_chosen_in_the_program_that_still_lands_on_the_first_is_chosen_too_late():
    tools = {"run.py": 'def pick(n):\n    os.environ["HIP_VISIBLE_DEVICES"] = str(n)'}
    story = "All four processes land on GPU 0, whichever number is given."
    assert judged("", story, tools).cause == "config-ineffective"
    assert judged("", story).cause == "multi-gpu-imbalance"


# -- sizes that are none --------------------------------------------------------------------------
def test_a_request_that_no_machine_can_hold_points_at_the_build():
    verdict = judged("RuntimeError: CUDA out of memory. Tried to allocate 131071.98 GiB")
    assert (verdict.cause, verdict.confidence) == ("version-mismatch", "weak")
    large = judged("RuntimeError: CUDA out of memory. Tried to allocate 14901.16 GiB")
    assert large.cause != "version-mismatch"  # the square of a long list, not garbage


def test_more_addresses_reserved_than_a_process_has_is_no_lack_of_memory():
    tools = {"own counters": "reserved 281474976710656 bytes, mapped 73400320 bytes"}
    assert judged("CUDA_ERROR_OUT_OF_MEMORY", tools=tools).cause == "other"


# -- which way a sentence points ------------------------------------------------------------------
@pytest.mark.parametrize(("text", "name"), [
    ("Not enough memory.", "plenty-free"), ("The dedicated memory stays free.", "memory-stays"),
    ("A newer driver made no difference.", "changed-with-version"),
    ("It runs out of memory on a 48 GB card.", "work-has-a-size"),
])  # fmt: skip
def test_a_sentence_that_says_the_opposite_is_not_read_as_the_thing(text, name):
    assert name not in said(text)


@pytest.mark.parametrize("text", [
    "Downgrading the driver fixes it.", "Rolling back the kernel cured it.", "Reverting to 6.1 helps.",
    "We went back to the previous release and it no longer happens.", "Bisecting points at one commit.",
])  # fmt: skip
def test_going_back_and_being_cured_is_a_contrast_of_versions(text):
    assert "works-with-another-version" in said(text)
    assert judged(FAULT, text).cause == "version-mismatch"


# -- the table of marks ---------------------------------------------------------------------------
@pytest.mark.parametrize("row", marks(), ids=lambda row: f"{row[0]}-{row[2][0]}")
def test_every_mark_has_a_sentence_a_place_and_a_bounded_cost(row):
    name, pattern, places, hard = row
    assert sentences()[name] and places and isinstance(hard, bool)
    for text in ("", "a" * 50_000, "alloc 1 " * 8_000, "loss += \n" * 6_000, "ttm\n" * 10_000):
        pattern.search(text)


def test_every_mark_names_where_its_pattern_comes_from():
    rows = json.loads(DATA.read_text())["marks"]
    assert all(row["source"].strip() for row in rows)


# -- sentences that say none of it ----------------------------------------------------------------
@pytest.mark.parametrize("text", [
    "Every step needs a little more memory.", "The labels are stored on the host.", "We added a second card.",
    "All programs were closed and the memory stays in use.", "The next release is expected in May.",
    "The first epoch works and the second fails.", "Pause the video to see the figures.",
    "Tokens per second fall over time.", "The job is killed on purpose by the scheduler.",
    "A peak of 20 GB is normal.", "The model has 40 classes.", "I retried, and it then failed again.",
])  # fmt: skip
def test_sentences_of_other_things_say_none_of_this(text):
    assert not said(text) & {"fails-everywhere", "index-in-doubt", "error-lingers", "sleep-keeps"}


@pytest.mark.parametrize(("text", "cause"), [
    ("The extension was compiled against another torch and its symbols are missing.", "version-mismatch"),
    ("nvidia-smi complains of a driver/library version mismatch.", "version-mismatch"),
    ("The runner skips this gfx803, which is not in its list.", "unsupported-gfx"),
    ("The wheel lacks code for sm_120 and the first kernel aborts.", "unsupported-gfx"),
    ("The argument is swallowed by the wrapper.", "config-ineffective"),
    ("The variable isn't seen by the service.", "config-ineffective"),
    ("It asserts as soon as expandable segments are on. Turning the option off helps.",
     "expandable-segments-unsupported"),
    ("Each block wants 120 KB of shared memory, the chip has 99 KB.", "other"),
    ("vm.max_map_count is too low, the mapping fails though RAM is plenty.", "other"),
])  # fmt: skip
def test_what_does_not_belong_together_is_read_in_other_words(text, cause):
    answer = judged("", text)
    assert (answer.cause, answer.confidence) == (cause, "weak")


def test_a_driver_error_with_expandable_segments_on_is_no_matter_of_access():
    probe = "cuMemCreate success, cuMemSetAccess CUDA_ERROR_UNKNOWN (999)"
    case = {
        "error_text": "RuntimeError: CUDA driver error: unknown error",
        "tool_outputs": {"probe": probe},
        "environment": {"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
    }
    assert diagnose(case_evidence(case)).cause == "expandable-segments-unsupported"


def test_a_handle_that_the_all_reduce_cannot_make_points_to_expandable_segments():
    case = {
        "error_text": "Failed: Cuda error /src/csrc/custom_all_reduce.cuh:400 'invalid argument'",
        "environment": {"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
    }
    assert diagnose(case_evidence(case)).cause == "expandable-segments-unsupported"
