"""Pages and parts of them, filled in from the templates of this folder; every text is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from helpers.ground.shapes import Reading, Verdict
from helpers.ground.units import plain

from . import next_steps
from . import verdict as verdict_words
from .html_table import breakable
from .resources import template, words
from .tables import one_source


def render(name: str, **values: object) -> Markup:
    """A file of templates/ with its values filled in."""
    return Markup(_environment().get_template(name).render(**values))


@cache
def _environment() -> jinja2.Environment:
    """The environment of Jinja that all templates share, with the functions and filters that they
    name. A value that a template names and nobody gave is an error (StrictUndefined).
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    environment.globals.update(
        asset=asset,
        glossary=words("rows")["glossary"],
        next_steps=next_steps,
        verdict_words=verdict_words,
    )
    environment.filters["card"] = verdict_html
    environment.filters["hero"] = _leading_verdict
    environment.filters["code"] = verdict_words.code
    environment.filters["breakable"] = _breakable
    environment.filters["source"] = _source
    environment.filters["shown"] = Reading.show
    return environment


def _harmless(value: object) -> object:
    """A value as a template prints it: without control characters, even where the template
    forgets to make it plain.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return plain(value, keep="\n\t")
    return value


def _breakable(text: str) -> Markup:
    """Text as HTML in which long words may break."""
    return Markup(breakable(plain(text)))


def _source(reading: Reading) -> Markup:
    """Where a reading came from, as HTML."""
    return Markup(breakable(one_source([reading])))


@cache
def asset(*names: str) -> tuple[Markup, str]:
    """The named files as the style or the script of a page, and the hash of it as the page's
    Content-Security-Policy has it: browsers then run nothing but what has this hash.
    """
    text = template(*names)
    digest = hashlib.sha256(text.encode()).digest()
    encoded = base64.b64encode(digest).decode()
    return Markup(text), f"'sha256-{encoded}'"


def verdict_html(
    verdict: Verdict,
    hero: bool = False,
    facts: Sequence[tuple[str, str]] = (),
    titled: bool = True,
) -> Markup:
    """The verdict as HTML. ``hero`` makes its headline the headline of the page, ``facts`` are
    pairs of a name and a value about the machine, and ``titled`` is False where the page shows the
    headline of the verdict above it already.
    """
    # How many of three bars are filled: 3 for confirmed, 1 for weak, none for no answer.
    strength = 0
    if verdict.cause != "cannot-tell":
        weakest_first = list(reversed(verdict_words.CONFIDENCE_WORDS))
        strength = 1 + weakest_first.index(verdict.confidence)
    return render(
        "verdict.html.j2",
        verdict=verdict,
        hero=hero,
        facts=facts,
        titled=titled,
        words=verdict_words,
        strength=strength,
    )


def _leading_verdict(verdict: Verdict, facts: Sequence[tuple[str, str]] = ()) -> Markup:
    """The verdict at the head of a page."""
    return verdict_html(verdict, hero=True, facts=facts)
