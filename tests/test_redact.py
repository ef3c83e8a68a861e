"""What must go goes, from every place and in every form; what matters stays; the story still reads."""

import base64
import gzip
import json
import random
import re
import string
import sys
import unicodedata
import zlib
from copy import deepcopy
from itertools import islice

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pattern_examples import examples
from redact_plants import (
    DATA,
    FORMS,
    KNOWN,
    MUST_KEEP,
    encoded,
    known_besides,
    places,
    png,
    secrets,
    told,
    told_again,
    tree,
)

from helpers.ground.tables import data
from helpers.look.access import looks_secret
from helpers.tell.redact import second_scan
from helpers.tell.redact_box import learn_live
from helpers.tell.redact_known import KINDS, STRETCHES, TABLE, WRITING, Known
from helpers.tell.redact_patterns import DETECTORS, Detector, Page, View, detected, named
from helpers.tell.redact_text import Replaced, learn, redact_data, redact_notebook, redact_text

MADE = secrets()
ALL = [(kind, value) for kind in MADE for value in MADE[kind]]
LINES = (DATA / "redact_lines.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def known(tmp_path):
    box = Known()
    learn_live(box, tmp_path, tree(tmp_path, MADE))
    learn(known_besides(MADE), box)
    return box


def survives(value, data):
    seen = told_again(data).lower()
    return value.lower() in seen or re.sub(r"\s", "", value).lower() in seen


def notebook(first, form=None):
    """A notebook with planted values from number ``first`` on, in all forms by turns, and each once as it is."""
    chosen = []
    forms = [name for name in FORMS if name not in ("upper", "line", "url-lower")]

    def text(n):
        chosen.append(ALL[(first + n) % len(ALL)])
        return FORMS[form or forms[(n + first) % len(forms)]](told(*chosen[-1]))

    nb, count = places(text)
    words = "\n".join(told(*one) for one in chosen)
    nb["cells"].append({"cell_type": "markdown", "id": "z", "metadata": {}, "source": words})
    return nb, chosen, count


def marked(example):
    """An example without its marks, its values, and the words between them."""
    parts = re.split("[‹›]", example.replace("·", ""))
    return "".join(parts), parts[1::2], parts[::2]


BY_SHAPE = data("look/secrets")["tokens"]
BY_EXAMPLE = [row for row in DETECTORS if row.example]


@pytest.mark.parametrize("row", BY_SHAPE, ids=lambda row: row["what"])
def test_each_form_of_each_token_is_found_by_its_shape_in_a_page_and_in_a_command_line(row):
    for value in examples(row["shape"]):
        assert re.fullmatch(row["shape"], value, re.ASCII) and looks_secret(value)
        assert value.startswith(tuple(row["begins"].split())) and row["source"]
        assert re.fullmatch(r"of token-\d here", redact_text(f"of {value} here", Known()))
        half = len(value) // 2
        cut = redact_text(f"{value[:half]}\n    {value[half:]}", Known())
        told = value[max(len(one) for one in row["begins"].split() if value.startswith(one)) :]
        assert not [at for at in range(len(told) - 9) if told[at : at + 10] in cut], (value, cut)


def test_tokens_of_a_hundred_makers_are_known():
    assert len({row["what"] for row in BY_SHAPE}) >= 100


def tried(detector):
    """Texts made from a detector's own pattern, of which it finds a value: all its alternatives that can be made so."""
    for text in examples(detector.pattern.pattern, detector.pattern.flags & re.IGNORECASE):
        text = f"{detector.near[0] if 'page' in detector.flags else ''}\n{text}\n"
        found = [span for span in named(detected(text, [detector]), Known())[1] if not span.joined]
        if found:
            yield text, found


@pytest.mark.parametrize("row", TABLE["detectors"], ids=lambda row: f"{row['kind']}: {row['what']}")
def test_a_detector_is_tried_in_every_line_that_it_fits(row):
    """The words and the gate by which lines are chosen leave out no alternative of its pattern."""
    everywhere = {"near": "", "gate": "", "stretch": "", "also": ""}
    detector = Detector(row)
    alone = Detector({**row, **everywhere})
    if detector.flags & {"page", "at-hint"}:
        return
    for text in examples(detector.pattern.pattern, detector.pattern.flags & re.IGNORECASE):
        page = Page(View(f"\n{text}\n"))
        assert [*map(str, alone.matches(page))] == [*map(str, detector.matches(page))], text


@pytest.mark.parametrize("detector", BY_EXAMPLE, ids=lambda row: f"{row.kind}: {row.what}")
def test_what_a_detector_finds_in_any_of_its_alternatives_goes_from_the_text(detector):
    for text, found in islice(tried(detector), 60):
        known = Known()
        clean = redact_text(text, known)
        for span in found:
            value = text[span.start : span.end]
            if value in clean and len(value) >= 8:
                assert redact_text(value, known) == value, (text, value)


@pytest.mark.parametrize("way", sorted(WRITING.keys() & STRETCHES.keys()))
def test_a_way_of_writing_is_found_in_every_text_that_its_pattern_fits(way):
    """The stretches of characters in which it is looked for leave out nothing of it."""
    for text in examples(WRITING[way].pattern, WRITING[way].flags & re.IGNORECASE):
        text = f"of {text} here\n"
        found = [match.span() for match in View(text).found(way)]
        assert found == [match.span() for match in WRITING[way].finditer(text)], text


def test_words_with_numbers_are_found_in_any_text():
    for text in ("a1", "x h100-b gpu-7 -a1 é9 e1é A-b-2c\n--node12 x1", "node-", "", "1-a", "ab"):
        pattern = WRITING["numbered"]
        assert [*map(str, View(text).found("numbered"))] == [*map(str, pattern.finditer(text))]


def test_scanners_that_are_asked_for_their_words_alone_find_nothing_in_other_lines():
    from detect_secrets.plugins import keyword

    words = TABLE["names_of_scanners"]["Secret Keyword"].split()
    assert all(any(word in one for word in words) for one in keyword.DENYLIST)
    lines = ("ibm_iam_{}: '{}'", "cloudant_{} = '{}'", "clou-{}='{}'", "sl_{} = '{}'", "{}={}")
    values = ("a1B2" * 11, "0a1b" * 16, "abcd" * 6, "0a1b" * 12)
    names = ("key", "pwd", "pw", "password", "pass", "token", "apikey", "secret_access_key")
    texts = {
        f"{line} {name} {len(value)}": line.format(name, value)
        for line in lines
        for name in names
        for value in values
    }
    with_words = second_scan(texts)
    every = {kind: "" for kind in TABLE["names_of_scanners"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helpers.tell.redact._NAMES", every)
        assert [*map(str, second_scan(texts))] == [*map(str, with_words)] and with_words


@pytest.mark.parametrize(
    "text",
    [
        "My labmate ‹Zdenka› suggested it",
        "ask ‹Yamaguchi's› box; ‹Høygård› wrote it",
        "| workstation | ‹Torvanix› | 24 GB |",
        "prompt (‹qwixfen›@‹8vexo4-devbox›)",
        "ASANA_API_TOKEN: ‹8195513847023883›",
        "password: !secret ‹Walnut#rhuba7459›",
        "<a href='/runs/k1'>‹qwixfens-laptop-rerun›</a>",
        "‹registry.vexobar.dev/vllm›:v0.6.3.post1",
        "Pascal, Ada and Hopper; Fri Nov 21; Traceback; Linear(in_features=8)",
    ],
)
def test_what_stands_without_a_field_goes_and_what_is_known_stays(text):
    plain, values, around = marked(text)
    clean = redact_text(plain, Known())
    assert not [one for one in values if one in clean] and all(one in clean for one in around), (
        clean
    )


def test_the_address_that_a_cell_shows_is_no_answer_about_a_user():
    output = {"output_type": "stream", "name": "stdout", "text": "0x7f3c2a1b9e50\n"}
    cell = {"cell_type": "code", "source": "print(hex(id(model)))", "metadata": {}, "id": "a"}
    nb = {"cells": [{**cell, "execution_count": 1, "outputs": [output]}], "metadata": {}}
    assert redact_notebook(nb, Known())[0]["cells"][0]["outputs"] == [output]


def test_every_row_has_an_example_or_a_shape():
    assert len(BY_EXAMPLE) + len(BY_SHAPE) == len(DETECTORS)


@pytest.mark.parametrize("detector", BY_EXAMPLE, ids=lambda row: f"{row.kind}: {row.what}")
def test_each_detector_finds_the_values_of_its_own_example_and_nothing_else(detector):
    text, values, around = marked(detector.example)
    found = [span for span in named(detected(text, [detector]), Known())[1] if not span.joined]
    assert values and [text[span.start : span.end] for span in found] == values
    assert {span.kind for span in found} == {detector.kind} <= set(KINDS)
    assert detector.source and detector.near == tuple(word.lower() for word in detector.near)
    if "strong" in detector.flags:
        half = len(values[0]) // 2 + text.index(values[0])
        cut = text[:half] + "\n    " + text[half:]
        assert values[0] not in re.sub(r"\s+", "", redact_text(cut, Known()))


@pytest.mark.parametrize("line", [*LINES, *(row.example for row in BY_EXAMPLE)])
def test_what_stands_before_a_value_or_its_shape_tells_it_and_the_words_around_it_stay(line):
    text, values, around = marked(line)
    clean = redact_text(text, Known())
    assert not [value for value in values if value in clean]
    assert re.fullmatch(r"\S{3,30}".join(map(re.escape, around)), clean), clean


def test_there_are_three_hundred_secrets_of_thirty_kinds():
    assert len(MADE) == 30 and len(set(ALL)) == 300


@pytest.fixture(scope="module")
def told_box(tmp_path_factory):
    """A box that was told every planted value once, to be copied."""
    box = Known()
    folder = tmp_path_factory.mktemp("told")
    learn_live(box, folder, tree(folder, MADE))
    learn(known_besides(MADE), box)
    for one in ALL:
        redact_text(told(*one), box)
    return box


@pytest.mark.parametrize(
    ("form", "every"),
    [(form, 4) for form in FORMS]
    + [pytest.param(form, 1, marks=pytest.mark.slow) for form in FORMS],
)
def test_a_value_goes_in_every_way_to_write_it(told_box, form, every):
    """Each form takes other values of a kind than the form before it."""
    known = deepcopy(told_box)
    insensitive = ("host", "mac", "gpu-uuid", "boot-id", "disk", "serial")
    for kind, value in ALL[list(FORMS).index(form) % every :: every]:
        if form == "upper" and kind not in insensitive or form == "url-lower" and kind not in KNOWN:
            continue
        written = FORMS[form](told(kind, value))
        assert survives(value, written), "the test would see it"
        clean = redact_text(written, known)
        assert not survives(value, clean), (kind, form)
        assert redact_text(clean, known) == clean


@pytest.mark.parametrize("first", range(0, 300, 42))
def test_no_planted_secret_survives_in_any_place_of_a_notebook(known, first):
    nb, chosen, count = notebook(first)
    before = json.dumps(nb)
    clean, replaced = redact_notebook(nb, known, allow_binary=bool(first % 2))
    assert json.dumps(nb) == before, "the notebook given is left as it is"
    assert count == 42
    seen = told_again(nb).lower()
    gone = told_again(clean).lower()
    said = repr([replaced, known]).lower()
    for kind, value in chosen:
        bare = re.sub(r"\s", "", value).lower()
        assert bare in seen and value.lower() not in gone and bare not in gone, kind
        assert value.lower() not in said
    nbformat.validate(nbformat.from_dict(clean))
    assert redact_notebook(clean, known, allow_binary=True)[0] == clean
    assert replaced.total > count


def test_detectors_alone_find_what_no_box_tells():
    for kind, value in ALL:
        if kind not in KNOWN:
            assert not survives(value, redact_text(told(kind, value), Known())), kind


def test_what_matters_is_kept(known):
    assert len(set(MUST_KEEP)) >= 200
    quoted = json.dumps(MUST_KEEP)
    together = "\n".join(MUST_KEEP)
    for box in (Known(), known):
        assert [one for one in MUST_KEEP if redact_text(one, box) != one] == []
        assert redact_text(together, box) == together and redact_text(quoted, box) == quoted


def test_one_value_has_one_name_over_text_notebook_and_case(known):
    host = MADE["host"][3]
    mac = MADE["mac"][3]
    gpu = MADE["gpu-uuid"][3]
    name = redact_text(host, known)
    assert re.fullmatch(r"host-\d+", name)
    assert redact_text(f"{host.upper()} {host}.lan {host}", known) == f"{name} {name} {name}"
    ways = [mac, mac.upper(), mac.replace(":", "-"), mac.replace(":", "")]
    assert len({redact_text(way, known) for way in ways}) == 1
    assert redact_text(gpu, known) == redact_text(gpu.removeprefix("GPU-").upper(), known)
    nb = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"hostname": host}, "cells": []}
    assert redact_notebook(nb, known)[0]["metadata"]["hostname"] == name
    assert redact_text("10.1.2.3 10.1.2.4 10.1.2.3", Known()) == "192.0.2.1 192.0.2.2 192.0.2.1"


def test_a_value_told_once_is_found_before_and_after():
    text = "qwibble ran\nhome is /home/qwibble/x\nstrace of QWIBBLE_train.py\na qwibbler is one"
    clean = "user-1 ran\nhome is /home/user-1/x\nstrace of user-1_train.py\na name-1 is one"
    assert redact_text(text, Known()) == clean


def test_colours_tags_and_lines_around_a_value_stay(known):
    user = MADE["user"][0]
    name = redact_text(user, known)
    assert redact_text(f"\x1b[31m{user}\x1b[0m!", known) == f"\x1b[31m{name}\x1b[0m!"
    assert redact_text(f"<b>{user[:3]}</b><i>{user[3:]}</i>", known) == f"<b>{name}</b><i></i>"
    assert redact_text(f"{user[:4]}\n  {user[4:]} x", known) == f"{name}\n   x"


def test_words_and_small_numbers_are_not_taken_for_people():
    box = Known()
    text = "USER=root HOSTNAME=gpu /home/ubuntu/x uid=1000(user)"
    assert redact_text(text, box) == text and repr(box) == "Known(0 values)"


def test_where_only_a_login_stands_a_common_word_is_one_and_stays_elsewhere():
    text = "train.py of /home/train/model and /home/data: ssh model@vexobar9"
    clean = redact_text(text, Known())
    assert clean == "train.py of /home/user-1/model and /home/user-2: ssh user-3@host-1"


def cell(data, source="", **output):
    """A notebook with one cell and one output."""
    shown = {"output_type": "display_data", "metadata": {}, "data": data, **output}
    one = {"cell_type": "code", "id": "p", "execution_count": 1, "metadata": {}}
    one |= {"source": source, "outputs": [shown]}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [one]}


