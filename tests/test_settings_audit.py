"""Each setting is judged for the build, the release and the chip at hand, and what is not known stays unknown.

The rows of data/settings.json: what is ``set`` on which torch, build and chip, and the verdicts on a name, or on one ``piece`` of
an allocator text: all of them (``verdicts``), one that is among them (``has``), ones that are not (``lacks``); ``any`` piece of
the name counts; what they say (``says``, ``silent``), and the ``cause`` that it can be alone.
"""

import json
import re
from pathlib import Path

import pytest
from data_rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look.environment import is_allowed
from helpers.settings import table
from helpers.settings.allocator_text import SettingsError, parts
from helpers.settings.assignments import late_assignments
from helpers.settings.audit import audit
from helpers.settings.in_force import memory_fraction, parse
from helpers.settings.releases import behaviour
from helpers.settings.table import (
    CONF_NAMES,
    FINDINGS,
    NO_CACHE,
    OPTIONS,
    RULES,
    VARIABLES,
    VERDICTS,
)

DATA = json.loads((Path(__file__).parent / "data" / "settings.json").read_text())
CUDA, HIP, PLAIN = CONF_NAMES
NO_CUDA, NO_HIP = NO_CACHE
QUIET = {*table.HOST_NAMES, "LD_LIBRARY_PATH", "LD_PRELOAD"}
SETTINGS = [variable for variable in VARIABLES.values() if variable.name not in QUIET]
TORCHES = [f"2.{minor}.0" for minor in range(5, 16)]
EACH_BUILD = pytest.mark.parametrize("build", ["cuda", "rocm7.1"])
EACH_TORCH = pytest.mark.parametrize("torch", TORCHES)


@pytest.mark.parametrize("row", DATA["rows"], ids=lambda row: row["of"])
def test_a_setting_is_judged_for_build_release_and_chip(row):
    found = audit(row["set"], row["torch"], row["build"], row.get("gfx", ""))
    piece = row.get("piece", row["set"][row["name"]])
    here = [f for f in found if f.name == row["name"] and (row.get("any") or f.value == piece)]
    verdicts = {f.verdict for f in here}
    assert sorted(verdicts) == row.get("verdicts", sorted(verdicts))
    assert row.get("has", "") in {*verdicts, ""}
    assert not verdicts & set(row.get("lacks", "").split())
    said = " ".join(f.says for f in here)
    assert not [text for text in row.get("says", ()) if text not in said]
    assert not [text for text in row.get("silent", ()) if text in said]
    if "cause" in row:
        first = next(f for f in here if f.verdict == row["has"])
        assert first.cause == row["cause"]
        assert bool(first.cause) == bool(row["cause"]) == bool(first.why)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_every_setting_says_what_it_is_where_no_rule_holds(setting):
    found = audit({setting.name: "7"}, "2.13.0", setting.build or "cuda")
    assert found and all(f.name == setting.name and f.says and f.source for f in found)
    taken = not setting.verdict_otherwise or re.fullmatch(setting.form, "7")
    ruled = any(rule.name == setting.name for rule in RULES) or setting.name in CONF_NAMES
    if taken and not ruled:
        assert [(f.verdict, setting.says in f.says) for f in found] == [(setting.verdict, True)]


def test_every_row_of_the_tables_is_whole():
    assert not table.OTHER_NAMES & set(VARIABLES)
    for rule in RULES:
        assert rule.verdict in VERDICTS and rule.says and rule.source
        assert rule.name.removeprefix("option:") in {**VARIABLES, **OPTIONS}
        assert all(map(re.compile, (rule.value, *rule.beside[1:])))
    for variable in VARIABLES.values():
        assert variable.read and variable.source and variable.read_by, variable
        assert {variable.verdict, variable.verdict_otherwise} <= {
            "",
            *VERDICTS,
        } and variable.verdict
        assert variable.moment in table.MOMENTS and re.compile(variable.form)
        if variable.verdict_otherwise:
            assert variable.form and variable.expected
    for option in OPTIONS.values():
        assert option.says and option.source and option.expected and re.compile(option.form), option


def test_every_row_of_what_else_is_said_is_whole_and_in_use():
    code = "".join(path.read_text() for path in Path(table.__file__).parent.glob("*.py"))
    for kind, row in FINDINGS.items():
        assert set(row) <= {"verdict", "says", "source", "cause", "why"}, kind
        assert row["says"] and row["source"] and ("cause" in row) <= ("why" in row), kind
        assert row["verdict"] in (*VERDICTS, "{verdict}")
        if not kind.endswith(" programs"):
            assert f'"{kind}"' in code, kind


