"""The catalogue of failures is whole: every name in it is made by something, every entry says what to do; a new one fits in."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest
from changed_boxes import oom

from helpers import judge
from helpers.ground.shapes import CAUSES, seen
from helpers.judge import catalogue
from helpers.judge.case_names import fill
from helpers.judge.catalogue import failures
from helpers.judge.confidence import KIND, weigh_failures
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import CaseEvidence, case_evidence
from helpers.judge.marks import marks
from helpers.judge.next_step import next_step
from helpers.judge.observation import Observation, observation_name
from helpers.judge.observations import observe
from helpers.look import wordings
from helpers.look.relations import RELATIONS
from helpers.tell.prose import typed

JUDGE = Path(catalogue.__file__).parent
RAW = judge.table("failures")
MAKERS = ("make_observation", "_observed", "Observation")
"""The functions that make an observation; its name is their first argument."""
OBSERVING = [
    *sorted(JUDGE.glob("*observation*.py")),
    *sorted(JUDGE.glob("posted_*.py")),
    JUDGE / "marks.py",
    JUDGE / "holders.py",
]
FOR_DISPLAY = {"explained", "missing-library", "went-on", "free:*", "free:* *"}
"""What a verdict only shows as evidence, or what the healthy box's answer lists."""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def literals(node):
    """Every text that an expression can be, where it is made of literals, conditions and sums."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return literals(node.body) | literals(node.orelse)
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "*" for part in node.values]
        return {"".join(map(str, parts))}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        ends = literals(node.right) or {"*"}
        return {left + right for left in literals(node.left) for right in ends}
    return set()


def made_in(path):
    """Every text in a module's code that can be the name of an observation, its f-strings with a star for what they fill in."""
    return texts_of(path.read_text())


def texts_of(code):
    nodes = list(ast.walk(ast.parse(code)))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    known = [node for node in nodes if isinstance(node, ast.expr) and id(node) not in docs]
    return {text for node in known for text in literals(node)}


def called(call):
    """The name of the function or method that is called."""
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "").replace(
        "observed", "_observed"
    )