def data_of(nb):
    return nb["cells"][0]["outputs"][0]["data"]


def test_a_password_field_of_a_widget_goes():
    state = {"w": {"_model_name": "PasswordModel", "value": "vexo bar"}, "other": "the vexo bar"}
    nb = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"widgets": state}, "cells": []}
    assert "vexo" not in json.dumps(redact_notebook(nb, Known())[0])


def test_a_picture_that_may_show_a_value_is_left_out_unless_told(known):
    host = MADE["host"][0]
    drawn = encoded(png("x"))
    plain = cell({"image/png": drawn, "text/plain": "A figure"})
    named = cell({"image/png": drawn, "text/plain": f"Memory of {host}"})
    titled = cell({"image/png": drawn, "text/plain": "A figure"}, f"plt.title('{host}')")
    assert "image/png" in data_of(redact_notebook(plain, known)[0])
    cut = cell({"image/svg+xml": f"<svg><text>{host[:-1]}…</text></svg>", **data_of(named)})
    assert "image/svg+xml" in data_of(redact_notebook(cut, known, allow_binary=True)[0])
    assert set(data_of(redact_notebook(cut, known)[0])) == {"text/plain"}
    for nb in (named, titled):
        clean, replaced = redact_notebook(nb, known)
        assert "image/png" not in data_of(clean)
        assert any("left out" in note for note in replaced.notes)
        assert "image/png" in data_of(redact_notebook(nb, known, allow_binary=True)[0])


