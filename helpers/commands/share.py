"""The command that makes what may leave the box: share."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.commands.use import ROOT, Verb, WrongUse, print_json

if TYPE_CHECKING:
    from helpers.tell.redact import Known
    from helpers.tell.share import Subject


def register(verb: Verb) -> None:
    """share."""
    share = verb(
        "share",
        _share,
        "one page of a batch, a run or a notebook for others: redacted, with a report of what was",
    )
    share.add_argument(
        "target",
        nargs="?",
        default="",
        help="a batch, a run's folder or an .ipynb (default: the newest batch)",
    )
    share.add_argument(
        "--out", default="", metavar="FILE", help="the page (default: outputs/shared/NAME.html)"
    )
    share.add_argument(
        "--pdf", action="store_true", help="a PDF beside it, through a Chromium of this machine"
    )
    share.add_argument(
        "--issue",
        default="",
        metavar="TRACKER",
        help="a report beside it and the redacted bundle it names: "
        "rocm, rocm-systems, pytorch, linux-amdgpu",
    )
    share.add_argument("--as-is", action="store_true", help="do not redact")
    share.add_argument(
        "--allow-binary", action="store_true", help="keep what cannot be read for sure"
    )
    share.add_argument(
        "--allow-found",
        action="store_true",
        help="write it although the second scan found something",
    )
    share.add_argument("--force", action="store_true", help="replace files that are there")


def _share(arguments: argparse.Namespace) -> int:
    from helpers.look.archive import BundleError
    from helpers.look.files import write_atomic
    from helpers.tell import share
    from helpers.tell.issue_text import TRACKERS
    from helpers.tell.pdf import write_pdf

    if arguments.issue and arguments.issue not in TRACKERS:
        raise WrongUse(f"--issue {arguments.issue}: expected one of {', '.join(TRACKERS)}")
    if arguments.out and not (
        Path(arguments.out).parent.is_dir() and Path(arguments.out).suffix == ".html"
    ):
        raise WrongUse(
            f"--out {arguments.out}: expected a file that ends in .html, in a folder that is there"
        )
    try:
        about = share.subject(_target(arguments.target))
        known = None if arguments.as_is else share.known_of(about)
        made = share.page(about, known, arguments.allow_binary)
        out = _place(arguments.out, made.name)
        wanted = [
            out,
            *([out.with_suffix(".pdf")] if arguments.pdf else []),
            *(_issue_files(out, arguments.issue)),
        ]
        there = [path for path in wanted if os.path.lexists(path)]
        if there and not arguments.force:
            raise WrongUse(f"{there[0]}: already there; choose another --out or add --force")
        if (
            isinstance(made.scan, list)
            and made.scan
            and known is not None
            and not arguments.allow_found
        ):
            raise WrongUse(
                f"the second scan found {len(made.scan)}: {made.scan[0]}; nothing was written; look at it, then "
                "--allow-found"
            )
        write_atomic(out, made.html)
        told = {
            "page": str(out),
            "bytes": len(made.html.encode()),
            "redacted": known is not None,
            "report": made.lines(),
        }
        if arguments.pdf:
            why = write_pdf(out, out.with_suffix(".pdf"))
            told["pdf"] = f"not available because {why}" if why else str(out.with_suffix(".pdf"))
        if arguments.issue:
            told["issue"], told["bundle"] = _issue(arguments, about, known, out)
    except (share.ShareError, BundleError) as error:
        raise WrongUse(str(error)) from error
    except OSError as error:
        raise WrongUse(
            f"{error.filename}: {error.strerror}; expected a place to write to; choose another --out"
        ) from error
    print("\n".join(made.lines()), file=sys.stderr)
    if arguments.json:
        print_json(told)
    else:
        print(
            "\n".join(
                f"{'Open' if name == 'page' else name}: {told[name]}"
                for name in ("page", "pdf", "issue", "bundle")
                if name in told
            )
        )
    return 0


def _target(name: str) -> Path:
    if name:
        if not Path(name).exists():
            raise WrongUse(f"{name}: not there; expected a batch, a run's folder or an .ipynb file")
        return Path(name)
    from helpers.commands.batch import _batch

    return _batch("")


def _place(out: str, name: str) -> Path:
    if out:
        return Path(out)
    folder = ROOT / "outputs" / "shared"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.html"


def _issue_files(out: Path, tracker: str) -> list[Path]:
    return (
        [out.with_name(f"{out.stem}.{tracker}.md"), out.with_name(f"{out.stem}.bundle.tar.gz")]
        if tracker
        else []
    )


def _issue(
    arguments: argparse.Namespace, about: Subject, known: Known | None, out: Path
) -> tuple[str, str]:
    """Write the report and the bundle that goes with it; both paths, or why there is no bundle."""
    from helpers.look.archive import BundleError
    from helpers.look.bundle import open_bundle
    from helpers.look.files import write_atomic
    from helpers.tell.issue_text import Case, issue_text
    from helpers.tell.redact import redact_bundle, redact_text, second_scan

    text_file, bundle_file = _issue_files(out, arguments.issue)
    evidence, where = "", f"not available because {about.no_bundle}"
    if about.bundle and known is not None:
        try:
            redact_bundle(about.bundle, bundle_file, known, arguments.allow_binary, arguments.force)
            digest = hashlib.sha256(bundle_file.read_bytes()).hexdigest()
            evidence = f"Evidence bundle: `{bundle_file.name}`, redacted, SHA-256 `{digest}`"
            where = str(bundle_file)
        except BundleError as error:
            where = f"not available because {error}"
            evidence = (
                "Evidence bundle: not available because it holds members that cannot be redacted"
            )
    elif about.bundle:
        where = evidence = "not available because --as-is makes no copy of a bundle"
    case = Case(
        about.verdict,
        open_bundle(about.bundle) if about.bundle else None,
        about.no_bundle,
        about.steps,
        evidence,
    )
    text = issue_text(arguments.issue, case)
    if known is not None:
        text = redact_text(text, known)
        if (
            isinstance(found := second_scan({"issue": text}), list)
            and found
            and not arguments.allow_found
        ):
            raise WrongUse(
                f"the second scan found {len(found)}: {found[0]}; the report was not written; look at it, then "
                "--allow-found"
            )
    write_atomic(text_file, text)
    return str(text_file), where