def called_with_a_literal(path):
    """Only what a maker is called with as a literal: what surely becomes an observation's name."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    makers = [call for call in calls if called(call) in MAKERS and call.args]
    names = [call.args[0] for call in makers]
    names += [row.elts[0] for row in yielded_rows(path)]
    return {text for name in names for text in literals(name)} - {""}


def yielded_rows(path):
    """The tuples that a module yields: in account_observations each begins with a name."""
    if path.name != "account_observations.py":
        return []
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Yield)]


def of_the_grammar():
    rows = wordings.table()
    return {observation_name(row["side"], row["event"]) for row in rows} - {""}


@lru_cache(1)
def producible():
    """Every name that some code or data can produce."""
    names = set(RELATIONS) | of_the_grammar() | {row[0] for row in marks()}
    for path in OBSERVING:
        names |= made_in(path)
    return frozenset(names)


def can_be_made(name, names):
    wild = [one for one in names if "*" in one and 3 < len(one) < 40 and " " not in one]
    forms = [re.escape(one).replace(r"\*", "[a-z-]+") for one in wild]
    return name in names or any(re.fullmatch(form, name) for form in forms)


def names_in(failure):
    """Every observation that an entry speaks of."""
    groups = (*failure.needs, failure.sufficient, failure.proof, failure.strong, failure.weak)
    more = (failure.refuted_by, failure.strong_against, failure.weak_against)
    return {name for group in (*groups, *more) for name in group}


def used():
    """Every name that an entry of the catalogue uses."""
    return {name for failure in failures() for name in names_in(failure)}


# -- every entry ----------------------------------------------------------------------------------
def test_an_entry_has_a_cause_a_kind_a_reading_that_decides_a_remedy_and_a_source():
    for failure in failures():
        assert failure.cause in CAUSES, failure.id
        assert failure.cause != "cannot-tell", failure.id
        assert failure.kind in KIND, failure.id
        assert failure.base in ("plain", "hint"), failure.id
        assert failure.needs, failure.id
        assert all(failure.needs), failure.id
        assert failure.decides.reading, failure.id
        assert failure.decides.how, failure.id
        assert failure.remedy.advice, failure.id
        assert failure.remedy.precondition, failure.id
        assert failure.remedy.harm, failure.id
        assert failure.title, failure.id
        assert len(failure.mechanism) > 40, failure.id
        assert failure.mechanism.endswith((".", "?")), failure.id
        assert re.fullmatch(r"https://\S{8,}", failure.source), failure.id


def test_every_name_of_an_entry_is_made_by_some_code_or_data():
    names = producible()
    missing = {
        failure.id: {name for name in names_in(failure) if not can_be_made(name, names)}
        for failure in failures()
    }
    assert {entry: lacking for entry, lacking in missing.items() if lacking} == {}


def test_no_observation_speaks_for_an_entry_and_against_it():
    for failure in failures():
        needed = {name for group in failure.needs for name in group}
        for_it = needed | {*failure.strong, *failure.weak, *failure.sufficient, *failure.proof}
        against = {*failure.refuted_by, *failure.strong_against, *failure.weak_against}
        assert for_it & against == set(), failure.id
        assert set(failure.strong) & set(failure.weak) == set(), failure.id


def test_ids_are_unique_and_every_reading_remedy_and_group_is_used():
    ids = [failure.id for failure in failures()]
    assert len(set(ids)) == len(ids)
    in_code = "".join(path.read_text() for path in JUDGE.glob("*.py"))
    asked_for = set(re.findall(r'(?:deciding|missing)_reading\("([a-z-]+)"', in_code))
    assert {row["decides"] for row in RAW["failures"]} | asked_for == set(RAW["readings"])
    rows = (*RAW["failures"], *wordings.table(), *judge.table("ladder")["steps"])
    named = {row["remedy"] for row in rows if "remedy" in row}
    for world in judge.table("worlds"):
        assert set(world["remedies"]) <= set(RAW["remedies"]), world["name"]
        assert set(world["readings"]) <= set(RAW["readings"]), world["name"]
        named |= set(world["remedies"].values())
    chosen = set(re.findall(r'(?:name = |return )"([a-z-]+)"', in_code))
    named |= chosen & set(RAW["remedies"])
    assert named == set(RAW["remedies"])
    spoken = {name for row in RAW["failures"] for value in row.values() for name in flat(value)}
    assert set(RAW["groups"]) <= spoken
    groups = {name for name in spoken if name.isupper() and "-" in name}
    assert groups <= set(RAW["groups"])


def flat(value):
    if isinstance(value, list):
        return [name for part in value for name in flat(part)]
    return [value] if isinstance(value, str) else []


def test_the_groups_name_only_what_can_be_made():
    members = {name for members in RAW["groups"].values() for name in members}
    assert [name for name in members if not can_be_made(name, producible())] == []


# -- what is produced and used by nobody ----------------------------------------------------------
def test_nothing_is_observed_that_no_entry_uses_and_no_view_shows():
    views = [*(JUDGE.parent / "tell").glob("*.py"), JUDGE / "undecided.py", JUDGE / "case_names.py"]
    shown = {text for path in views for text in path.read_text().split('"')}
    made = {name for path in OBSERVING for name in called_with_a_literal(path)}
    assert made - used() - FOR_DISPLAY - shown == set()
    related = set(RELATIONS) - set((JUDGE / "ceilings.py").read_text().split('"'))
    assert (of_the_grammar() | related) - used() - FOR_DISPLAY == set()


# -- remedies -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", RAW["remedies"])
def test_a_remedys_placeholders_are_known_and_filled_also_without_a_number(name):
    row = RAW["remedies"][name]
    words = {key: text for key, text in row.items() if key != "shown_by_capture"}
    assert all(text or key == "command" for key, text in words.items())
    texts = texts_of((JUDGE / "case_names.py").read_text())
    given = {text for text in texts if re.fullmatch("[a-z_]+", text)}
    given |= set(judge.table("names")["tools"]["NVIDIA"])
    assert set(PLACEHOLDER.findall(" ".join(words.values()))) <= given
    assert not PLACEHOLDER.search(fill(row["advice"] + row["command"] + row["precondition"], {}))


def test_the_next_step_of_an_entry_is_filled_in_with_nothing_at_hand():
    for failure in failures():
        step = next_step(failure, {}, CaseEvidence())
        assert step.what, failure.id
        assert not PLACEHOLDER.search(step.what + step.command), failure.id
        assert max(map(len, typed(step.command, "     ")), default=0) <= 100, failure.id


# -- a newcomer -----------------------------------------------------------------------------------
NEW = {
    "id": "paper-jam", "cause": "other", "title": "The paper is jammed", "needs": [["paper-jam"], ["RAN-OUT"]],
    "mechanism": "A printer in the path of the tensors jams, and everything behind it waits for somebody to pull.",
    "decides": "holders", "remedy": "less", "source": "https://example.org/printers", "sufficient": ["paper-jam"],
}  # fmt: skip


def with_entries(monkeypatch, rows):
    """The catalogue of other entries."""
    monkeypatch.setattr(catalogue, "table", lambda name: {**judge.table(name), "failures": rows})
    catalogue.failures.cache_clear()


def with_entry(monkeypatch, **changes):
    with_entries(monkeypatch, [*RAW["failures"], {**NEW, **changes}])


@pytest.fixture(autouse=True)
def the_file_as_it_is():
    yield
    catalogue.failures.cache_clear()


def test_a_newcomers_entry_in_the_file_is_weighed_like_any_other(monkeypatch):
    with_entry(monkeypatch)
    found = [
        Observation(name, seen("x", "text", name), "seen", "tool")
        for name in ("paper-jam", "device-refused")
    ]
    best = weigh_failures(found)[0]
    assert (best.failure.id, best.confidence) == ("paper-jam", "likely")
    assert "paper-jam" not in {row.failure.id for row in weigh_failures(found[1:])}


@pytest.mark.parametrize(("changes", "word"), [
    ({"colour": "red"}, "colour"), ({"remedy": "prayer"}, "prayer"), ({"decides": "oracle"}, "oracle"),
])  # fmt: skip
def test_a_name_or_a_key_that_is_not_known_is_refused_with_its_word(monkeypatch, changes, word):
    with_entry(monkeypatch, **changes)
    with pytest.raises((KeyError, TypeError), match=word):
        catalogue.failures()


def test_the_order_of_the_entries_decides_nothing(monkeypatch):
    own = " Including non-PyTorch memory, this process has 12.31 GiB memory in use."
    error = oom("1.75 GiB", "23.56 GiB", "532.00 MiB", "11.80 GiB", "81.00 MiB", own)
    tools = {"nvidia-smi": "|    0   N/A  N/A     70411      C   python   9000MiB |"}
    case = case_evidence({"error_text": error, "tool_outputs": tools})
    before = diagnose(case)
    with_entries(monkeypatch, RAW["failures"][::-1])
    assert diagnose(case) == before


def test_every_observation_that_is_made_has_words_and_a_source():
    refused = "CUDA out of memory. Tried to allocate 20.00 GiB"
    for error in (refused, "Killed", "RuntimeError: No HIP GPUs are available"):
        for one in observe(case_evidence({"error_text": error})):
            assert one.says and one.reading.source and one.origin