def test_a_picture_beside_words_and_a_buffer_of_a_widget_stay_without_their_own(known):
    drawn, plain = (encoded(png(words)) for words in (MADE["email"][0], "x"))
    buffer = {"encoding": "base64", "data": encoded(f"of {MADE['email'][0]}".encode())}
    clean = redact_notebook(
        cell({"text/plain": "x"}, attachments={"a": {"image/png": drawn}}), known
    )
    shown = base64.b64decode(clean[0]["cells"][0]["outputs"][0]["attachments"]["a"]["image/png"])
    assert shown.startswith(b"\x89PNG") and len(shown) < len(base64.b64decode(plain))
    metadata = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"w": [buffer]}, "cells": []}
    data = redact_notebook(metadata, known)[0]["metadata"]["w"][0]["data"]
    assert base64.b64decode(data) == b"of email-1"


def test_numbers_keys_and_lists_of_data_are_read_and_no_key_is_lost():
    known = Known()
    known.add("serial", "1234567890123")
    known.add("host", "vexobar9")
    data = {
        "vexobar9": [1234567890123, 17, True],
        "VEXOBAR9": ("of vexo", "bar9 x"),
        "serial": 4711003,
    }
    clean = redact_data(data, known, Replaced(), "x")
    assert list(clean) == ["host-1", "host-1~1", "serial"]
    assert clean["host-1"] == ["serial-1", 17, True] and clean["serial"] == "serial-2"
    assert clean["host-1~1"] == ("of host-1", " x")


