"""Every data file is a table: which keys a row has, of which types, where its source stands, and which module opens it."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
HELPERS = ROOT / "helpers"
HEAD = "source"
ROWS = "in each row"
COMMENT = "in the comment that the file begins with"
OWN_WORDS = "none: the workbook's own words"


@dataclass(frozen=True)
class DataFile:
    """One data file: the modules that open it, where its source stands, and what it holds.

    ``source``: ROWS, COMMENT, OWN_WORDS, or the key of the file's head that says it (HEAD). ``holds``: sections by name, or the one
    table that the file is. A table is ``[row]`` (a list) or ``{"*": row}`` (rows by their names). A row is written
    "key key?; key: kind": a key with ? may be missing; a kind is text (where none is named), flag, int, number or null,
    [kind] for a list, {kind} for values by name, and a|b for either.
    """

    readers: str
    source: str
    holds: object


# fmt: off
FILES = {
    "helpers/judge/boot_systems.json": DataFile("judge.boot_systems", HEAD, {
        "initramfs": {"*": "rebuild source; configuration: [text]"}, "distributions": ["ids systems: [text]; source"],
        "by_hand": {"*": "place add; then: [text]; notes?: [text]"}}),
    "helpers/judge/ceiling_answers.json": DataFile("judge.binding", HEAD, {
        "answers": {"*": "layer: text|null; cause says step source; rests: [text]"},
        "either": "{[text]}", "firmware_menu_mib": "[int]", "no_rams_mib": "[int]"}),
    "helpers/judge/ceiling_numbers.json": DataFile("judge.numbers", HEAD, {"numbers": {"*": "posted: [text]; missing?"}}),
    "helpers/judge/ceilings.json": DataFile("judge.ceilings", HEAD, {
        "rows": {"*": "layer: text|null; name unit note"},
        "layers": {"*": "number says"},
        "pools": {"*": "layers: [text]; without"}}),
    "helpers/judge/failures.json": DataFile("judge.catalogue", HEAD, {
        "readings": {"*": "reading how answer?; while_running?: flag"},
        "remedies": {"*": "advice command precondition harm; shown_by_capture?: flag"},
        "groups": "{[text]}",
        "failures": ["id cause title mechanism decides remedy source kind? base?; needs: [[text]]; sufficient? proof? strong?"
                     " weak? refuted_by? strong_against? weak_against?: [text]"]}),
    "helpers/judge/forms.json": DataFile("judge", ROWS, {"*": "form source"}),
    "helpers/judge/headlines.json": DataFile("judge.headlines", HEAD, {"titles": "{[text]}"}),
    "helpers/judge/ladder.json": DataFile("judge.next_step", HEAD, {"steps": ["remedy vendor; for_unaccounted: flag"]}),
    "helpers/judge/ledger.json": DataFile("judge.ledger", HEAD, {
        "in_use": ["layer second_place?; off_by_bytes: int"], "compute": "[text]", "holders": "{int}"}),
    "helpers/judge/magic.json": DataFile("judge.evidence", ROWS, ["start kind source"]),
    "helpers/judge/marks.json": DataFile("judge.marks", ROWS, {
        "marks": ["name pattern source; texts: [text]; hearsay?: flag"], "frameworks": ["name form source"]}),
    "helpers/judge/names.json": DataFile("judge.case_names", HEAD, {
        "tools": {"*": "smi nodes counters chips loadedversion"}, "cache": "{text}", "unknown": "{text}"}),
    "helpers/judge/observations.json": DataFile("judge.observation", HEAD, {
        "sentences": "{text}", "events": "{text}", "hosts": "[text]", "refusals": "[text]"}),
    "helpers/judge/obstacles.json": DataFile("judge.obstacles", HEAD, {
        "vendors": {"*": "pci_vendor driver torch_build node_form log_command source; needed_nodes container_start: {text};"
                         " hiding_values: {[text]}"},
        "selinux_booleans": "{text}", "groups_of_root": "[text]",
        "causes": {"*": "says fix fix_in_container? cause? source?"}}),
    "helpers/judge/posted.json": DataFile("judge.posted_processes", ROWS, {"lists": {"*": "form source example text_has? state?"}}),
    "helpers/judge/stale_settings.json": DataFile("judge.ttm_change", HEAD, {"parameters": "{text}"}),
    "helpers/judge/toolkits.json": DataFile("judge.posted_versions", ROWS, ["gpu_names first_cuda source"]),
    "helpers/judge/worlds.json": DataFile("judge.worlds", ROWS, [
        "name form source box_file? box_file_has? not_beside?; remedies: {text}; readings: {{text}}"]),

    "helpers/settings/findings.json": DataFile("settings.table", ROWS, {"findings": {"*": "verdict says source cause? why?"}}),
    "helpers/settings/kernel.json": DataFile("settings.table", HEAD, {
        "parameters": ["module name unit verdict says source; pool?: flag"], "others": "{[text]}"}),
    "helpers/settings/torch.json": DataFile("settings.table", HEAD, {
        "options": ["name kind form expected says source since? field? inert? unmodelled? moment?; shared?: flag; least?: int"],
        "changes": ["since field source build?; value: text|flag|int|[text]"],
        "proved": ["torch build source origin?; traces events differing: int"],
        "kinds": "{text}", "tried": "[text]", "sentences": "{text}"}),
    "helpers/settings/variables.json": DataFile("settings.table", HEAD, {
        "verdicts": {"*": "cause why"},
        "variables": ["name read_by moment read verdict says source form? expected? verdict_otherwise? build? cause? why?"],
        "rules": ["name verdict says source value? build? since? below? rocm_since? rocm_below? cause? why?;"
                  " beside? gfx?: [text]"],
        "moments": "[text]", "code": "{[text]}", "imports": "{[text]}", "other_names": "[text]", "prefixes": "[text]"}),

    "helpers/look/access.json": DataFile("look.access", HEAD, {
        "nodes": "[text]", "namespaces": "{text}", "paths": "{text}", "cgroups": "{text}"}),
    "helpers/look/capture.json": DataFile("look.capture look.collection", OWN_WORDS, {
        "options": "{text}", "words": "{text}"}),
    "helpers/look/environment.json": DataFile("look.environment", HEAD, {
        "names": "text", "prefixes": "text", "secret anywhere": "text", "secret at the end": "text", "of secrets": "text",
        "after a secret": "text", "of a tokenizer": "text", "limits": "{text}"}),
    "helpers/look/figures.json": DataFile("look.figure_forms", ROWS, [
        "id form pool example source unit?; reads: {int}; of?: [text]; inside? each?: flag"]),
    "helpers/look/kernel_log.json": DataFile("look.kernel_line look.kernel_log look.kernel_log_capture", HEAD, {
        "wall clock": "[text]", "storms": "text", "of a fault": "{text}", "kept": "[text]"}),
    "helpers/look/message_words.json": DataFile("look.messages look.squeezed_messages", HEAD, {
        "backends": "{text}", "element bytes": "{int}", "sizes of the kernel's log": "{text}"}),
    "helpers/look/messages.json": DataFile("look.wordings", ROWS, [
        "id program side event example source says kind? remedy? backend? literal? pattern? detail?; form?: text|[text];"
        " reads?: {int|number|text|[int]}; hints? clauses?: [text]; log? retyped? decimal?: flag"]),
    "helpers/look/parts.json": DataFile("look.parts", ROWS, ["kind vendor source; names gfx: [text]; gib?: [int]"]),
    "helpers/look/printed.json": DataFile("look.printed", ROWS, {
        "heads": "{[text]}", "labels": "{[text]}", "source of labels": "text", "ps": "{text|{text}|[{text}]}",
        "lines": ["tool form example source"]}),
    "helpers/look/relations.json": DataFile("look.relations", OWN_WORDS, "{text}"),
    "helpers/look/secrets.json": DataFile("look.environment", ROWS, {"how": "text", "tokens": ["what begins shape source"]}),
    "helpers/look/sources.json": DataFile("look.files", OWN_WORDS, ["reader files? command? why?"]),
    "helpers/look/squeezed.json": DataFile("look.squeezed", HEAD, {"prefixes": "[text]", "examples": "[text]"}),
    "helpers/look/tool_failures.json": DataFile("look.vendor_text", ROWS, {
        "*": "source; not_allowed not_available: [text]"}),
    "helpers/look/xids.json": DataFile("look.kernel_log", HEAD, {"meaning": "{text}"}),

    "helpers/commands/gone.json": DataFile("commands.gone", OWN_WORDS, "{text}"),

    "helpers/fits/graphs.json": DataFile("fits.rules.graphs", "about", {
        "architectures": {"*": "heads; full partial?: [int]; times: int; beside?: [[int|number|text]]"}}),
    "helpers/fits/logs.json": DataFile("fits.log", ROWS, {
        "lines": ["program has form key source unit? how? until?; at?: int; printed?: flag"],
        "failed": "[text]", "expected": "text", "host": "text", "again": "{text|[[int|text]]}", "added": "[text]",
        "beside": "text", "runs": "text", "advice": "{text}", "words": "{flag}"}),
    "helpers/fits/models.json": DataFile("fits.answer fits.gguf fits.layers fits.model", "about", {
        "config": "{[text]}", "gguf": "{[text]}", "linear_attention": "{[text]}", "options": "{text|[text]}",
        "defaults": "{{int|flag}}", "kinds": "{text}", "windows": "{int|text}", "intervals": "{int|text}",
        "ggml": "{text|[int|text]}", "one_shared_expert": "[text]", "lists": "[text]", "acts": "[text]",
        "shared_blocks": "[text]", "plain_acts": "[text]", "plain": "[text]", "tied": "[text]", "attention_at": "[text]",
        "types": "[text]", "no_window": "[text]", "counted": "[text]", "known": "[text]"}),
    "helpers/fits/quantised.json": DataFile("fits.changes fits.quantised", "sources", {
        "dtypes": "{number}", "sources": "text", "experts_only": "[text]", "smaller_source": "text",
        "smaller": ["name family; start: {text}; bits: number; usual?: flag"]}),
    "helpers/fits/servers.json": DataFile("", ROWS, {
        "defaults": {"*": "source; is?: int|number|flag|text|[int]; as?: [text]"},
        "families": "[[text]]", "becomes": "{text|[int|text]}", "dates": "{[[text]]|{int}}", "element_bytes": "{number}",
        "element_ranges": "{text|[number]}", "start": "{[[text]]}", "server_options": "{text|{text}}", "inputs": "{[text]}",
        "read": "text", "own_engine": "[text]", "words": "{text}"}),
    "helpers/rehearse/words.json": DataFile("rehearse.build rehearse.words", "about", {
        "workspaces": ["count cap says source; times most_mib: int"], "ends": ["seen whose says"],
        "needs": "[text]", "answers": "{int}", "outputs": "[[text|[int]]]", "constant": "{text}", "card": "{text}",
        "decides": "[text]", "says": "{text}", "known": "{text}", "libraries": "{text}", "bounds": "{text}", "rocm": "[text]",
        "outside": "text", "crash": "{text}", "named": "{text}", "unanswered": "{text}", "exit": "{text}", "sizes": "{text}",
        "other": "{text}"}),
    "helpers/tell/words.json": DataFile("tell.resources", OWN_WORDS, {
        "fits": "{text|{text}}", "confidence": "{text}", "layers": "{text}", "shapes": "{[text]}", "states": "{text}",
        "rows": {"events": ["kind words; harmless?: flag"], "metrics": "[[text]]", "mistaken": "[[text]]", "glossary": "[[text]]"}}),
    "helpers/trials/training.json": DataFile("trials.training", OWN_WORDS, {
        "ways": ["name path; more: {int|number|flag|text}; saves?: flag"], "environment": "{text}",
        "shapes": {"*": "vocab width layers heads length batch steps: int"}}),
    "helpers/trials/workloads.json": DataFile("trials.workload", OWN_WORDS, {
        "workloads": ["name shows; seconds: number; parameters: {int|text}; keeping?: flag"], "keeping": "{int}"}),
    "helpers/allocator/patterns.json": DataFile("allocator.patterns", OWN_WORDS, {"*": "card_bytes: int; parameters: {number}"}),
    "helpers/ground/refusals.json": DataFile("ground.contract", OWN_WORDS, "{text}"),
    "helpers/ground/causes.json": DataFile("ground.shapes", OWN_WORDS, {"*": "says name"}),
    "helpers/share/issue.yaml": DataFile("share.verdict_facts", COMMENT, {
        "trackers": {"*": "where form"},
        "causes": {"*": "ask expected instead plain? title? component?; to: [text]"}}),
    "env/claims.yaml": DataFile("tell.claims", COMMENT, {
        "cases": {"*": "file about advice in_vain?; boxes: [text]"},
        "claims": ["id place claim reason check test; verdict: flag|text"]}),
    "env/remedies.yaml": DataFile("trials.catalogue", COMMENT, {
        "remedies": ["id says how workload? answer? needs? unrehearsed? verdict? why? preset? kind?; claims: [text];"
                     " change? control?: {int|text}"]}),
    "env/boxes/stories.json": DataFile("commands.ttm", OWN_WORDS, "{text}"),
}
# fmt: on
NO_TABLES = {
    "env/memory-check.yml",  # a workflow to copy
    "env/models/made-up-9b/config.json",  # a model's configuration, as transformers writes it
}


@cache
def content(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


# -- what a description means ---------------------------------------------------------------------
SIMPLE = {"text": "string", "flag": "boolean", "int": "integer", "number": "number", "null": "null"}


def kind_schema(kind):
    """The JSON schema of a kind of value."""
    either = [""]
    depth = 0
    for sign in kind.strip():
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(sign, 0)
        if sign == "|" and depth == 0:
            either.append("")
        else:
            either[-1] += sign
    if len(either) > 1:
        return {"anyOf": [kind_schema(one) for one in either]}
    if kind.strip().startswith("["):
        return {"type": "array", "items": kind_schema(either[0][1:-1])}
    if kind.strip().startswith("{"):
        return {"type": "object", "additionalProperties": kind_schema(either[0][1:-1])}
    return {"type": SIMPLE[either[0]]}


def row_schema(row):
    """The JSON schema of a row: no other keys; a source is never blank."""
    properties = {}
    required = []
    for part in row.split(";"):
        keys, _, kind = part.partition(":")
        for key in keys.split():
            properties[key.rstrip("?")] = kind_schema(kind or "text")
            if not key.endswith("?"):
                required.append(key)
    if "source" in properties:
        properties["source"] = {"type": "string", "pattern": r"\S"}
    return fixed(properties, required)


def fixed(properties, required):
    keys = {"properties": properties, "required": required, "additionalProperties": False}
    return {"type": "object", **keys}


def schema(holds):
    """The JSON schema of a section, of a table, or of a whole file with its head."""
    if isinstance(holds, str):
        return kind_schema(holds)
    if isinstance(holds, list):
        return {"type": "array", "items": row_schema(holds[0])}
    if "*" in holds:
        return {"type": "object", "additionalProperties": row_schema(holds["*"])}
    sections = {name: schema(section) for name, section in holds.items()}
    head = {"about": kind_schema("text"), "source": kind_schema("text")}
    return fixed({**head, **sections}, [*sections])


def tables(holds):
    """The descriptions of the rows of every table in a file."""
    if isinstance(holds, list):
        return holds
    if isinstance(holds, str):
        return []
    if "*" in holds:
        return [holds["*"]]
    return [row for section in holds.values() for row in tables(section)]


# -- the tests ------------------------------------------------------------------------------------
def test_every_data_file_is_described():
    found = [*HELPERS.rglob("*.json"), *HELPERS.rglob("*.y*ml")]
    found += [*(ROOT / "env").rglob("*.json"), *(ROOT / "env").rglob("*.y*ml")]
    names = {str(path.relative_to(ROOT)) for path in found if path.name != "manifest.json"}
    assert names == {*FILES, *NO_TABLES}


@pytest.mark.parametrize("name", FILES)
def test_a_data_file_has_the_keys_and_types_that_are_described_and_no_others(name):
    jsonschema.validate(content(name), schema(FILES[name].holds))


@pytest.mark.parametrize("name", FILES)
def test_a_source_stands_in_each_row_or_once_for_the_file(name):
    source = FILES[name].source
    rows = tables(FILES[name].holds)
    with_source = [row for row in rows if "source" in row.replace(";", " ").split()]
    if source == ROWS:
        assert with_source
    elif source == COMMENT:
        assert (ROOT / name).read_text(encoding="utf-8").startswith("# ")
    elif source == OWN_WORDS:
        assert not with_source
    else:
        assert content(name)[source].strip()


def readers():
    """The modules that open each data file, by its name or by that of its table."""
    found = {name: set() for name in FILES}
    for path in HELPERS.rglob("*.py"):
        module = ".".join(path.relative_to(HELPERS).with_suffix("").parts).replace(".__init__", "")
        room = module.split(".")[0]
        code = path.read_text(encoding="utf-8")
        for table in re.findall(r'\b(?:table|data)\(\s*"([\w/]+)"', code):
            for name in {f"helpers/{room}/{table}.json", f"helpers/{table}.json"} & FILES.keys():
                found[name].add(module)
        for file in re.findall(r'"([\w.-]+\.(?:json|yaml))"', code):
            for name in {
                f"helpers/{room}/{file}",
                f"env/{file}",
                f"env/boxes/{file}",
            } & FILES.keys():
                found[name].add(module)
    return found


def test_nothing_but_its_reader_opens_a_data_file():
    described = {name: set(file.readers.split()) for name, file in FILES.items()}
    assert readers() == described