def test_what_can_be_a_cause_says_why_and_what_cannot_names_none():
    for row in (*RULES, *VARIABLES.values()):
        usual = VERDICTS[row.verdict]
        if row.cause:
            assert row.why or usual["why"], row
    assert all(bool(row["cause"]) == bool(row["why"]) for row in VERDICTS.values())


def test_a_capture_keeps_every_audited_name_of_the_gpu_stacks():
    assert [s.name for s in SETTINGS if not is_allowed(s.name)] == []


@pytest.mark.parametrize(
    "text, options", read_rows("an allocator text is split as torch splits it")
)
def test_an_allocator_text_is_split_as_torch_splits_it(text, options):
    assert dict(parts(text)) == options


@pytest.mark.parametrize(
    "name",
    [*sorted(table.OTHER_NAMES), *sorted(QUIET), *"PATH HOME HSA_NEW GPU_NAME CUDA_ROOT".split()],
)
def test_a_real_name_that_is_no_concern_is_passed_over(name):
    assert audit({name: "1"}, "2.9.0", "rocm") == ()


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
    says = {name: one.says for name, one in found.items()}
    assert re.search("line 4.*the import", says["CUDA_VISIBLE_DEVICES"])
    assert re.search("first use of the GPU in line 7.*first allocation", says[NO_CUDA])
    assert found[HIP].value == "expandable_segments:True"
    assert found["HSA_ENABLE_SDMA"].verdict == "ineffective"
    assert all(f.cause and f.why for f in found.values())


@pytest.mark.parametrize(
    "code, late", read_rows("what counts as late is the program that reads the variable")
)
def test_what_counts_as_late_is_the_program_that_reads_the_variable(code, late):
    assert [f.name for f in late_assignments(code)] == late


CODE = read_rows("settings_audit code")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([*CODE, CUDA, "(after import)", "unset", " "]), max_size=25),
    st.sampled_from([CUDA, "HSA_XNACK"]),
)
def test_no_code_and_no_value_makes_it_fail(pieces, name):
    text = "".join(pieces)
    verdicts = {f.verdict for f in late_assignments(text)}
    assert verdicts <= {"too_late", "ineffective", "misspelt", "unknown"}
    assert {f.verdict for f in audit({name: text}, "2.9.0", "")} <= set(VERDICTS)


FRACTION = "per_process_memory_fraction"
SHARES = {name: f"{FRACTION}:0.{tenth}" for tenth, name in enumerate(CONF_NAMES, 2)}


@EACH_BUILD
@EACH_TORCH
def test_the_fraction_in_force_is_the_one_that_the_audit_calls_effective(torch, build):
    rules = behaviour(torch, build)
    kind = build[:4]
    local = f"{torch}+{build}" if kind == "rocm" else torch
    for count in range(1, 8):
        environ = {n: SHARES[n] for bit, n in enumerate(CONF_NAMES) if count >> bit & 1}
        found = [f for f in audit(environ, local, kind) if f.verdict == "effective"]
        named = [f for f in found if "fraction" in f.value and "deprecated" not in f.says]
        value, name = memory_fraction(environ, local, kind)
        expected = [] if value is None else [(name, f"{FRACTION}:{value:g}")]
        assert [(f.name, f.value) for f in named] == expected, (environ, torch)
        reads = set(environ) & set(rules.own_conf_names)
        assert (value is None) == (rules.release < (2, 10) or not reads)


def test_a_fraction_of_a_string_that_torch_refuses_holds_nothing():
    refused = {CUDA: "per_process_memory_fraction:0.5,max_split_size_mb:3"}
    assert memory_fraction(refused, "2.11.0", "cuda") == (None, CUDA)
    assert memory_fraction({HIP: "per_process_memory_fraction:0.5"}) == (0.5, HIP)


GOOD = {"flag": "True", "size": "64", "number": "8", "share": "0.5", "open share": "0.5"}
GOOD |= {"divisions": "4", "reserve": "1.5", "list": "[small:0.5]", "backend": "native"}


@EACH_BUILD
@EACH_TORCH
def test_replay_and_audit_give_one_answer_on_every_option_of_every_release_and_build(torch, build):
    rules = behaviour(torch, build)
    kind = build[:4]
    name = rules.names_for("backend")[0]
    local = f"{torch}+{build}" if kind == "rocm" else torch
    assert len(OPTIONS) == 22
    for option in OPTIONS.values():
        for value in (GOOD[option.kind], "nonsense"):
            piece = f"{option.name}:{value}"
            taken = True
            try:
                parse(piece, rules)
            except SettingsError:
                taken = False
            found = [f for f in audit({name: piece}, local, kind) if f.value == piece]
            refused = any("torch stops" in f.says for f in found)
            open_here = option.name == "expandable_segments" and torch[:4] == "2.11"
            unknown = {f.verdict for f in found} & {"unknown", "misspelt"} and not open_here
            assert found and taken != refused and (not unknown or refused), (piece, found)


