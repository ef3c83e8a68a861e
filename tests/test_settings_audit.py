"""Each setting is judged for the build, the release and the chip at hand, and what is not known stays unknown."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look.environment import is_allowed
from helpers.settings.audit import audit
from helpers.settings.posted import late_assignments, value_and_remark
from helpers.settings.releases import behaviour
from helpers.settings.table import (
    CONF_NAMES,
    FINDINGS,
    HOST_NAMES,
    MOMENTS,
    NO_CACHE,
    OPTIONS,
    OTHER_NAMES,
    PREFIXES,
    RULES,
    VARIABLES,
    VERDICTS,
)
from helpers.settings.table import FOLDER as SETTINGS_FOLDER
from helpers.settings.text import SettingsError, memory_fraction, parse, parts

CUDA, HIP, PLAIN = CONF_NAMES
NO_CUDA, NO_HIP = NO_CACHE
EXPAND, BOTH = "expandable_segments:True", "expandable_segments:True,max_split_size_mb:96"


def verdict(environ, name, torch="2.8.0", build="rocm", gfx="", piece=None):
    """The verdicts on a name, or on one piece of an allocator text."""
    return sorted(
        {
            f.verdict
            for f in audit(environ, torch, build, gfx)
            if f.name == name and f.value == (environ[name] if piece is None else piece)
        }
    )


QUIET = {*HOST_NAMES, "LD_LIBRARY_PATH", "LD_PRELOAD"}
SETTINGS = [variable for variable in VARIABLES.values() if variable.name not in QUIET]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_every_setting_says_what_it_is_where_no_rule_holds(setting):
    found = audit({setting.name: "7"}, "2.13.0", setting.build or "cuda")
    assert found and all(f.name == setting.name and f.says and f.source for f in found)
    taken = not setting.otherwise or re.fullmatch(setting.form, "7")
    if (
        taken
        and not any(rule.name == setting.name for rule in RULES)
        and setting.name not in CONF_NAMES
    ):
        assert [(f.verdict, setting.says in f.says) for f in found] == [(setting.verdict, True)]


def test_every_row_of_the_tables_is_whole():
    assert not OTHER_NAMES & set(VARIABLES)
    for rule in RULES:
        assert rule.verdict in VERDICTS and rule.says and rule.source
        assert rule.name in VARIABLES or rule.name.removeprefix("option:") in OPTIONS
        assert re.compile(rule.value) and (not rule.beside or re.compile(rule.beside[1]))
    for variable in VARIABLES.values():
        assert variable.verdict in VERDICTS and variable.when and variable.source and variable.by, (
            variable
        )
        assert variable.moment in MOMENTS and re.compile(variable.form)
        assert variable.otherwise in ("", *VERDICTS) and bool(variable.otherwise) <= bool(
            variable.form and variable.expected
        )
    for option in OPTIONS.values():
        assert option.says and option.source and option.expected and re.compile(option.form), option


def test_every_row_of_what_else_is_said_is_whole_and_in_use():
    code = "".join(path.read_text() for path in SETTINGS_FOLDER.glob("*.py"))
    for kind, row in FINDINGS.items():
        assert (
            set(row) <= {"verdict", "says", "source", "cause", "why"}
            and row["says"]
            and row["source"]
        )
        assert row["verdict"] in (*VERDICTS, "{verdict}") and ("cause" in row) <= ("why" in row), (
            kind
        )
        assert f'"{kind}"' in code or kind.endswith(" programs"), kind


def test_what_can_be_a_cause_says_why_and_what_cannot_names_none():
    for row in (*RULES, *VARIABLES.values()):
        usual = VERDICTS[row.verdict]
        assert row.why or not row.cause or usual["why"], row
    assert all(bool(row["cause"]) == bool(row["why"]) for row in VERDICTS.values())


def test_a_capture_keeps_every_audited_name_of_the_gpu_stacks():
    assert [s.name for s in SETTINGS if not is_allowed(s.name)] == []


@pytest.mark.parametrize(
    ("torch", "build", "expected"),
    [
        ("2.4.0+rocm6.1", "rocm", ["unsupported"]),
        ("2.10.0a0+rocm7.9", "rocm", ["unsupported"]),
        ("2.11.0+rocm7.1", "rocm", ["unknown"]),
        ("2.12.1", "rocm", ["unknown"]),
        ("2.13.0+rocm6.4", "rocm", ["unsupported"]),
        ("2.13.0+rocm7.1", "rocm", ["effective"]),
        ("2.13.0+rocm7.14.2", "rocm", ["dangerous"]),
        ("2.3.1", "cuda", ["effective"]),
        ("2.0.1", "cuda", ["unsupported"]),
        ("", "rocm", ["unknown"]),
        ("", "", ["unknown"]),
        ("2.9.1+rocm6.4", "", ["unsupported"]),
        ("2.9.1+cu128", "", ["effective"]),
    ],
)
def test_expandable_segments_depend_on_build_and_release(torch, build, expected):
    assert (
        verdict(
            {HIP if "rocm" in build + torch else CUDA: EXPAND},
            HIP if "rocm" in build + torch else CUDA,
            torch,
            build,
            piece=EXPAND,
        )
        == expected
    )


@pytest.mark.parametrize(
    ("torch", "build", "expected"),
    [
        ("2.11.0", "cuda", "dangerous"),
        ("2.4.1", "cuda", "dangerous"),
        ("2.13.0+rocm7.1", "rocm", "dangerous"),
        ("2.6.0+rocm6.2", "rocm", "unsupported"),
    ],
)
def test_expandable_segments_beside_a_split_size_are_dangerous_where_they_work(
    torch, build, expected
):
    name = HIP if build == "rocm" else CUDA
    found = [f for f in audit({name: BOTH}, torch, build) if f.value == EXPAND]
    assert expected in {f.verdict for f in found}
    assert any("zero" in f.says for f in found) == ("7.14" in torch)
    assert verdict(
        {name: "max_split_size_mb:96"}, name, torch, build, piece="max_split_size_mb:96"
    ) == ["effective"]


def test_data_was_lost_on_one_rocm_release():
    found = audit({HIP: BOTH}, "2.12.0+rocm7.14.0", "rocm", "gfx1100")
    assert any(f.verdict == "dangerous" and "zero" in f.says for f in found)
    assert not any("zero" in f.says for f in audit({HIP: BOTH}, "2.12.0+rocm7.2.1", "rocm"))


def test_expandable_segments_that_are_off_are_no_trouble():
    assert verdict(
        {CUDA: "expandable_segments:False,max_split_size_mb:64"},
        CUDA,
        "2.9.1",
        "cuda",
        piece="expandable_segments:False",
    ) == ["effective"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0.7", ["ineffective"]), ("1.0", ["misspelt"]), ("70", ["misspelt"]), ("0", ["misspelt"])],
)
def test_a_collection_threshold_does_nothing_without_a_fraction(value, expected):
    piece = f"garbage_collection_threshold:{value}"
    assert verdict({CUDA: piece}, CUDA, "2.12.0", "cuda", piece=piece) == expected
    assert verdict(
        {CUDA: piece + ",per_process_memory_fraction:0.5"},
        CUDA,
        "2.12.0",
        "cuda",
        piece="garbage_collection_threshold:0.7",
    ) == (["effective"] if value == "0.7" else [])


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("max_split_size_mb:19", "dangerous"),
        ("max_split_size_mb:20", "effective"),
        ("max_split_size_mb:4GB", "misspelt"),
        ("roundup_power2_divisions:12", "dangerous"),
        ("roundup_power2_divisions:0", "dangerous"),
        ("roundup_power2_divisions:8", "effective"),
        ("roundup_power2_divisions:[128:2,512:8,>:1]", "effective"),
        ("expandable_segments:true", "misspelt"),
        ("expandable_segment:True", "misspelt"),
        ("quux_mode:1", "unknown"),
        ("throw_on_cudamalloc_oom:True", "unsupported"),
        ("large_segment_size_mb:40", "unsupported"),
        ("max_non_split_rounding_mb:30", "effective"),
        ("backend:cudaMallocAsync", "effective"),
        ("pinned_num_register_threads:8", "effective"),
    ],
)
def test_each_option_is_judged_by_its_value_and_release(piece, expected):
    assert verdict({CUDA: piece}, CUDA, "2.10.0", "cuda", piece=piece) == [expected]


def test_a_misspelt_option_names_the_nearest_one():
    (found,) = [
        f for f in audit({CUDA: "max_splitsize_mb:64"}, "2.9.0", "cuda") if f.verdict == "misspelt"
    ]
    assert "max_split_size_mb" in found.says and "stops" in found.says


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a:1,b:2", {"a": "1", "b": "2"}),
        (" a : 1 , r:[64:2, >:4],b:3", {"a": "1", "r": "[64:2,>:4]", "b": "3"}),
        ("", {}),
        ("r:[64:2", {"r": "[64:2"}),
        (",,a", {"a": ""}),
    ],
)
def test_an_allocator_text_is_split_as_torch_splits_it(text, options):
    assert dict(parts(text)) == options


@pytest.mark.parametrize(
    ("name", "torch", "build", "expected"),
    [
        (PLAIN, "2.9.1", "cuda", "ineffective"),
        (PLAIN, "2.10.0", "cuda", "effective"),
        (PLAIN, "2.7.0", "rocm", "ineffective"),
        (HIP, "2.5.1", "rocm", "effective"),
        (HIP, "2.12.0", "cuda", "effective"),
        (HIP, "2.9.0", "cuda", "ineffective"),
        (HIP, "2.6.0", "cuda", "ineffective"),
        (CUDA, "2.6.0", "rocm", "unknown"),
        (CUDA, "2.8.0", "rocm", "effective"),
        (CUDA, "2.9.0", "cuda", "effective"),
        (CUDA, "2.9.0", "cpu", "ineffective"),
        (PLAIN, "", "cuda", "unknown"),
    ],
)
def test_which_name_is_read_depends_on_the_release(name, torch, build, expected):
    assert verdict({name: "max_split_size_mb:128"}, name, torch, build) == [expected]


@pytest.mark.parametrize(
    ("environ", "build", "winner", "shadowed"),
    [
        ({CUDA: BOTH, PLAIN: EXPAND}, "cuda", CUDA, [PLAIN]),
        ({CUDA: BOTH, HIP: EXPAND, PLAIN: EXPAND}, "rocm", CUDA, [HIP, PLAIN]),
        ({HIP: BOTH, PLAIN: EXPAND}, "rocm", HIP, [PLAIN]),
        ({CUDA: "", PLAIN: EXPAND}, "cuda", CUDA, [PLAIN]),
    ],
)
def test_the_cuda_name_wins_over_hip_over_plain_and_empty_counts_as_set(
    environ, build, winner, shadowed
):
    found = audit(environ, "2.13.0+rocm7.0" if build == "rocm" else "2.13.0", build)
    assert sorted(f.name for f in found if f.verdict == "shadowed") == sorted(shadowed)
    assert {f.name for f in found if "max_split" in f.value and f.value != environ.get(f.name)} <= {
        winner
    }
    assert all(winner in f.says for f in found if f.verdict == "shadowed")
    if not environ[winner]:
        assert verdict(environ, winner, "2.13.0", build) == ["ineffective"]


def test_a_name_of_which_it_is_not_known_whether_it_is_read_shadows_nothing_for_certain():
    assert verdict({CUDA: EXPAND, HIP: "max_split_size_mb:64"}, HIP, "2.5.1", "rocm") == ["unknown"]


def test_a_name_that_is_not_read_shadows_nothing():
    assert verdict({PLAIN: EXPAND, CUDA: "max_split_size_mb:64"}, PLAIN, "2.9.0", "cuda") == [
        "ineffective"
    ]


def test_the_release_that_calls_its_only_name_deprecated_is_answered():
    found = audit({CUDA: EXPAND}, "2.9.1+cu128", "cuda")
    assert any("deprecated" in f.says and f.verdict == "effective" for f in found)


@pytest.mark.parametrize(
    ("name", "value", "torch", "build", "expected"),
    [
        (NO_HIP, "0", "2.4.1", "rocm", "contradictory"),
        (NO_HIP, "1", "2.4.1", "rocm", "debug_only"),
        (NO_HIP, "", "2.3.0", "rocm", "contradictory"),
        (NO_HIP, "0", "2.5.0", "rocm", "contradictory"),
        (NO_HIP, "0", "2.6.0", "rocm", "contradictory"),
        (NO_CUDA, "0", "2.6.0", "cuda", "contradictory"),
        (NO_HIP, "0", "2.7.0", "rocm", "ineffective"),
        (NO_HIP, "1", "2.9.0", "rocm", "debug_only"),
        (NO_HIP, "yes", "2.9.0", "rocm", "ineffective"),
        (NO_HIP, "1", "2.5.1", "cuda", "ineffective"),
        (NO_HIP, "1", "2.12.0", "cuda", "debug_only"),
        (NO_CUDA, "0", "2.4.0", "cuda", "contradictory"),
        (NO_CUDA, "no", "2.2.0", "cuda", "debug_only"),
        (NO_CUDA, "0", "2.7.0", "cuda", "ineffective"),
        (NO_CUDA, "1", "2.4.0", "rocm", "unknown"),
        (NO_HIP, "0", "", "rocm", "unknown"),
    ],
)
def test_a_disabled_cache_is_told_by_release_and_value(name, value, torch, build, expected):
    assert expected in verdict({name: value}, name, torch, build)
    assert len(verdict({name: value}, name, torch, build)) == 1 or not torch


@pytest.mark.parametrize(
    ("value", "torch", "expected"),
    [("1", "2.8.0", True), ("0", "2.4.0", True), ("0", "2.8.0", False)],
)
def test_options_beside_a_disabled_cache_contradict_it(value, torch, expected):
    found = verdict({HIP: "max_split_size_mb:256", NO_HIP: value}, HIP, torch)
    assert ("contradictory" in found) == expected


@pytest.mark.parametrize(
    ("name", "value", "build", "gfx", "expected"),
    [
        ("HSA_XNACK", "1", "rocm", "gfx1100", ["unsupported"]),
        ("HSA_XNACK", "1", "rocm", "gfx1030", ["unsupported"]),
        ("HSA_XNACK", "1", "rocm", "gfx90a", ["effective"]),
        ("HSA_XNACK", "1", "rocm", "", ["unknown"]),
        ("HSA_XNACK", "on", "rocm", "gfx1100", ["ineffective"]),
        ("HSA_XNACK", "1", "cuda", "gfx1100", ["ineffective"]),
        ("GPU_MAX_ALLOC_PERCENT", "100", "rocm", "", ["ineffective"]),
        ("GPU_SINGLE_ALLOC_PERCENT", "60", "rocm", "", ["effective"]),
        ("HSA_OVERRIDE_GFX_VERSION", "11.0.0", "rocm", "gfx1151", ["dangerous"]),
        ("HSA_OVERRIDE_GFX_VERSION", "10.3.0", "rocm", "gfx1031", ["unknown"]),
        ("HSA_OVERRIDE_GFX_VERSION_1", "11.0.0", "rocm", "gfx1151", ["dangerous"]),
        ("PYTORCH_ROCM_ARCH", "gfx1100;gfx1151", "rocm", "", ["ineffective"]),
        ("MIOPEN_LOG_LEVEL", "4", "rocm", "", ["ineffective"]),
        ("MIOPEN_DISABLE_CACHE", "1", "rocm", "", ["debug_only"]),
        ("AMD_SERIALIZE_KERNEL", "0", "rocm", "", ["ineffective"]),
        ("AMD_SERIALIZE_KERNEL", "9", "rocm", "", ["ineffective"]),
        ("HIP_LAUNCH_BLOCKING", "0", "rocm", "", ["ineffective"]),
        ("CUDA_VISIBLE_DEVICES", "", "cuda", "", ["effective"]),
        ("NVIDIA_VISIBLE_DEVICES", "all", "rocm", "", ["ineffective"]),
        ("HIP_HIDDEN_FREE_MEM", "500", "rocm", "", ["effective"]),
        ("HSA_ENABLE_SDMA", "0", "cpu", "", ["ineffective"]),
    ],
)
def test_a_variable_of_the_compute_stack_is_judged_for_build_and_chip(
    name, value, build, gfx, expected
):
    assert verdict({name: value}, name, "2.9.0", build, gfx) == expected


def test_visibility_variables_are_judged_together():
    both = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1,0"}
    found = {(f.name, f.verdict): f.says for f in audit(both, "2.9.0", "rocm")}
    assert ("CUDA_VISIBLE_DEVICES", "shadowed") in found and "from 0 again" in found[
        "HIP_VISIBLE_DEVICES", "effective"
    ]
    (hidden,) = audit({"CUDA_VISIBLE_DEVICES": "-1"}, "2.9.0", "cuda")
    assert "hides every GPU" in hidden.says


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PYTORCH_HIP_ALOC_CONF", HIP),
        ("HSA_OVERIDE_GFX_VERSION", "HSA_OVERRIDE_GFX_VERSION"),
        ("HIP_VISIBLE_DEVICE", "HIP_VISIBLE_DEVICES"),
        ("PYTORCH_CUDA_ALLOC_CONFIG", CUDA),
        ("pytorch_cuda_alloc_conf", CUDA),
        ("PYTORCH_NO_HIP_MEMORY_CACHE", NO_HIP),
    ],
)
def test_a_misspelt_name_is_found_with_the_nearest_real_one(name, near):
    (found,) = audit({name: "1"}, "2.9.0", "rocm")
    assert found.verdict == "misspelt" and near in found.says


@pytest.mark.parametrize(
    "name",
    [
        *sorted(OTHER_NAMES),
        "PATH",
        "HOME",
        *sorted(QUIET),
        "HSA_SOMETHING_NEW",
        "GPU_NAME",
        "CUDA_ROOT",
    ],
)
def test_a_real_name_that_is_no_concern_is_passed_over(name):
    assert audit({name: "1"}, "2.9.0", "rocm") == ()


def test_an_unknown_memory_variable_of_torch_is_not_called_wrong():
    assert [f.verdict for f in audit({"PYTORCH_FANCY_MEMORY_PLANNER": "1"}, "2.9.0", "cuda")] == [
        "unknown"
    ]


# What is said of a setting's moment, and whether that is too late.
@pytest.mark.parametrize(
    ("name", "text", "value", "late"),
    [
        (CUDA, EXPAND + " (second attempt)", EXPAND, False),
        (CUDA, EXPAND + " (set after the first CUDA allocation)", EXPAND, True),
        (CUDA, EXPAND + " (set after importing torch)", EXPAND, False),
        (CUDA, "max_split_size_mb:64, set in .bashrc", "", False),
        (CUDA, "max_split_size_mb:64 in the second run", "max_split_size_mb:64", False),
        (
            CUDA,
            "max_split_size_mb: 64, expandable_segments: True",
            "max_split_size_mb: 64, expandable_segments: True",
            False,
        ),
        (CUDA, "backend:cudaMallocAsync (set in Python)", "backend:cudaMallocAsync", True),
        (CUDA, EXPAND + ",backend:native (after import torch)", EXPAND + ",backend:native", True),
        ("CUDA_VISIBLE_DEVICES", "2 (set in Python after importing torch)", "2", True),
        ("CUDA_VISIBLE_DEVICES", "2 (in the shell)", "2", False),
        ("CUDA_VISIBLE_DEVICES", "0,1 as the job says", "0,1", False),
        ("CUDA_VISIBLE_DEVICES", "unset at first", None, False),
        (NO_CUDA, "1 (after the first allocation)", "1", True),
        ("NVIDIA_VISIBLE_DEVICES", "all (set in my code)", "all", True),
        ("MY_OWN", "x (after import torch)", "x", False),
    ],
)
def test_a_remark_behind_a_posted_value_is_no_part_of_it_and_may_say_that_it_was_late(
    name, text, value, late
):
    found = audit({name: text}, "2.9.0", "cuda", posted=True)
    told = [f for f in found if f.verdict == "too_late"]
    assert bool(told) == late and all(
        f.hearsay and f.carries_cause and f.remark in text for f in told
    )
    assert not any(f.verdict == "misspelt" for f in found)
    if value:
        assert value_and_remark(name, text)[0] == value
    if value is None:
        assert found == ()


def test_a_live_value_is_taken_as_it_is():
    piece = "expandable_segments:True (second attempt)"
    found = audit({CUDA: piece}, "2.8.0", "cuda")
    assert [f.verdict for f in found] == ["misspelt"] and "stops" in found[0].says


def test_a_setting_changed_after_the_start_is_told():
    code = """import os
