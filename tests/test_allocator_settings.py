"""The settings parser against what torch's compiled allocator made of the same strings, and the sizes that come of them."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocator.blocks import round_size, segment_size
from helpers.settings.allocator_text import MIB, UNLIMITED, SettingsError
from helpers.settings.audit import audit
from helpers.settings.in_force import Settings, from_environment, grid, parse
from helpers.settings.releases import behaviour

SEEN = json.loads((Path(__file__).parent / "samples" / "allocator_settings.json").read_text())
NEW = behaviour("2.14.1")
FIRST = "large_segment_size_mb:64,max_split_size_mb:128,roundup_power2_divisions:8"
RELEASES = ("2.6", "2.11", "2.13", "2.14")


def outcome(conf, rules, previous=None):
    """What parse makes of a string, in the words of the sample."""
    try:
        found = parse(conf, rules, previous)
    except SettingsError as error:
        assert "\n" not in str(error)
        return "refused"
    out = {}
    if found.max_split_bytes != UNLIMITED:
        out["max_split"] = found.max_split_bytes
    if found.gc_threshold:
        out["gc"] = found.gc_threshold
    if found.expandable:
        out["expandable"] = True
    if any(found.roundup_divisions):
        out["roundup"] = " ".join(map(str, found.roundup_divisions))
    if found.fraction not in (None, 1.0):
        out["fraction"] = found.fraction
    return out or "defaults"


def seen_as(out):
    """A row of the sample, with what the allocator cannot tell from no limit made no limit."""
    if isinstance(out, dict) and out.get("max_split", 0) < 0:
        out = {key: value for key, value in out.items() if key != "max_split"}
    return out or "defaults"


def test_a_share_that_no_double_can_hold_is_refused():
    for share in ("0x1p9999", "0x" + "f" * 300, "9" * 400):
        with pytest.raises(SettingsError, match="wants a number between 0 and 1"):
            parse(f"garbage_collection_threshold:{share}", NEW)
    assert parse("garbage_collection_threshold:0x.8", NEW).gc_threshold == 0.5


@pytest.mark.parametrize("release", RELEASES)
def test_every_string_is_taken_or_refused_as_by_the_real_allocator(release):
    rules = behaviour(release)
    compared = 0
    for conf, seen in SEEN["conf"]:
        for names, expected in seen.items():
            if release in names.split():
                assert outcome(conf, rules) == seen_as(expected), conf
                compared += 1
    assert compared > 220


@pytest.mark.parametrize(("setting", "expected"), SEEN["environment_2.14"])
def test_the_variables_count_as_with_the_real_allocator(setting, expected):
    environ = dict(word.split("=", 1) for word in setting.split(" "))
    conf, name = from_environment(environ, NEW)
    assert outcome(conf, NEW) == expected
    assert name == next(iter(environ))


@pytest.mark.parametrize(("first", "then", "expected"), SEEN["set_again_2.14"])
def test_setting_again_keeps_what_the_real_allocator_keeps(first, then, expected):
    again = parse(then, NEW, parse(first, NEW))
    # The limit stays too, and with it the fraction.
    assert outcome(then, NEW, parse(first, NEW)) == {**expected, "fraction": 0.5}
    assert again.fraction == 0.5


def test_setting_again_resets_the_sizes_but_that_of_large_segments_and_leaves_the_limit():
    first = parse(f"{FIRST},throw_on_cudamalloc_oom:True", NEW)
    again = parse("per_process_memory_fraction:0.5", NEW, first)
    assert (again.max_split_bytes, set(again.roundup_divisions)) == (UNLIMITED, {0})
    # Measured, torch 2.14.
    assert (again.large_segment_bytes, again.non_split_rounding_bytes) == (64 * MIB, 64 * MIB)
    assert again.throw_on_oom and again.fraction == 0.5
    assert any("leaves the limit" in line for line in again.ignored)


def test_a_refusal_at_run_time_leaves_what_stood_before_the_fault():
    first = parse(FIRST, NEW)
    with pytest.raises(SettingsError) as caught:
        parse("garbage_collection_threshold:0.5,max_split_size_mb:5", NEW, first)
    left = caught.value.left
    assert (left.gc_threshold, left.max_split_bytes) == (0.5, UNLIMITED)
    assert set(left.roundup_divisions) == {0}
    assert left.large_segment_bytes == 64 * MIB


def test_the_size_of_unsplit_rounding_survives_setting_again_only_before_2_11():
    conf = "max_split_size_mb:128,max_non_split_rounding_mb:64"
    for release, kept in (("2.6", 64), ("2.10", 64), ("2.11", 20), ("2.14", 20)):
        rules = behaviour(release)
        assert parse("", rules, parse(conf, rules)).non_split_rounding_bytes == kept * MIB, release


def test_unsplit_rounding_follows_the_large_segment_unless_named():
    assert parse("large_segment_size_mb:64", NEW).non_split_rounding_bytes == 64 * MIB
    named = parse("max_non_split_rounding_mb:80,large_segment_size_mb:64", NEW)
    assert named.non_split_rounding_bytes == 80 * MIB


@pytest.mark.parametrize(
    ("conf", "torch", "words"),
    [
        (
            "max_split_size_mb:20",
            "2.6",
            "max_split_size_mb is too small: 20, at least 21 is needed",
        ),
        ("expandable_segments:true", "2.14.1", "True or False, found 'true'"),
        ("large_segment_size_mb:64", "2.9", "unrecognized key 'large_segment_size_mb'"),
        ("backend:cudaMallocAsync", "2.14.1", "cannot be replayed"),
    ],
)
def test_a_refusal_says_what_was_expected(conf, torch, words):
    with pytest.raises(SettingsError, match=words):
        parse(conf, behaviour(torch))


@pytest.mark.parametrize(
    ("form", "reserve"),
    [
        ("1.5", (True, 1.5)),
        ("3e-1", (True, 0.3)),
        ("40G", (False, 40.0)),
        ("0.5g", (False, 0.5)),
        *((text, (True, 0.25)) for text in ("nonsense", "0", "-1", "64M", "1e999", "inf", "G")),
    ],
)
def test_the_reserve_of_2_15_is_read_and_one_that_torch_warns_of_leaves_what_held(form, reserve):
    text = f"expandable_segments_reserve:{form}"
    rules = behaviour("2.15")
    before = parse("expandable_segments_reserve:0.25", rules)
    assert parse(text, rules, before).reserve == reserve
    with pytest.raises(SettingsError):
        parse(text, NEW)


def test_dangers_are_named():
    def said(conf, torch="2.14.1", build="cuda"):
        return " ".join(parse(conf, behaviour(torch, build)).warnings)

    both = "expandable_segments:True,max_split_size_mb:128"
    assert "grows without end" in said(both) and "assertion" not in said(both)
    assert "assertion" in said(both, "2.4")
    on_rocm = said(both, build="rocm7.2")
    assert "legacy-rocm-build#6603" in on_rocm and "grows" in on_rocm
    assert said("expandable_segments:True") == said("max_split_size_mb:128") == ""
    gc = "garbage_collection_threshold:0.8"
    assert "does nothing unless a memory fraction below 1" in said(gc)
    whole, part = (f"{gc},per_process_memory_fraction:{share}" for share in (1.0, 0.99))
    assert said(whole) and not said(part)
    assert "before the cache is flushed" in said("throw_on_cudamalloc_oom:True")


def test_a_build_without_expandable_segments_goes_on_without_them():
    old = parse("expandable_segments:True,max_split_size_mb:128", behaviour("2.9.1+rocm6.4"))
    assert not old.expandable and not old.warnings and "goes on without" in old.ignored[0]
    assert parse("expandable_segments:True", behaviour("2.13.0", "rocm7.2")).expandable


@pytest.mark.parametrize(
    "size, divisions, block",
    [
        (5 * MIB + 1, 0, 5 * MIB + 512),
        (9 * MIB, 4, 10 * MIB),
        (8 * MIB, 4, 8 * MIB),
        (700, 4, 1024),
        (1000 * 1000, 4, MIB),
        (2000, 4, 2048),
    ],
)
def test_requests_are_rounded_as_the_source_rounds(size, divisions, block):
    assert round_size(size, (divisions,) * 16) == block


@pytest.mark.parametrize(
    ("requested", "size", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10_485_248, 10_485_248, 20 * MIB),
        (10_485_249, 10 * MIB, 10 * MIB),
        (25 * MIB, 25 * MIB, 26 * MIB),
    ],
)
def test_sizes_are_those_seen_on_the_real_allocator(requested, size, segment):
    rounded = round_size(requested, Settings().roundup_divisions)
    assert (rounded, segment_size(rounded, Settings().large_segment_bytes)) == (size, segment)


def test_a_large_segment_size_holds_for_middle_sizes_only():
    found = parse("large_segment_size_mb:64", NEW)
    sizes = [segment_size(mib * MIB, found.large_segment_bytes) for mib in (1, 2, 9, 10, 33)]
    assert [size // MIB for size in sizes] == [2, 64, 64, 10, 34]


def divided(n, divisions):
    """The rule in words: the next of so many equal steps between two powers of two, from the lower one on."""
    low = 1
    while low * 2 <= n:
        low *= 2
    step = low // divisions
    return next(low + k * step for k in range(divisions + 1) if low + k * step >= n)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 1 << 38), st.sampled_from((1, 2, 4, 8, 16, 32)))
def test_rounding_to_divisions_follows_the_rule(n, divisions):
    rounded = round_size(n, parse(f"roundup_power2_divisions:{divisions}", NEW).roundup_divisions)
    if divisions == 1 or n <= 512 * divisions:
        assert rounded == max(-(-n // 512) * 512, 512)
    else:
        assert rounded == divided(n, divisions)
    assert rounded >= n and rounded % 512 == 0


def test_a_list_of_divisions_holds_by_interval():
    found = parse("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]", NEW)
    for mib, divisions in ((1, 8), (64, 8), (127, 8), (128, 2), (300, 4), (600, 2), (1500, 4)):
        n = mib * MIB + 7
        assert round_size(n, found.roundup_divisions) == divided(n, divisions)
    assert round_size(3000 * MIB + 1, found.roundup_divisions) == 3000 * MIB + 512


TORCHES = "2.4 2.6 2.9.0+rocm6.4 2.10 2.12 2.14.1 2.14.1+rocm7.2 2.15.0 2.20".split()


@pytest.mark.parametrize("torch", TORCHES)
def test_what_is_tried_by_default_is_taken_by_the_build_and_without_danger(torch):
    rules = behaviour(torch)
    confs = grid(rules)
    assert confs[0] == "" and len(set(confs)) == len(confs) >= 30
    for conf in confs:
        found = parse(conf, rules)
        assert not found.warnings and not found.ignored, conf
        assert conf == "" or found != Settings(conf), conf


KEYS = (
    "max_split_size_mb roundup_power2_divisions large_segment_size_mb expandable_segments".split()
)
TOKENS = [*"[]:,> x", *KEYS, "64", "256", "-1", "0.5", "True", "garbage_collection_threshold"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(TOKENS), max_size=14),
    st.sampled_from(("2.5", "2.6", "2.12", "2.15")),
)
def test_any_text_is_taken_or_refused_in_one_line(tokens, torch):
    try:
        found = parse("".join(tokens), behaviour(torch))
    except SettingsError as error:
        assert "\n" not in str(error)
    else:
        assert len(found.roundup_divisions) == 16


CUDA = "PYTORCH_CUDA_ALLOC_CONF"
HIP = "PYTORCH_HIP_ALLOC_CONF"
PLAIN = "PYTORCH_ALLOC_CONF"
SPLIT = "max_split_size_mb:64"
HALF = "per_process_memory_fraction:0.5"
MORE = "per_process_memory_fraction:0.7"


@pytest.mark.parametrize(
    ("environ", "torch", "conf", "winner", "told"),
    [
        ({PLAIN: SPLIT}, "2.9.1", "", "", {(PLAIN, "ineffective")}),
        (
            {CUDA: "", PLAIN: SPLIT},
            "2.14.1",
            "",
            CUDA,
            {(CUDA, "ineffective"), (PLAIN, "shadowed")},
        ),
    ],
)
def test_variables_that_do_not_count_are_named(environ, torch, conf, winner, told):
    assert from_environment(environ, behaviour(torch)) == (conf, winner)
    assert {(found.name, found.verdict) for found in audit(environ, torch, "cuda")} == told


def test_a_key_of_the_cuda_build_alone_comes_from_another_variable():
    environ = {HIP: f"{HALF},{SPLIT}", PLAIN: MORE}
    assert from_environment(environ, NEW)[0] == f"{SPLIT},{MORE}"
    passed = [one for one in audit(environ, "2.14.1", "cuda") if "passed over" in one.says]
    assert [(one.name, one.value) for one in passed] == [(HIP, HALF)]