@EACH_BUILD
@EACH_TORCH
def test_replay_and_audit_read_the_same_variable(torch, build):
    local = f"{torch}+{build}" if build != "cuda" else torch
    for name in CONF_NAMES:
        verdicts = {f.verdict for f in audit({name: "max_split_size_mb:64"}, local, build[:4])}
        read = name in behaviour(torch, build).conf_names
        assert verdicts and verdicts <= ({"effective"} if read else {"ineffective", "unknown"})


NAMES = st.sampled_from([*VARIABLES, *table.PREFIXES]) | st.text("ABCHIPSXYZ_", max_size=20)
PIECES = st.sampled_from([*OPTIONS, ":", ",", "[", "True", "0.5", "64"])
VALUES = st.text(max_size=30) | st.lists(PIECES, max_size=12).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    environ=st.dictionaries(NAMES, VALUES, max_size=6),
    torch=st.one_of(st.sampled_from(["2.3.1", "2.13.0+rocm7.14"]), st.text()),
    build=st.sampled_from(["cuda", "rocm", "cpu", ""]),
    gfx=st.sampled_from(["", "gfx1100", "gfx90a"]),
)
def test_no_environment_makes_the_audit_fail_and_every_known_name_is_answered(
    environ, torch, build, gfx
):
    found = audit(environ, torch, build, gfx)
    assert {f.verdict for f in found} <= set(VERDICTS)
    assert {f.name for f in found} >= set(environ) & {setting.name for setting in SETTINGS}
    order = [(list(VERDICTS).index(f.verdict), f.name, f.value, f.says) for f in found]
    assert order == sorted(order)


CANDIDATES = "20 True 1 0 4 7 12 24 50 0.5 yes -1 11.0.0 9.0.0 10.1.0 10.3.0 12.0.0 cudaMallocAsync false q8_0".split()
CANDIDATES += ["", "max_split_size_mb:64", "3"]


def before(release):
    """A release just before one."""
    major, minor = map(int, release.split("."))
    return f"{major}.{minor - 1}" if minor else f"{major - 1}.4"


def value_of(rule, fits):
    """A value that the rule is about, or is not about; for an option one that torch takes."""
    options = [one for one in OPTIONS.values() if rule.name == f"option:{one.name}"]
    forms = [] if rule.value else [one.form for one in options]
    row = VARIABLES.get(rule.name)
    forms += [row.form] if row is not None and row.verdict_otherwise else []
    form = rule.value or (forms or [".*"])[0]
    return next((t for t in CANDIDATES if (re.fullmatch(form, t) is not None) == fits), None)


def scene(rule, fits=True):
    """An environment, a torch, a build and a chip on which a rule holds; but for its value, where ``fits`` is false."""
    value = value_of(rule, fits)
    torch = f"{rule.since or (before(rule.below) if rule.below else '2.13')}.1"
    rocm = rule.rocm_since or (before(rule.rocm_below) if rule.rocm_below else "")
    own = next((s.build for s in SETTINGS if s.name == rule.name), "")
    build = rule.build or {HIP: "rocm"}.get(rule.name) or own or "cuda"
    name = rule.name
    option = rule.name.removeprefix("option:")
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
    torch += f"+rocm{rocm}" if rocm else ""
    return {**environ, name: value}, name, torch, build, (rule.gfx or ("",))[0]


def says(rule, environ, torch, build, gfx):
    found = audit(environ, torch, build, gfx)
    return any((f.says, f.verdict) == (rule.says, rule.verdict) for f in found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}-{rule.verdict}-{rule.value}")
def test_every_rule_holds_under_its_conditions_and_not_without_one_of_them(rule):
    environ, name, torch, build, gfx = scene(rule)
    assert says(rule, environ, torch, build, gfx), (environ, torch, build, gfx)
    same = [other for other in RULES if (other.name, other.says) == (rule.name, rule.says)]
    others = [other for other in same if other != rule]
    if rule.build and not others:
        assert not says(rule, environ, torch, "cuda" if build == "rocm" else "rocm", gfx)
    if rule.gfx:
        other_chip = "gfx908" if rule.gfx == ("gfx12",) else "gfx1201"
        assert not says(rule, environ, torch, build, other_chip)
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
