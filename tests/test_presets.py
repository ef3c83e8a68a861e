"""Presets: sourceable by a shell, readable by a trial, true to the audit of their settings."""

import json
import subprocess
import sys

import pytest
from data_rows import read_rows

from helpers.settings import presets
from helpers.settings.presets import FIELDS, PresetError, findings, load, names, parse
from helpers.settings.table import VERDICTS
from helpers.tell.claims import claims

HEAD = "# why: w\n# for: f\n# since: s\n# danger: d\n# status: {}\n# checked: torch 2.9.1+rocm6.3, rocm, gfx1100\n"


STATUSES = ("use", "inert", "harmful")
REFUSED = {"use": {*VERDICTS} - {"effective"}, "inert": ("misspelt", "dangerous")}
HARM = ("dangerous", "contradictory", "debug_only", "unsupported")


def lint(preset):
    """What is wrong with a preset, a line each: words missing, names that nothing reads, a status that the audit refutes."""
    optional = ("claims", "only")
    needed = [field for field in FIELDS if field not in optional and not preset.fields.get(field)]
    wrong = [f"no line # {field}:" for field in needed]
    if preset.fields.get("only", "cuda") not in ("cuda", "rocm"):
        wrong.append(f"only {preset.fields['only']}; expected cuda or rocm")
    status = preset.fields.get("status", "")
    if status and status not in STATUSES:
        wrong.append(f"status {status!r}; expected {', '.join(STATUSES)}")
    known = {claim.id for claim in claims()}
    named = preset.fields.get("claims", "").split()
    wrong += [f"claim {ident}: not in env/claims.yaml" for ident in named if ident not in known]
    wrong += [f"{name}: no table of settings knows it" for name in preset.unknown]
    if not preset.environ:
        wrong.append("it sets nothing")
    said = findings(preset)
    refused = REFUSED.get(status, ("misspelt",))
    for one in [one for one in said if one.verdict in refused]:
        what = f"{one.name}={one.value} is {one.verdict} there"
        wrong.append(f"{what}, and the status is {status}: {one.says}")
    if status == "harmful" and not any(one.verdict in HARM for one in said):
        wrong.append("the status is harmful, and the audit finds no harm on its box")
    return wrong


@pytest.mark.parametrize("name", names())
def test_a_bundled_preset_keeps_its_word(name):
    assert lint(load(name)) == []


def test_every_case_study_with_settings_has_its_preset():
    assert {"case-000-allocator", *(f"case-00{n}" for n in range(1, 5))} <= set(names())


def test_a_shell_and_the_trial_read_the_same_from_every_preset():
    show = f"{sys.executable} -S -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    script = "\n".join(f"( . '{presets.FOLDER / name}.env'; {show} )" for name in names())
    path = {"PATH": "/usr/bin:/bin"}
    printed = subprocess.check_output(["sh", "-euc", script], env=path, text=True)
    shells = [json.loads(line) for line in printed.splitlines()]
    assert len(shells) == len(names()) > 25
    for name, environ in zip(names(), shells, strict=True):
        wanted = load(name).environ
        assert wanted and {key: environ[key] for key in wanted} == dict(wanted), name


@pytest.mark.parametrize(
    "line, says", read_rows("a misspelt variable option or value is refused with the right")
)
def test_a_misspelt_variable_option_or_value_is_refused_with_the_right_one(tmp_path, line, says):
    path = tmp_path / "mine.env"
    path.write_text(f"{HEAD.format('use')}export {line}\n")
    with pytest.raises(PresetError, match=says):
        load(path)


def test_an_option_of_the_newest_release_is_no_slip_of_the_pen(tmp_path):
    path = tmp_path / "mine.env"
    option = "expandable_segments:True,expandable_segments_reserve:1.5,pinned_free_catch_all:True"
    path.write_text(f"# checked: torch 2.15.0, cuda\nexport PYTORCH_CUDA_ALLOC_CONF={option}\n")
    assert {one.verdict for one in findings(load(path))} == {"effective"}


def test_a_variable_that_no_table_knows_is_kept_and_named():
    preset = parse(HEAD.format("use") + "export MY_OWN=1\n", "mine")
    assert preset.unknown == ("MY_OWN",) and preset.environ == {"MY_OWN": "1"}
    assert lint(preset) == ["MY_OWN: no table of settings knows it"]


ODD = ["HSA_XNACK=1", "export HSA_XNACK", "export A=1 B=2", "export A=$HOME", "rm -r x"]


@pytest.mark.parametrize("line", [*ODD, "export A='x"])
def test_a_line_that_is_no_plain_assignment_is_refused_with_its_number(line):
    with pytest.raises(PresetError, match="line 2: .*expected export NAME=value"):
        parse(f"# why: w\n{line}\n", "mine")


def test_a_variable_set_twice_is_refused():
    with pytest.raises(PresetError, match="HSA_XNACK is set twice"):
        parse("export HSA_XNACK=1\nexport HSA_XNACK=0\n", "mine")


def test_an_unknown_preset_is_answered_with_those_that_exist():
    with pytest.raises(PresetError, match="cuda-expandable"):
        load("cuda-expandible")


def test_no_preset_is_the_control():
    assert load("none") is load("") is presets.NONE and not presets.NONE.environ


@pytest.mark.parametrize(
    "status, line, said", read_rows("a status that the audit does not bear out is told")
)
def test_a_status_that_the_audit_does_not_bear_out_is_told(status, line, said):
    assert any(said in one for one in lint(parse(f"{HEAD.format(status)}export {line}\n", "mine")))


def test_missing_words_and_unknown_claims_are_told():
    wrong = lint(parse("# claims: 009-01\nexport GPU_MAX_HW_QUEUES=2\n", "mine"))
    assert "no line # danger:" in wrong and "claim 009-01: not in env/claims.yaml" in wrong


def test_a_preset_is_judged_on_the_box_that_is_asked_about():
    preset = load("cuda-expandable")
    assert {one.verdict for one in findings(preset)} == {"effective"}
    other = findings(preset, "2.9.1+rocm6.3", "rocm", "gfx1100")
    assert {one.verdict for one in other} == {"unsupported"}