os.environ["HSA_XNACK"] = "1"
import torch
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
# os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "0"
x = torch.zeros(1).cuda()
os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'] = '1'
%env PYTORCH_HIP_ALLOC_CONF=expandable_segments:True
!export HSA_ENABLE_SDMA=0
os.environ["HOME"] = "/x"
"""
    found = {f.name: f for f in late_assignments(code)}
    assert sorted(found) == sorted(["CUDA_VISIBLE_DEVICES", NO_CUDA, HIP, "HSA_ENABLE_SDMA"])
    assert {f.verdict for name, f in found.items() if name != "HSA_ENABLE_SDMA"} == {"too_late"}
    assert (
        "line 4" in found["CUDA_VISIBLE_DEVICES"].says
        and "the import" in found["CUDA_VISIBLE_DEVICES"].says
    )
    assert (
        "first use of the GPU in line 7" in found[NO_CUDA].says
        and "first allocation" in found[NO_CUDA].says
    )
    assert (
        found[HIP].value == "expandable_segments:True"
        and found["HSA_ENABLE_SDMA"].verdict == "ineffective"
    )
    assert all(f.carries_cause and f.why and not f.hearsay for f in found.values())


@pytest.mark.parametrize(
    ("code", "late"),
    [
        (
            "import jax\nos.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'",
            ["XLA_PYTHON_CLIENT_PREALLOCATE"],
        ),
        ("import torch\nos.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'\nimport jax", []),
        (
            "import tensorflow as tf\nos.putenv('TF_FORCE_GPU_ALLOW_GROWTH', 'true')",
            ["TF_FORCE_GPU_ALLOW_GROWTH"],
        ),
        ("os.environ['LD_LIBRARY_PATH'] = '/x'", ["LD_LIBRARY_PATH"]),
        ("print('os.environ is read')", []),
        ("", []),
    ],
)
def test_what_counts_as_late_is_the_program_that_reads_the_variable(code, late):
    assert [f.name for f in late_assignments(code)] == late


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "import torch",
                "os.environ['",
                "HSA_XNACK",
                "']='1'",
                ".cuda()",
                "\n",
                "%env ",
                "=",
                "!export ",
                CUDA,
                "(after import)",
                "unset",
                " ",
            ]
        ),
        max_size=25,
    ).map("".join),
    st.sampled_from([CUDA, "HSA_XNACK"]),
)
def test_no_code_and_no_posted_value_makes_it_fail(text, name):
    assert all(f.verdict in ("too_late", "ineffective") for f in late_assignments(text))
    assert {f.verdict for f in audit({name: text}, "2.9.0", "", posted=True)} <= set(VERDICTS)


@pytest.mark.parametrize(
    ("environ", "torch", "build", "verdict_", "cause"),
    [
        ({NO_CUDA: "0"}, "2.6.0", "cuda", "contradictory", "config-ineffective"),
        ({NO_CUDA: "0"}, "2.8.0", "cuda", "ineffective", ""),
        ({PLAIN: EXPAND}, "2.9.1", "cuda", "ineffective", "config-ineffective"),
        ({CUDA: EXPAND}, "2.9.1", "cuda", "effective", ""),
        ({HIP: EXPAND}, "2.8.0+rocm6.4", "rocm", "unsupported", "expandable-segments-unsupported"),
        ({CUDA: BOTH}, "2.9.1", "cuda", "dangerous", "expandable-segments-unsupported"),
        ({CUDA: "max_split_size:64"}, "2.9.1", "cuda", "misspelt", "config-ineffective"),
        (
            {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"},
            "2.9.1+rocm7.0",
            "rocm",
            "dangerous",
            "unsupported-gfx",
        ),
        ({"AMD_SERIALIZE_KERNEL": "3"}, "2.9.1+rocm7.0", "rocm", "debug_only", ""),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "True"}, "", "", "misspelt", "config-ineffective"),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "FALSE"}, "", "", "contradictory", "config-ineffective"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "90"}, "", "", "misspelt", "config-ineffective"),
        ({"GGML_CUDA_ENABLE_UNIFIED_MEMORY": "0"}, "", "", "contradictory", "config-ineffective"),
        ({"OLLAMA_GPU_OVERHEAD": "512"}, "", "", "misspelt", "config-ineffective"),
        ({"OLLAMA_GPU_OVERHEAD": "536870912"}, "", "", "effective", ""),
        ({"VLLM_GPU_MEMORY_UTILIZATION": "0.8"}, "", "", "ineffective", "config-ineffective"),
    ],
)
def test_a_setting_says_whether_it_can_be_the_cause_of_a_failure_alone(
    environ, torch, build, verdict_, cause
):
    gfx = "gfx1151" if "HSA_OVERRIDE_GFX_VERSION" in environ else ""
    found = [f for f in audit(environ, torch, build, gfx) if f.verdict == verdict_]
    assert (
        found
        and found[0].cause == cause
        and found[0].carries_cause == bool(cause) == bool(found[0].why)
    )


def test_where_only_the_cuda_builds_answer_is_known_it_stands_for_a_build_that_was_not_said():
    (found,) = audit({NO_CUDA: "0"}, "2.5.1", "")
    assert found.verdict == "contradictory" and found.carries_cause and "CUDA build" in found.says
    assert verdict({CUDA: EXPAND}, CUDA, "2.8.0", "") == ["unknown"]
    assert {f.verdict for f in audit({NO_CUDA: "0"}, "", "")} == {"unknown"}


CONF_PIECES = {
    name: f"per_process_memory_fraction:{share}"
    for name, share in zip(CONF_NAMES, (0.9, 0.5, 0.2), strict=True)
}


@pytest.mark.parametrize("build", ["cuda", "rocm"])
@pytest.mark.parametrize("minor", range(4, 16))
def test_the_fraction_in_force_is_the_one_that_the_audit_calls_effective(minor, build):
    torch = f"2.{minor}.0" + ("+rocm7.1" if build == "rocm" else "")
    for count in range(1, 8):
        environ = {
            name: CONF_PIECES[name] for bit, name in enumerate(CONF_NAMES) if count >> bit & 1
        }
        effective = [
            (f.name, f.value)
            for f in audit(environ, torch, build)
            if f.verdict == "effective" and "fraction" in f.value and "deprecated" not in f.says
        ]
        value, name, _ = memory_fraction(environ, torch, build)
        expected = [] if value is None else [(name, f"per_process_memory_fraction:{value:g}")]
        assert effective == expected, (environ, torch)
        assert (value is None) == (
            minor < 10 or not set(environ) & set(behaviour(torch, build).own_conf_names)
        )


def test_a_fraction_of_a_string_that_torch_refuses_holds_nothing():
    value, name, why = memory_fraction(
        {CUDA: "per_process_memory_fraction:0.5,max_split_size_mb:3"}, "2.11.0", "cuda"
    )
    assert (value, name) == (None, CUDA) and "too small" in why
    assert memory_fraction({HIP: "per_process_memory_fraction:0.5"}) == (0.5, HIP, "")


RELEASES = [f"2.{minor}.0" for minor in range(4, 16)]
BUILDS = ("cuda", "rocm7.1")
GOOD = {
    "flag": "True",
    "size": "64",
    "number": "8",
    "share": "0.5",
    "open share": "0.5",
    "divisions": "4",
    "text": "1.5",
    "list": "[small:0.5]",
    "backend": "native",
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("torch", RELEASES)
def test_replay_and_audit_give_one_answer_on_every_option_of_every_release_and_build(torch, build):
    rules, kind = behaviour(torch, build), build[:4]
    name, compared = rules.names_for("backend")[0], 0
    for option in OPTIONS.values():
        for value in (GOOD[option.kind], "nonsense"):
            piece = f"{option.name}:{value}"
            try:
                parse(piece, rules)
                taken = True
            except SettingsError:
                taken = False
            local = f"{torch}+{build}" if kind == "rocm" else torch
            found = [f for f in audit({name: piece}, local, kind) if f.value == piece]
            refused = any("torch stops" in f.says for f in found)
            unknown = {f.verdict for f in found} & {"unknown", "misspelt"} and not (
                option.name == "expandable_segments" and "2.11" <= torch[:4] <= "2.12"
            )
            assert found and taken != refused and (not unknown or refused), (piece, found)
            compared += 1
    assert compared == 2 * 22


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("torch", RELEASES)
def test_replay_and_audit_read_the_same_variable(torch, build):
    rules, kind = behaviour(torch, build), build[:4]
    for name in CONF_NAMES:
        verdicts = set(
            verdict(
                {name: "max_split_size_mb:64"},
                name,
                f"{torch}+{build}" if kind == "rocm" else torch,
                kind,
            )
        )
        expected = {"effective"} if name in rules.conf_names else {"ineffective", "unknown"}
        assert verdicts and verdicts <= expected, (name, verdicts)


NAMES = st.one_of(st.sampled_from([*VARIABLES, *PREFIXES]), st.text("ABCHIPSXYZ_", max_size=20))
PIECES = [*OPTIONS] + [":", ",", "[", "True", "0.5", "64"]
VALUES = st.one_of(
    st.text(max_size=30), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
)


@settings(max_examples=150, deadline=None)
@given(
    environ=st.dictionaries(NAMES, VALUES, max_size=6),
    torch=st.one_of(st.sampled_from(["2.4.1", "2.13.0+rocm7.14"]), st.text()),
    build=st.sampled_from(["cuda", "rocm", "cpu", ""]),
    gfx=st.sampled_from(["", "gfx1100", "gfx90a"]),
)
def test_no_environment_makes_the_audit_fail_and_every_known_name_is_answered(
    environ, torch, build, gfx
):
    found = audit(environ, torch, build, gfx)
    assert {f.verdict for f in found} <= set(VERDICTS)
    assert {f.name for f in found} >= set(environ) & {setting.name for setting in SETTINGS}
    assert list(found) == sorted(
        found, key=lambda f: (list(VERDICTS).index(f.verdict), f.name, f.value, f.says)
    )


CANDIDATES = (
    "20",
    "True",
    "1",
    "0",
    "4",
    "7",
    "12",
    "24",
    "50",
    "0.5",
    "yes",
    "-1",
    "11.0.0",
    "",
    "cudaMallocAsync",
    "false",
    "max_split_size_mb:64",
    "q8_0",
)


def before(release):
    """A release just before one."""
    major, minor = map(int, release.split("."))
    return f"{major}.{minor - 1}" if minor else f"{major - 1}.4"


def value_of(rule, fits):
    """A value that the rule is about, or is not about; for an option one that torch takes."""
    forms = [
        option.form
        for option in OPTIONS.values()
        if rule.name == "option:" + option.name and not rule.value
    ]
    row = VARIABLES.get(rule.name)
    forms += [row.form] if row is not None and row.otherwise else []
    form = rule.value or (forms or [".*"])[0]
    return next(
        (text for text in (*CANDIDATES, "3") if (re.fullmatch(form, text) is not None) == fits),
        None,
    )


def scene(rule, fits=True):
    """An environment, a torch, a build and a chip on which a rule holds; but for its value, where ``fits`` is false."""
    value = value_of(rule, fits)
    torch = f"{rule.since or (before(rule.below) if rule.below else '2.13')}.1"
    rocm = rule.rocm_since or (before(rule.rocm_below) if rule.rocm_below else "")
    build = (
        rule.build
        or {HIP: "rocm"}.get(rule.name)
        or next((s.build for s in SETTINGS if s.name == rule.name), "")
        or "cuda"
    )
    name, option = rule.name, rule.name.removeprefix("option:")
    environ = {}
    if rule.name.startswith("option:"):
        name = HIP if build == "rocm" else CUDA
        value = f"{option}:{value}"
    beside, wanted = rule.beside or ("", "")
    if beside == "caching":
        environ[NO_HIP if build == "rocm" else NO_CUDA] = "1"
    elif wanted and beside.startswith("option:"):
        value += f",{beside[7:]}:{next(text for text in ('64', '1') if re.fullmatch(wanted, text))}"
    elif wanted:
        environ[beside] = "1"
    return (
        {**environ, name: value},
        name,
        torch + (f"+rocm{rocm}" if rocm else ""),
        build,
        (rule.gfx or ("",))[0],
    )


def says(rule, environ, torch, build, gfx):
    return any(
        f.says == rule.says and f.verdict == rule.verdict for f in audit(environ, torch, build, gfx)
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}-{rule.verdict}-{rule.value}")
def test_every_rule_holds_under_its_conditions_and_not_without_one_of_them(rule):
    environ, name, torch, build, gfx = scene(rule)
    assert says(rule, environ, torch, build, gfx), (environ, torch, build, gfx)
    others = [
        other
        for other in RULES
        if other.name == rule.name and other.says == rule.says and other != rule
    ]
    if rule.build and not others:
        assert not says(rule, environ, torch, "cuda" if build == "rocm" else "rocm", gfx)
    if rule.gfx:
        assert not says(rule, environ, torch, build, "gfx1201")
    if rule.since and not others:
        assert not says(rule, environ, before(rule.since) + ".0+rocm7.14", build, gfx)
    if rule.below and not others:
        assert not says(rule, environ, rule.below + ".0+rocm7.14", build, gfx)
    if rule.rocm_since and not others:
        assert not says(rule, environ, torch.split("+")[0] + "+rocm6.4", build, gfx)
    if rule.value and value_of(rule, False) is not None:
        assert not says(rule, scene(rule, False)[0], torch, build, gfx)
    if rule.beside and rule.beside[1]:
        alone = {name: environ[name].partition(f",{rule.beside[0][7:]}:")[0]}
        assert not says(rule, alone, torch, build, gfx)