def test_base64_keeps_its_alphabet_its_padding_and_its_lines():
    words = "of the job /home/qwibble/x and what else there is to say of it ÿþ~~~??? " * 3
    text = encoded(words.encode())
    wrapped = "\n".join(re.findall(".{1,64}", text))
    address = text.replace("+", "-").replace("/", "_").rstrip("=")
    clean = redact_text(wrapped, Known())
    assert set(map(len, clean.split("\n")[:-1])) == {64}
    once = base64.b64decode(clean).decode()
    assert once == words.replace("qwibble", "user-1")
    clean = redact_text(address, Known())
    assert not set("+/=") & set(clean) and base64.urlsafe_b64decode(clean + "==").decode() == once
    twice = base64.b64decode(redact_text(encoded(text.encode()), Known()))
    assert base64.b64decode(twice).decode() == once


def test_data_that_cannot_be_read_is_left_out(known):
    page = encoded(b"\x1f\x8b\x08" + bytes(range(60)))
    nb = cell({"application/pdf": encoded(b"%PDF-1.7 x"), "text/html": f"x {page}"})
    data = data_of(redact_notebook(nb, known)[0])
    assert "application/pdf" not in data and data["text/html"] == "x payload-1"


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300))
def test_any_text_comes_through_twice_the_same(text):
    box = Known()
    once = redact_text(text, box)
    assert redact_text(once, box) == once


