"""A bundle is believed only when it is whole, and an archive that could harm its reader is refused with one line."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from other_user import as_nobody, open_folder  # noqa: F401 - a fixture

from helpers.look import archive
from helpers.look.archive import BundleError, BundleHostile
from helpers.look.bundle import Bundle, BundleWriter, open_bundle

QUICK = settings(max_examples=50, deadline=None)
SOURCES = ["", *"/proc/1 /proc/1/status /a /a/b a ../x / /~2/a".split(), "n" * 400, "n" * 300]
ENDINGS = ("", ".tar.gz", ".tgz")


def writer():
    made = BundleWriter("box-test", "constructed", "0.1.0", "2026-01-02T03:04:05Z")
    made.add("file", "/proc/meminfo", "MemTotal: 1024 kB\n")
    made.add("file", "/sys/class/drm/card0/device/mem_info_vram_used", "0\n")
    made.add("command", "rocm-smi --json", None, status="not_available", why="no such program")
    made.add("file", "processes", '{"pid": 1}\nno json\n[1]\n{"pid": 2}\n')
    made.add("file", "/proc/odd", b"\xff\xfe\x00odd")
    return made


def packed(path, members, **options):
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", **options) as tar:  # type: ignore[call-overload]
        for member, content in members:
            tar.addfile(member, io.BytesIO(content) if member.isreg() else None)
    whole = path / "hostile.tar.gz"
    whole.write_bytes(gzip.compress(plain.getvalue(), 1))
    return whole


def member(name, size=0, kind=tarfile.REGTYPE, to=""):
    made = tarfile.TarInfo(name)
    made.size = size
    made.type = kind
    made.linkname = to
    return made


def good_members():
    made = writer()
    files = {"manifest.json": json.dumps(made.manifest()).encode(), **made.bundle().contents}
    return [(member(name, len(content)), content) for name, content in files.items()]


def refusal(path):
    with pytest.raises(BundleError) as caught:
        open_bundle(path)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500 and text.startswith(str(path)), text
    return caught.value


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_written_is_read_back_the_same(tmp_path, ending):
    made = writer()
    out = made.write(tmp_path / ("b" + ending))
    assert open_bundle(out) == made.bundle()
    assert [path.name for path in tmp_path.iterdir()] == [out.name], "a part file was left"


def test_absent_refused_and_empty_stay_apart(tmp_path):
    made = writer()
    made.add("file", "/empty", "")
    made.add("file", "/refused", None, status="not_allowed", why="Permission denied (EACCES)")
    bundle = open_bundle(made.write(tmp_path / "b"))
    assert bundle.read("/empty").ok and bundle.read("/empty").text == ""
    for source, status, why in (
        ("/refused", "not_allowed", "Permission denied (EACCES)"),
        ("/never", "not_available", "not captured"),
    ):
        assert (bundle.read(source).status, bundle.read(source).why) == (status, why)
    assert bundle.read("/proc/odd").text.endswith("odd"), "a text that is no UTF-8 is still read"
    assert bundle.table("processes") == [{"pid": 1}, {"pid": 2}]


def test_two_packings_of_one_bundle_hold_the_same_members_in_the_same_order(tmp_path):
    writer().write(tmp_path / "one.tar.gz")
    writer().write(tmp_path / "two.tar.gz")
    with tarfile.open(tmp_path / "one.tar.gz") as one, tarfile.open(tmp_path / "two.tar.gz") as two:
        assert one.getnames() == two.getnames() and one.getnames()[0] == "manifest.json"


HARMFUL = {
    "traversal": [(member("../../etc/cron.d/x", 1), b"x")],
    "absolute": [(member("/etc/passwd", 1), b"x")],
    "backslash": [(member("a\\..\\b", 1), b"x")],
    "symlink": [(member("raw/l", 0, tarfile.SYMTYPE, "/etc/shadow"), b"")],
    "hardlink": [(member("raw/h", 0, tarfile.LNKTYPE, "manifest.json"), b"")],
    "device": [(member("raw/d", 0, tarfile.BLKTYPE), b"")],
    "fifo": [(member("raw/f", 0, tarfile.FIFOTYPE), b"")],
    "character device": [(member("raw/s", 0, tarfile.CHRTYPE), b"")],
    "twice": [(member("raw/t", 1), b"1"), (member("raw/t", 1), b"2")],
    "twice by spelling": [(member("raw/t", 1), b"1"), (member("raw/./t", 1), b"2")],
}


@pytest.mark.parametrize("kind", HARMFUL)
def test_an_archive_that_could_harm_is_refused(tmp_path, kind):
    before = sorted(path.name for path in tmp_path.parent.iterdir())
    path = packed(tmp_path, good_members() + HARMFUL[kind])
    assert isinstance(refusal(path), BundleHostile)
    after = sorted(path.name for path in tmp_path.parent.iterdir())
    assert after == before, "something was written"


# A member of 10 GiB, and headers that are themselves a bomb.
BOMBS = [member("raw/huge", 10 << 30)] + [
    member("x", 4 << 30, kind) for kind in (b"x", b"g", b"L", b"K", b"S", b"?")
]


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: str(bomb.type))
def test_a_bomb_is_refused_before_it_is_read(tmp_path, bomb):
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(bomb.tobuf(tarfile.GNU_FORMAT) + bytes(4 << 20)))
    assert isinstance(refusal(path), BundleHostile)


def test_headers_nested_without_end_are_refused(tmp_path):
    path = tmp_path / "nested.tar.gz"
    header = member("x", 512, tarfile.XHDTYPE).tobuf(tarfile.GNU_FORMAT)
    path.write_bytes(gzip.compress((header + b"9 path=a\n".ljust(512, b"\0")) * 5000))
    refusal(path)


@pytest.mark.parametrize(
    ("limit", "most", "says"),
    [
        ("BUNDLE_LIMIT_BYTES", 4 << 20, "more than 4 MiB"),
        ("MEMBER_LIMIT_BYTES", 1 << 19, "larger than"),
        ("MEMBER_LIMIT_COUNT", 4, "more than 4 files"),
    ],
)
def test_an_archive_costs_no_more_memory_than_a_bundle_may(
    tmp_path, monkeypatch, limit, most, says
):
    monkeypatch.setattr(archive, limit, most)
    many = good_members() + [(member(f"raw/{n}", 1 << 20), bytes(1 << 20)) for n in range(12)]
    path = packed(tmp_path, many)
    assert path.stat().st_size < 1 << 18
    error = refusal(path)
    assert isinstance(error, BundleHostile) and says in str(error)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_an_archive_that_a_person_packed_with_tar_is_read(tmp_path, form):
    named = ((f"my-capture/{one.name}", content) for one, content in good_members())
    inside = [(member(name, len(content)), content) for name, content in named]
    path = packed(tmp_path, [(member("my-capture", 0, tarfile.DIRTYPE), b""), *inside], format=form)
    assert open_bundle(path) == writer().bundle()


def test_a_name_longer_than_a_plain_header_holds_is_read(tmp_path):
    made = writer()
    groups = "/".join(["a-rather-long-name-of-a-group"] * 8)
    made.add("file", f"/sys/fs/cgroup/{groups}/memory.max", "max\n")
    assert open_bundle(made.write(tmp_path / "b.tar.gz")) == made.bundle()


def test_a_torn_archive_is_refused_wherever_it_was_cut(tmp_path):
    whole = packed(tmp_path, good_members()).read_bytes()
    torn = tmp_path / "torn.tar.gz"
    for kept in sorted({4, 5, 20, len(whole) // 3, len(whole) // 2, len(whole) - 40}):
        torn.write_bytes(whole[:kept])
        assert not isinstance(refusal(torn), BundleHostile)


@QUICK
@given(data=st.data())
def test_changed_bytes_never_give_other_content(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flip")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for one, content in good_members():
            tar.addfile(one, io.BytesIO(content))
    raw = bytearray(plain.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "flipped.tar.gz"
    path.write_bytes(gzip.compress(bytes(raw), 1))
    try:
        opened = open_bundle(path)
    except BundleError as error:
        assert "\n" not in str(error)
        return
    for item in (item for item in opened.items if item.path):
        assert hashlib.sha256(opened.contents[item.path]).hexdigest() == item.sha256


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@QUICK
@given(
    manifest=JSON
    | st.fixed_dictionaries(dict.fromkeys(("schema_version", "items", "box", "kind"), JSON))
)
def test_any_json_as_a_manifest_is_refused_in_one_line(manifest, tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "b"
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps(manifest))
    refusal(path)


KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "source", "why"), (str,)),
    **{"exit": (int, type(None)), "seconds": (int, float), "bytes": (int,), "constructed": (bool,)},
    **dict.fromkeys(("kind", "path", "status", "sha256"), ()),
}


@QUICK
@given(key=st.sampled_from(sorted(KINDS)), value=JSON)
def test_a_wrong_type_in_an_item_is_refused(key, value, tmp_path_factory):
    path = writer().write(tmp_path_factory.mktemp("i") / "b")
    manifest = json.loads((path / "manifest.json").read_text())
    before = manifest["items"][0][key]
    manifest["items"][0][key] = value
    (path / "manifest.json").write_text(json.dumps(manifest))
    if type(value) in KINDS[key] or (key == "path" and value in (before, "")):
        assert isinstance(open_bundle(path), Bundle)
    else:
        refusal(path)


def test_nested_without_end_json_is_refused(tmp_path):
    path = tmp_path / "b"
    path.mkdir()
    (path / "manifest.json").write_text("[" * 200_000)
    assert not isinstance(refusal(path), BundleHostile)


def test_a_table_line_nested_without_end_is_left_out(tmp_path):
    made = writer()
    made.add("file", "libraries", "[" * 200_000 + '\n{"name": "kept"}\n')
    assert open_bundle(made.write(tmp_path / "b")).table("libraries") == [{"name": "kept"}]


ODD: list[dict[str, object]] = [
    *({"schema_version": version} for version in (2, 0, "1", True)),
    *({"items": items} for items in ({}, [1], [{"id": "x"}])),
    {"kind": "invented"},
    {"box": None},
]


@pytest.mark.parametrize("change", ODD, ids=str)
def test_a_manifest_this_reader_does_not_know_is_refused(tmp_path, change):
    path = writer().write(tmp_path / "b")
    (path / "manifest.json").write_text(json.dumps({**writer().manifest(), **change}))
    newer = change.get("schema_version") == 2
    assert ("update the workbook" in str(refusal(path))) is newer


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("raw/proc/meminfo", b"MemTotal: 2048 kB\n", "sha256"),
        ("raw/extra.pickle", b"\x80\x04.", "not named in the manifest"),
        ("raw/proc/meminfo", None, "raw/proc/meminfo"),
    ],
)
def test_what_was_not_captured_is_refused(tmp_path, name, content, says):
    path = writer().write(tmp_path / "b")
    (path / name).unlink() if content is None else (path / name).write_bytes(content)
    assert says in str(refusal(path))


@pytest.mark.parametrize("name", ["nowhere", "nowhere/at/all.tar.gz", "n" * 5000])
def test_a_path_with_nothing_there_is_refused(tmp_path, name):
    with pytest.raises(BundleError, match="expected"):
        open_bundle(tmp_path / name)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04zip", b"\x28\xb5\x2f\xfdzstd", b"\x80\x04pickle", b"plain words\n"]
)
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "b.tar.gz"
    path.write_bytes(content)
    assert not isinstance(refusal(path), BundleHostile)


def test_a_folder_with_a_link_or_a_pipe_in_it_is_refused_and_neither_is_opened(tmp_path):
    for special in ("pipe", "/etc", "/etc/passwd"):
        path = writer().write(tmp_path / special.replace("/", "_"))
        if special == "pipe":
            os.mkfifo(path / "raw/pipe")
        else:
            (path / "raw/l").symlink_to(special)
        assert isinstance(refusal(path), BundleHostile)


def test_a_bundle_that_may_not_be_read_says_so(open_folder: Path) -> None:  # noqa: F811
    path = writer().write(open_folder / "b")
    shutil.copytree(path, open_folder / "c")
    (path / "manifest.json").chmod(0)
    (open_folder / "c/raw/proc").chmod(0)
    code = (
        "import json; from helpers.look.bundle import open_bundle; from helpers.look.archive import BundleError\n"
        "try: open_bundle(sys.argv[1])\nexcept BundleError as error: print(json.dumps(str(error)))"
    )
    for name, word in (("b", "manifest.json"), ("c", "raw/proc")):
        said = as_nobody(code, open_folder / name)
        assert word in said and "Permission denied" in said and "\n" not in said


def test_nothing_is_replaced_without_force(tmp_path):
    out = writer().write(tmp_path / "b.tar.gz")
    before = out.read_bytes()
    with pytest.raises(BundleError, match="--force"):
        writer().write(out)
    assert out.read_bytes() == before
    time.sleep(0.01)
    assert open_bundle(writer().write(out, force=True)) == writer().bundle()


def test_force_never_replaces_a_folder_that_is_no_bundle_nor_a_link(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    (tmp_path / "link").symlink_to(home)
    for out in (home, tmp_path / "link"):
        with pytest.raises(BundleError):
            writer().write(out, force=True)
    assert (home / "thesis.txt").read_text() == "years of work"
    bundle = writer().write(tmp_path / "bundle")
    assert writer().write(bundle, force=True) == bundle


def test_a_write_that_fails_leaves_nothing_and_says_why(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "replace", full)
    with pytest.raises(BundleError, match="No space left"):
        writer().write(tmp_path / "b.tar.gz")
    assert list(tmp_path.iterdir()) == []


@given(sources=st.lists(st.text(max_size=40) | st.sampled_from(SOURCES), unique=True, max_size=12))
@QUICK
def test_any_source_can_be_kept_and_found_again(sources, tmp_path_factory):
    made = BundleWriter("b", "live", "0", "now")
    for number, source in enumerate(sources):
        made.add("file" if number % 2 else "command", source, f"text {number}")
    folder = tmp_path_factory.mktemp("any")
    for out in (folder / "f", folder / "a.tar.gz"):
        bundle = open_bundle(made.write(out))
        texts = [bundle.read(source).text for source in sources]
        assert texts == [f"text {n}" for n in range(len(sources))]


def test_a_text_that_no_file_could_hold_is_kept_as_near_as_can_be():
    writer = BundleWriter("made", "constructed", "0", "")
    writer.add("file", "/a", "half a pair: \ud800")
    writer.add("file", "/b", b"not UTF-8: \xff".decode("utf-8", "surrogateescape"))
    bundle = writer.bundle()
    assert bundle.read("/a").text == "half a pair: ?"
    assert bundle.contents["raw/b"] == b"not UTF-8: \xff"
