"""What fits, of servers' logs and public records: what is read, how it ended, and which context would have fitted."""

import json
import re
from pathlib import Path

import pytest
from command_line import verb
from examples import examples
from fits_models import decoder, of, row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.fits.servers import table
from helpers.ground.units import GIB, MIB
from helpers.look import wordings as messages

RECORDS = Path(__file__).resolve().parents[2] / "shared" / "fits"


LLAMA_LOG = """llama_model_loader: loaded meta data with 30 key-value pairs
llama_model_load: using device CUDA0 (NVIDIA GeForce RTX 3060) (0000:01:00.0) - 11000 MiB free
print_info: n_layer          = 32
print_info: n_vocab          = 32000
load_tensors:        CUDA0 model buffer size =  7000.00 MiB
load_tensors:   CPU_Mapped model buffer size =   100.00 MiB
llama_context: n_ctx         = 65536
llama_kv_cache: size = 8192.00 MiB ( 65536 cells,  32 layers,  1/1 seqs), K (f16): 4096.00 MiB, V (f16): 4096.00 MiB
"""
REFUSED = """ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory
"""


def test_a_log_that_ended_out_of_memory_says_which_context_would_have_fitted(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(LLAMA_LOG + REFUSED)
    answer = of(path)
    assert answer["fits"] is False
    assert row(answer, "weights")["bytes"] == 7000 * MIB
    assert row(answer, "kv")["bytes"] == 8192 * MIB
    context = answer["solved"]["context"]
    assert (
        context % 256 == 0 and 0.5 * 4000 < context / 8 < 4000
    )  # of 4000 MiB left, an eighth a token
    path.write_text(LLAMA_LOG + REFUSED + "main: server is listening on 127.0.0.1:8080\n")
    assert of(path)["fits"] is True, "what was tried again and then runs is no failure"


HYBRID = """main: loading model
common_params_fit_impl: projected to use 9000 MiB of device memory vs. 8000 MiB of free device memory
common_params_fit_impl: cannot meet free memory target of 1024 MiB, need to reduce device memory by 2024 MiB
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4070) (0000:06:00.0) - 8064 MiB free
llama_model_loader: loaded meta data with 35 key-value pairs
load_tensors: offloaded 20/41 layers to GPU
load_tensors:   CPU_Mapped model buffer size =  5000.00 MiB
load_tensors:        CUDA0 model buffer size =  5000.00 MiB
llama_context: n_ctx         = 65536
llama_kv_cache:        CPU KV buffer size =  2048.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =  2048.00 MiB
llama_kv_cache: size = 4096.00 MiB ( 65536 cells,  10 layers,  1/1 seqs), K (f16): 2048.00 MiB, V (f16): 2048.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =    60.00 MiB
llama_memory_recurrent: size =  120.00 MiB (     1 cells,  40 layers,  1 seqs), R (f32):    5.00 MiB, S (f32):  115.00 MiB
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1892.00 MiB on device 0: cudaMalloc failed: out of memory
ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 1983905792
"""


def test_what_lies_on_the_card_is_summed_and_the_context_that_would_fit_is_solved(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(HYBRID)
    answer = of(path)
    parts = {part: row(answer, part)["bytes"] / MIB for part in ("weights", "kv", "state")}
    assert parts == {"weights": 5000, "kv": 2048, "state": 60}, "what lies with the host is not"
    assert row(answer, "compute")["bytes"] == 1892 * MIB, "what was asked for and not had"
    assert answer["ceiling_bytes"] == 8064 * MIB and answer["spare_bytes"] == -2024 * MIB
    assert answer["solved"]["context"] == 65536 - 2024 * 32
    path.write_text(HYBRID.replace("8064 MiB free", "7064 MiB free") + HYBRID)
    assert of(path)["ceiling_bytes"] == 8064 * MIB, "an earlier load counts no card twice"


DRAFTED = """srv    load_model: loading model '/m/a.gguf'
llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:c1:00.0) - 23000 MiB free
load_tensors:        CUDA0 model buffer size = 15000.00 MiB
llama_context: n_ctx         = 16384
llama_kv_cache_iswa: creating non-SWA KV cache, size = 16384 cells
llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells
llama_kv_cache:      CUDA0 KV buffer size =   128.00 MiB
sched_reserve:      CUDA0 compute buffer size =   300.00 MiB
srv    load_model: loading draft model '/m/b.gguf'
llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:c1:00.0) - 7000 MiB free
llama_model_loader: loaded meta data with 30 key-value pairs
load_tensors:        CUDA0 model buffer size =   500.00 MiB
llama_context: n_ctx         = 4096
llama_kv_cache:      CUDA0 KV buffer size =    64.00 MiB
sched_reserve:      CUDA0 compute buffer size =   200.00 MiB
load_hparams: model size:         800.00 MiB
alloc_compute_meta:      CUDA0 compute buffer size =   100.00 MiB
main: server is listening on 127.0.0.1:8080
"""


def test_a_draft_and_a_vision_part_are_added_to_the_model_they_are_loaded_beside(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(DRAFTED * 2)
    answer = of(path)
    parts = {part: row(answer, part)["bytes"] / MIB for part in ("weights", "kv", "compute")}
    assert parts == {"weights": 15500, "kv": 704, "compute": 600}
    assert answer["ceiling_bytes"] == 23000 * MIB and answer["fits"] is True
    path.write_text(DRAFTED.partition("srv    load_model: loading draft")[0])
    assert row(of(path), "kv")["bytes"] == 640 * MIB, "both of its caches"


ESTIMATED = """level=INFO source=server.go:104 msg="system memory" total="31.2 GiB" free="21.2 GiB"
level=INFO source=memory.go:356 msg="offload to cuda" layers.requested=-1 layers.model=41 layers.offload=29 \
memory.available="[7.0 GiB]" memory.required.kv="400.0 MiB" memory.weights.total="8.2 GiB" memory.graph.full="266.7 MiB"
level=INFO source=server.go:376 msg="starting llama server" cmd="runner --ctx-size 2048 --batch-size 512 --parallel 1"
llama_model_loader: loaded meta data with 36 key-value pairs
level=INFO source=server.go:593 msg="llama runner started in 2 seconds"
"""
COUNTED = """level=INFO source=sched.go:484 msg="system memory" total="13.5 GiB" free="7.3 GiB"
level=INFO source=sched.go:491 msg="gpu memory" id=0 library=ROCm available="6.1 GiB" free="7.5 GiB" minimum="457.0 MiB"
level=INFO source=server.go:497 msg="loading model" "model layers"=27 requested=-1
level=INFO source=device.go:240 msg="model weights" device=ROCm0 size="1.5 GiB"
level=INFO source=device.go:245 msg="model weights" device=CPU size="300.0 MiB"
level=INFO source=device.go:251 msg="kv cache" device=ROCm0 size="1.5 GiB"
level=INFO source=device.go:262 msg="compute graph" device=ROCm0 size="256.0 MiB"
level=INFO source=runner.go:965 msg="starting go runner"
level=INFO msg=load request="{Operation:commit Parallel:1 BatchSize:512 KvSize:16384 KvCacheType:}"
level=INFO source=server.go:1384 msg="llama runner started in 2 seconds"
"""


def test_what_ollama_estimates_and_what_it_counts_are_both_read(tmp_path):
    path = tmp_path / "ollama.log"
    path.write_text(ESTIMATED.partition("llama_model_loader")[0])
    assert of(path)["fits"] is False, "what its estimate leaves to RAM is not on the card"
    path.write_text(ESTIMATED * 2)
    answer = of(path)
    assert answer["program"] == "ollama" and answer["ceiling_bytes"] == 7 * GIB
    assert row(answer, "kv")["bytes"] == 400 * MIB, "the runner's own lines end no load of ollama's"
    assert answer["fits"] is False, "it runs, and 12 of 41 layers do not lie on the card"
    path.write_text(COUNTED)
    answer = of(path)
    assert row(answer, "weights")["bytes"] == row(answer, "kv")["bytes"] == 1.5 * GIB
    assert row(answer, "compute")["bytes"] == 256 * MIB and answer["fits"] is True
    token = 1.5 * GIB / 16384
    room = 7.5 * GIB - 457 * MIB - 256 * MIB - 1.5 * GIB
    assert 0 <= room - answer["solved"]["context"] * token < 257 * token


FITTED = """llama_params_fit_impl: projected to use 41234 MiB of device memory vs. 23832 MiB of free device memory
llama_params_fit_impl: cannot meet free memory target of 1024 MiB, need to reduce device memory by 18426 MiB
llama_params_fit_impl: context size reduced from 262144 to 65536 -> need 18432 MiB less memory in total
llama_params_fit_impl:   - CUDA0 (NVIDIA GeForce RTX 3090): 38 layers,  12000 MiB used,   1832 MiB free
llama_params_fit_impl:   - CUDA1 (NVIDIA GeForce RTX 3060): 11 layers,  9000 MiB used,   1632 MiB free
"""


def test_what_fit_lines_print_is_taken_as_it_stands(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(FITTED)
    answer = of(path)
    assert answer["fits"] is False and answer["spare_bytes"] == -18426 * MIB
    assert answer["solved"]["context"] == 65536 and answer["solved"]["layers_on_gpu"] == 49
    assert row(answer, "reserve")["bytes"] == 1024 * MIB
    path.write_text(
        "common_params_fit_impl: projected to use 9000 MiB of device memory vs. 23832 MiB of free device memory\n"
        "common_params_fit_impl: will leave 14832 >= 1024 MiB of free device memory, no changes needed\n"
    )
    assert of(path)["fits"] is True and of(path)["spare_bytes"] == (14832 - 1024) * MIB


def test_failures_with_opposite_remedies_are_told_apart(tmp_path):
    path = tmp_path / "vllm.log"
    said = []
    for line in (
        "ValueError: Free memory on device (11.50/23.64 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 21.28 GiB). Decrease GPU memory utilization.",
        "ValueError: To serve at least one request with the models's max seq len (65536), (8.0 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (3.0 GiB).",
    ):
        path.write_text(line + "\n")
        answer = of(path)
        assert answer["fits"] is False
        assert answer["solved"]["utilisation"] == (0.48 if not said else None)
        said.append(" ".join(answer["notes"]))
    assert "lower --gpu-memory-utilization" in said[0] and "raise" in said[1]
    assert answer["solved"]["context"] == 24576  # three eighths of what was asked for
    path.write_text(line.replace("(8.0", "8.0") + "\n")  # as of 2026
    assert of(path)["cache"]["need_bytes"] == 8 * GIB


def test_no_context_is_solved_from_a_pool_of_which_only_the_whole_is_known(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text(
        "[gpu_worker.py:276] Available KV cache memory: 1.40 GiB\n"
        "[kv_cache_utils.py:1013] GPU KV cache size: 52,608 tokens\n"
        "[kv_cache_utils.py:1017] Maximum concurrency for 32,768 tokens per request: 7.64x\n"
    )
    found = of(path)["solved"]
    assert found["tokens"] == 52608 and found["context"] is None and found["slots"] is None


@given(st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_header_or_a_log_with_changed_bytes_ends_in_an_answer_or_in_a_line(tmp_path, data):
    model = decoder(tmp_path / "a.gguf", vocab=5).read_bytes()
    whole = data.draw(st.sampled_from([model[:700], ESTIMATED.encode(), FITTED.encode()]))
    end = data.draw(st.integers(5, len(whole)))
    changed = bytearray(whole[:end] + model[700:] * (whole == model[:700]))
    for at in data.draw(st.lists(st.integers(4, end - 1), max_size=8)):
        changed[at] = data.draw(st.sampled_from([0, 1, 45, 57, 127, 255]))
    path = tmp_path / "changed"
    path.write_bytes(changed)
    done = verb("fits", path)
    assert done.code in (0, 2) and "Traceback" not in done.err, done.err
    assert done.code == 0 or done.err.count("\n") == 1, done.err


@pytest.mark.skipif(not RECORDS.is_dir(), reason="no records beside the checkout")
def test_public_records_follow_from_their_inputs():
    wrong = []
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text())
        answer = of_inputs(path)
        truth = record["truth"]
        if truth["fits"] is not None and answer["fits"] not in (None, truth["fits"]):
            wrong.append(f"{path.stem}: fits {answer['fits']}")
        wrong += [f"{path.stem}: {line}" for line in differs(record, answer)]
    assert wrong == []


def of_inputs(path):
    return json.loads(verb("fits", "--inputs", path, "--json").out)


def differs(record, answer):
    """What an independent record printed of its cache and the answer does not say, to the last printed digit."""
    truth = record["truth"]
    pool = record["truth"]["kv_bytes"]
    if not record["verification"]["independent"] or record["program"] == "SGLang":
        return
    size = row(answer, "kv")["bytes"]
    need = answer["cache"]["need_bytes"]
    digit = {"vLLM": 0.0051 * GIB, "ollama": 0.051 * GIB}.get(record["program"], 0.0051 * MIB)
    if pool and size and truth["tokens"] is None and abs(size - pool) > digit:
        yield f"cache {size}, printed {pool}"
    if pool and need and truth["tokens"] and size == need and need > pool + digit:
        yield f"one request takes {need}, the pool is {pool}"


@pytest.mark.parametrize(
    "one", table("logs")["lines"], ids=lambda one: f"{one['key']}-{one['has'][:12]}"
)
def test_a_line_of_a_log_is_looked_for_by_words_of_its_form(one):
    assert re.compile(one["form"]).groups <= 2 and one["source"]
    plain = one["form"].replace("\\", "")
    assert one["has"] in plain


FIRST = """INFO worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.70) = 5.60GiB
INFO worker.py:267] model weights take 5.00GiB; non_torch_memory takes 0.10GiB; PyTorch activation peak memory takes 1.30GiB; the rest
INFO executor_base.py:116] Maximum concurrency for 4,096 tokens per request: 0.00x
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
"""


def test_the_first_vllm_kept_its_graphs_beside_the_share(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text(FIRST)
    answer = of(path)
    assert answer["fits"] is False and answer["spare_bytes"] == pytest.approx(-0.8 * GIB, rel=0.01)
    assert answer["solved"]["utilisation"] == 0.8, "6.4 of 8 GiB, and the cache comes to it"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (
            "ValueError: To serve at least one request with the model's max seq len (65536), (8.0 GiB KV "
            "cache is needed, which is larger than the available KV cache memory (3.0 GiB)).",
            True,
        ),
        (
            "(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
            "GPU 0 has a total capacity of 23.64 GiB of which 300.00 MiB is free. Of the allocated memory "
            "22.90 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
            True,
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
            "GPU 0 has a total capacity of 23.64 GiB of which 300.00 MiB is free. Of the allocated memory "
            "22.90 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
            False,
        ),
    ],
)
def test_the_verdict_of_a_servers_failure_ends_in_fits_and_a_trainings_does_not(
    text, fits, tmp_path
):
    path = tmp_path / "error.txt"
    path.write_text(text)
    step = json.loads(verb("diagnose", "--message", path, "--json").out)["next_step"]
    assert (f" fits {path}" in step["command"]) is fits


SERVERS = [
    one
    for one in messages.table()
    if one["program"] in ("vLLM", "SGLang", "llama.cpp", "Ollama")
    and one["event"] in table("logs")["failed"]
]


@pytest.mark.parametrize("one", SERVERS, ids=lambda one: one["id"])
def test_every_failure_of_a_server_ends_in_what_would_have_fitted(one, tmp_path):
    path = tmp_path / "error.txt"
    path.write_text(one["example"])
    step = json.loads(verb("diagnose", "--message", path, "--json").out)["next_step"]
    assert f" fits {path}" in step["command"], step


POOL = """[2026-02-01 10:00:00] server_args=ServerArgs(model_path='/m', context_length=None, mem_fraction_static=0.8, tp_size=2)
[2026-02-01 10:00:05 TP0] Load weight begin. avail mem=40.00 GB
[2026-02-01 10:00:05 TP1] Load weight begin. avail mem=40.00 GB
[2026-02-01 10:00:09 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=20.00 GB, mem usage=20.00 GB.
[2026-02-01 10:00:09 TP1] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=20.00 GB, mem usage=20.00 GB.
[2026-02-01 10:00:10 TP0] KV Cache is allocated. #tokens: 98304, K size: 6.00 GB, V size: 6.00 GB
[2026-02-01 10:00:10 TP1] KV Cache is allocated. #tokens: 98304, K size: 6.00 GB, V size: 6.00 GB
[2026-02-01 10:00:20 TP0] Capture cuda graph end. Time elapsed: 8.00 s. mem usage=1.50 GB. avail mem=2.00 GB.
[2026-02-01 10:00:21 TP0] max_total_num_tokens=98304, chunked_prefill_size=8192, context_len=262144
"""


def test_the_pool_of_sglang_is_that_of_one_card_however_many_ranks_are_pasted(tmp_path):
    path = tmp_path / "sglang.log"
    path.write_text(POOL)
    answer = of(path)
    assert answer["ran"] is True and answer["fits"] is False, "a request of 262,144 is too long"
    assert row(answer, "kv")["bytes"] == 12 * GIB and row(answer, "graphs")["bytes"] == 1.5 * GIB
    assert answer["solved"]["tokens"] == answer["solved"]["context"] == 98304
    assert answer["contexts"]["token_bytes"] == 12 * GIB // 98305
    assert "16,384 tokens more" in " ".join(answer["notes"])
    path.write_text("\n".join(line for line in POOL.splitlines() if "TP1" not in line))
    alone = of(path)
    assert alone["rows"] == answer["rows"] and alone["solved"] == answer["solved"]
    shown = " ".join(verb("fits", path).out.split())
    assert shown.startswith(
        "The server runs, but a request of 262,144 tokens does not fit: its pool holds 98,304"
    )
    path.write_text(POOL.replace("context_len=262144", "context_len=65536"))
    assert of(path)["fits"] is True


def test_a_server_that_starts_anew_forgets_what_it_was_given_before(tmp_path):
    path = tmp_path / "sglang.log"
    path.write_text(POOL.replace("mem_fraction_static=0.8,", "mem_fraction_static=0.5,") + POOL)
    assert row(of(path), "reserve")["high_bytes"] is None
    once = tmp_path / "once.log"
    once.write_text(POOL)
    assert of(path)["rows"] == of(once)["rows"]


def test_a_server_that_ran_out_while_serving_is_not_told_of_a_context_that_it_had(tmp_path):
    path = tmp_path / "sglang.log"
    path.write_text(
        POOL.replace("context_len=262144", "context_len=65536")
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 40.00 GiB of which 300.00 MiB is free.\n"
    )
    answer = of(path)
    assert answer["ran"] is False and answer["fits"] is False
    out = " ".join(verb("fits", path).out.split())
    assert out.startswith("It does not fit in 40.00 GiB") and "longest context is" not in out
    assert "tokens more" not in out and "lower --gpu-memory-utilization" in out