PIECES = [st.sampled_from([told(*one) for one in ALL[::7]]), st.sampled_from(MUST_KEEP)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.one_of(*PIECES, st.text(max_size=12)), max_size=12),
    st.sampled_from([" ", "\n", "\t", ", ", "</td><td>"]),
)
def test_secrets_between_other_words_go_and_a_second_time_changes_nothing(words, between):
    box = Known()
    learn("\n".join(words), box)
    once = redact_text(between.join(words), box)
    assert redact_text(once, box) == once
    for kind, value in ALL[::7]:
        if kind in ("github", "jwt", "email", "gpu-uuid", "disk", "mac", "slack", "aws-id"):
            assert value not in once


def test_lone_surrogates_and_control_characters_do_no_harm():
    text = "\ud800 /home/qwibble \x00 \udfff %ff \\ud800"
    assert "qwibble" not in redact_text(text, Known())


def test_most_detectors_can_be_tried_by_texts_made_from_their_patterns():
    assert sum(any(tried(row)) for row in BY_EXAMPLE) > 0.85 * len(BY_EXAMPLE)


def halves(text):
    return text[: len(text) // 2], text[len(text) // 2 :]


def in_lines(before, between, after=""):
    return lambda text: f"{before}{halves(text)[0]}{between}{halves(text)[1]}{after}"


WAYS = {
    "a frame of rich": in_lines("\u2502 ", " \u2502\n\u2502 ", " \u2502"),
    "a link of a terminal": in_lines("", "\x1b]8;;https://x\x1b\\", "\x1b]8;;\x1b\\"),
    "another escape": in_lines("", "\x1b(B\x1b[m"),
    "an escape of eight bits": in_lines("", "\x9b31m"),
    "a carriage return": in_lines("", "\r"),
    "the prefix of a log": in_lines(
        "2026-01-02 03:04:05,678 INFO a.b: ", "\n2026-01-02 03:04:05,679 INFO a.b: "
    ),
    "the prefix of a rank": in_lines("[rank0]: ", "\n[rank0]: "),
    "a sum of literals": in_lines('"', '" + "', '"'),
    "literals in lines": in_lines('("', '"\n   "', '")'),
    "a list that is joined": in_lines('"".join(["', '", "', '"])'),
    "octal": lambda text: "".join(f"\\{ord(c):03o}" for c in text),
    "eight digits": lambda text: "".join(f"\\U{ord(c):08x}" for c in text),
    "entities without an end": lambda text: "".join(f"&#x{ord(c):x}" for c in text),
    "quoted-printable": lambda text: "".join(f"={ord(c):02X}" for c in text),
    "a soft end of a line": in_lines("", "=\n"),
    "letters of full width": lambda text: "".join(chr(ord(c) + 0xFEE0) for c in text),
    "struck over": lambda text: "".join(f"{c}\x08{c}" for c in text),
    "elements": in_lines("<tr><td>", "</td><td>", "</td></tr>"),
    "a remark of HTML": in_lines("", "<!-- x -->"),
    "plain digits": lambda text: text.encode().hex(),
    "pairs of digits": lambda text: text.encode().hex(" "),
    "a list of bytes": lambda text: str(list(text.encode())),
    "a dump": lambda text: "\n".join(
        f"{at:08x}  {text[at : at + 16].encode().hex(' ')}  |{text[at : at + 16]}|"
        for at in range(0, len(text), 16)
    ),
    "base64 of UTF-16": lambda text: encoded(text.encode("utf-16")),
    "base64 of gzip": lambda text: encoded(gzip.compress(text.encode())),
    "base64 of zlib": lambda text: encoded(zlib.compress(text.encode())),
    "base64 after a byte": lambda text: encoded(b"\xff" + text.encode()),
    "base64 four times": lambda text: encoded(
        encoded(encoded(encoded(text.encode()).encode()).encode()).encode()
    ),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "base85": lambda text: base64.b85encode(text.encode()).decode(),
    "backwards": lambda text: f"x = '{text[::-1]}'[::-1]",
    "calls of chr": lambda text: " + ".join(f"chr({ord(one)})" for one in text),
    "pairs after 0x": lambda text: ", ".join(f"0x{ord(one):02x}" for one in text),
    "names of characters": lambda text: "".join(f"\\N{{{unicodedata.name(one)}}}" for one in text),
    "parts of a format": lambda text: '"{{}}{{}}".format("{}", "{}")'.format(*halves(text)),
    "steps": lambda text: 'x = "{}"\nx += "{}"'.format(*halves(text)),
    "a row of its own": in_lines("| api_key | ", " |\n|         | ", " |"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_token_goes_in_every_way_of_writing(way):
    token = "ghp_" + "".join(random.Random(way).choices(string.ascii_letters + string.digits, k=36))
    written = WAYS[way](token)
    clean = redact_text(f"all well\n{written}\nepoch 3", Known())
    pieces = [written[at : at + 12] for at in range(8, len(written) - 12, 12)]
    pieces = [one for one in pieces if one not in WAYS[way]("")]
    hidden = [one for one in pieces if re.fullmatch(r"[\w=+/&#;\\\uff01-\uff5e -]{12}", one)]
    assert not [one for one in hidden if one in clean], clean
    assert clean.startswith("all well\n") and clean.rstrip().endswith("epoch 3")


@pytest.mark.parametrize("shape", ["-----{} RSA PRIVATE KEY-----", "---- {} SSH2 PRIVATE KEY ----"])
def test_a_key_without_its_end_takes_no_lines_that_are_none_of_a_key_with_it(shape):
    rows = [random.Random(at).randbytes(48) for at in range(4)]
    rows = [base64.b64encode(row).decode() for row in rows]
    begin = shape.format("BEGIN")
    end = shape.format("END")
    log = "epoch 3 loss 0.5\nmemory 4.2 GiB"
    cut = redact_text("\n".join([begin, *rows, log, begin, *rows, end, "all well"]), Known())
    assert cut == f"private-key-1\n{log}\nprivate-key-2\nall well"
    torn = redact_text("\n".join([begin, *rows, log, "of another", end, "all well"]), Known())
    assert torn == f"private-key-1\n{log}\nof another\n{end}\nall well"
    field = redact_text("\n".join([begin, "Comment: of mine", "", *rows, end]), Known())
    assert field == "private-key-1"


@pytest.mark.parametrize("end", ["...", "\u2026", "****"])
def test_a_token_that_a_logger_cut_short_goes_by_itself_and_where_the_whole_is_known(end):
    token = "ghp_" + "a1B2" * 9
    assert token[:12] not in redact_text(f"of {token[:20]}{end} here", Known())
    secret = "Xy7" + "q9Z" * 8
    clean = redact_text(f"api_key = '{secret}'\nusing {secret[:14]}{end} now", Known())
    assert secret[:10] not in clean and clean.endswith(" now")


def test_a_table_is_read_by_its_heads_and_only_as_far_as_rows_keep_to_them():
    text = (
        "JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        "   12       gpu   trains  qwibble  R       1:23      1 vexobar9\n"
        "amdgpu: 63488M of GTT memory ready.\n\nname,serial,gib\ncard,PKX0471123,24\n"
    )
    clean = redact_text(text, Known())
    assert not [one for one in ("qwibble", "vexobar9", "PKX0471123") if one in clean]
    assert "63488M of GTT memory ready." in clean and "card,serial-1,24" in clean


@pytest.mark.parametrize(
    "text",
    [
        "   user  password  gpu\n0  qwixf  ‹Zima2024!›  0\n1  jorlum  ‹kestrelfly›  1\n",
        "name;kennwort\nqwix;‹Zima2024!›\nfen;‹kestrelfly›\n",
        '"user";"password";"gib"\n"qwixfen";"‹kes trel fly›";"24"\n',
        "user | password\n-----+-----\nqwix | ‹Zima2024!›\nfen | ‹kestrelfly›\n",
        "\u2502 user    \u2506 password   \u2502\n\u2502 str     \u2506 str        \u2502\n"
        "\u2502 qwixfen \u2506 ‹kestrelfly› \u2502\n",
        "user,pin\nqwixfen,‹4711›\njorlum,‹0815›\n",
        "  Matrikelnr  Name  Note\n  ‹7595211›  Qwixum, Jor  1.7\n  ‹2453936›  Fenlum, Kip  2.3\n",
        "<p>free: 5.6 GiB)</p>\n<table><tr><th>team</th><th>dob</th></tr><tr><td>a</td><td>‹1950-11-22›</td></tr></table>",
        "             name         dob\n0  Yolanda Qwixum  ‹03/10/1984›\n1      Jor Fenlum  ‹03/12/1986›\n",
    ],
)
def test_passwords_go_from_a_table_of_any_kind(text):
    plain, values, _ = marked(text)
    assert not [one for one in values if one in redact_text(plain, Known())]


@pytest.mark.parametrize(
    ("source", "answer", "goes"),
    [
        ("!whoami", "qwibble\n", "qwibble"),
        ("import getpass\ngetpass.getuser()", "'falcon'", "falcon"),
        ("%%bash\nhostname\nnproc", "vexobar\n16\n", "vexobar"),
        ("print(platform.node(), torch.cuda.device_count())", "vexobar 2\n", "vexobar"),
        ("!groups", "qwibble video render fenlab\n", "fenlab"),
    ],
)
def test_what_a_cell_that_asks_for_a_name_was_answered_goes(source, answer, goes):
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": 1, "source": source}
    kind = "execute_result" if answer[0] == "'" else "stream"
    more = {"data": {"text/plain": answer}} if answer[0] == "'" else {"text": answer}
    cell["outputs"] = [{"output_type": kind, "name": "stdout", "metadata": {}, **more}]
    clean = told_again(redact_notebook({"cells": [cell], "metadata": {}}, Known())[0])
    assert goes not in clean and source.split("(")[0].split("\n")[0] in clean
    assert not answer.endswith("16\n") or "16" in clean


def test_words_of_the_field_and_what_a_program_calls_its_own_stay_in_the_places_of_names():
    for line in (DATA / "redact_evidence.txt").read_text(encoding="utf-8").splitlines():
        assert redact_text(line, Known()) == line


def test_base64_that_ends_with_its_padding_swallows_no_line():
    text = "cGFkZGVkIHdpdGggb25lIHNpZ24gYXQgdGhlIGVuZCE=\nallocated 20.31 GiB of 24.00 GiB\n"
    assert redact_text(text, Known()) == text


def test_tables_of_html_and_of_data_are_read_by_their_heads():
    html = (
        "<table><tr><th></th><th>gib</th><th>user</th></tr><tr><th>0</th><td>23.4</td><td>qwibble"
        "</td></tr></table>"
    )
    assert "qwibble" not in redact_text(html, Known())
    for told_so in (
        {"columns": ["gib", "wifi_ssid"], "data": [[23.4, "Fen-5G"]]},
        {"wifi_ssid": {"0": "Fen-5G"}},
        {"name": "wifi_ssid", "type": "string", "value": "Fen-5G"},
        [["wifi_ssid", "Fen-5G"], ["gib", 23.4]],
    ):
        clean = json.dumps(redact_data(told_so, Known(), Replaced(), "x"))
        assert "Fen" not in clean and json.dumps(told_so).replace("Fen-5G", "wifi-1") == clean


def test_tokens_that_begin_alike_and_one_told_in_quotes_hide_nothing_of_each_other():
    one, two = ("sk-or-v1-" + pair * 32 for pair in ("9c", "9d"))
    clean = redact_text(f'key \'"{one}"\'\nopenrouter_api_key = b"{two}"\n', Known())
    assert not re.search("(?:9[cd]){4}", clean) and clean.count("token-") == 2


def test_settings_below_a_secret_stay():
    token = "abcdefghij1234567890abcd"
    below = "NCCL_DEBUG=INFO\nRANK=0\nflash-attn==1.8.8.post1\nrun_step()\n"
    assert redact_text(f"HF_TOKEN={token}\n{below}", Known()) == f"HF_TOKEN=token-1\n{below}"


def test_numbers_of_cards_and_accounts_go_by_their_check_digits_alone():
    right = "4111 1111 1111 1111"
    wrong = "4111 1111 1111 1112"
    assert redact_text(f"of {right} and {wrong}", Known()) == f"of card-1 and {wrong}"
    right = "DE89 3704 0044 0532 0130 00"
    wrong = "DE88 3704 0044 0532 0130 00"
    assert redact_text(f"of {right}; {wrong}", Known()) == f"of iban-1; {wrong}"


@pytest.mark.parametrize(
    "value", ["aB3dE9fG2hJ4kL6mN8pQ1rS5tU7vW0xYzZ9", "9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c"]
)
def test_the_second_scan_reckons_entropy_without_quotes_and_allows_what_is_named(value):
    pytest.importorskip("detect_secrets", reason="detect-secrets is not installed")
    (find,) = second_scan({"log": f"all well\nwith {value} here"})
    assert find.startswith("log line 2: ") and find.value == value and value not in find
    if value.isalnum() and value.lower() == value:
        assert second_scan({"log": f"commit {value}", "digest": f'"sha256": "{value}"'}) == []


AWS = "AKIA" + "IOSFODNN7EXAMPLQ"
HIDDEN = {
    "entities": "".join(f"&#{ord(sign)};" for sign in AWS),
    "percent": "".join(f"%{ord(sign):02x}" for sign in AWS),
    "json": "".join(f"\\u{ord(sign):04x}" for sign in AWS),
    "bytes": "".join(f"\\x{ord(sign):02x}" for sign in AWS),
    "base64": base64.b64encode(f"id {AWS} of me".encode()).decode(),
    "hex": f"id {AWS} of me".encode().hex(),
    "line end": f"{AWS[:9]}\n{AWS[9:]}",
    "tags": f"{AWS[:7]}<b>{AWS[7:13]}</b>{AWS[13:]}",
}


@pytest.mark.parametrize("way", HIDDEN)
def test_the_second_scan_reads_a_value_however_it_is_written(way):
    pytest.importorskip("detect_secrets", reason="detect-secrets is not installed")
    finds = second_scan({"page": f"all well\nit is {HIDDEN[way]} here\nand over\nthe end"})
    (find,) = (one for one in finds if "AWS" in one)
    assert find == "page line 2: AWS Access Key"
    assert find.value == HIDDEN[way] and AWS in find.read


def test_the_second_scan_lets_the_path_of_a_run_of_ours_pass():
    run = "20261123T013307Z-quick/000-01_hardware_probe-20c93ae7/notebook.ipynb"
    assert second_scan({"notebook": f'"output_path": "/srv/wt/integ/outputs/{run}"'}) == []


def test_the_second_scan_finds_what_was_planted_and_nothing_after(known):
    pytest.importorskip("detect_secrets", reason="detect-secrets is not installed")
    nb, _, _ = notebook(180, "plain")
    clean, _ = redact_notebook(nb, known)
    assert second_scan({"before": json.dumps(nb, indent=1)})
    after = {"after": json.dumps(clean, indent=1), "keep": "\n".join(MUST_KEEP)}
    assert second_scan(after) == []


def test_the_second_scan_says_why_it_did_not_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "detect_secrets", None)
    why = "second scan not run because detect-secrets is not installed"
    assert second_scan({"a": "b"}) == why


def test_a_long_log_keeps_every_line_without_a_value(known):
    lines = [
        f"[{n:>5}.0] amdgpu 0000:03:00.0: page {n * 4096:#x} of {random.Random(n).choice(MUST_KEEP)}"
        for n in range(600)
    ]
    lines[300] = f"hello {MADE['user'][1]}"
    clean = redact_text("\n".join(lines), known).split("\n")
    assert [n for n, (a, b) in enumerate(zip(lines, clean, strict=True)) if a != b] == [300]
