"""The command line: `lengthgen reproduce`, `claims`, `diagnose` and `selfcheck`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lengthgen import __version__
from lengthgen.results import project_root

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code (0 done, 1 a claim or check failed, 2 bad input)."""
    try:
        options = _parser().parse_args(arguments)
        return options.command(options)
    except (ValueError, OSError) as error:
        print(f"lengthgen: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "lengthgen: interrupted; finished units are kept, the same command goes on from there",
            file=sys.stderr,
        )
        return 130


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see `{self.prog} --help`)")


def _parser() -> _Parser:
    parser = _Parser(prog="lengthgen", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    reproduce = commands.add_parser("reproduce", help="run experiments and write their results")
    reproduce.add_argument("names", nargs="*", metavar="NAME", help="experiments; all by default")
    reproduce.add_argument("--profile", default="paper", help="quick or paper (default)")
    reproduce.add_argument(
        "--out", type=Path, help="folder; default: results (paper), _build/results/quick (quick)"
    )
    reproduce.add_argument("--seeds", type=int, help="number of seeds instead of the profile's")
    _add_jobs(reproduce)
    reproduce.add_argument(
        "--backend", default="loky", help="loky: processes here (default); dask: a cluster"
    )
    reproduce.add_argument(
        "--scheduler", metavar="ADDRESS", help="of a dask cluster; default: one on this machine"
    )
    reproduce.add_argument("--device", help="cpu (default) or cuda; default: $LENGTHGEN_DEVICE")
    reproduce.add_argument(
        "--fresh", action="store_true", help="replace damaged or foreign results in the folder"
    )
    reproduce.set_defaults(command=_reproduce)

    claims = commands.add_parser("claims", help="check every claim against results")
    claims.add_argument("--results", type=Path, help="folder; default: results")
    claims.add_argument("--json", action="store_true", help="print JSON")
    claims.set_defaults(command=_claims)

    diagnose = commands.add_parser("diagnose", help="report card of one positional encoding")
    diagnose.add_argument(
        "encoding", metavar="ENCODING", help="a name, or path/to/file.py:ClassName"
    )
    diagnose.add_argument("--offset", type=int, default=2, help="the task; default: 2")
    diagnose.add_argument("--json", action="store_true", help="print JSON, write no files")
    diagnose.set_defaults(command=_diagnose)

    selfcheck = commands.add_parser(
        "selfcheck", help="compute frozen results again, from nothing, and compare every row"
    )
    selfcheck.add_argument("names", nargs="*", metavar="NAME", help="experiments; all by default")
    selfcheck.add_argument("--results", type=Path, help="folder; default: results")
    selfcheck.add_argument("--profile", default="paper", help="of the results; default: paper")
    _add_jobs(selfcheck)
    selfcheck.set_defaults(command=_selfcheck)
    return parser


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, help="processes; default: one per core")


def _reproduce(options: argparse.Namespace) -> int:
    from lengthgen.device import DEVICE, check_device
    from lengthgen.reproduce import default_folder, reproduce

    if options.device is not None:
        check_device(options.device)
        os.environ[DEVICE] = options.device  # worker processes are told by it
    out = options.out or default_folder(options.profile, project_root())
    reproduce(
        options.names,
        options.profile,
        out,
        n_seeds=options.seeds,
        jobs=options.jobs,
        backend=options.backend,
        scheduler=options.scheduler,
        fresh=options.fresh,
    )
    return 0


def _claims(options: argparse.Namespace) -> int:
    from lengthgen.claims import check_claims, text_table
    from lengthgen.results import to_json

    verdicts = check_claims(options.results or project_root() / "results")
    print(json.dumps(to_json(verdicts), indent=1) if options.json else text_table(verdicts))
    if any(verdict.passed is None for verdict in verdicts):
        return 2
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _diagnose(options: argparse.Namespace) -> int:
    from lengthgen.diagnosis import diagnose

    card = diagnose(options.encoding, options.offset)
    if options.json:
        print(card.to_bytes().decode(), end="")
        return 0
    picture, numbers = card.save(project_root() / "_build" / "diagnose")
    print(f"{card}\npicture in {picture}\nnumbers in {numbers}")
    return 0


def _selfcheck(options: argparse.Namespace) -> int:
    from lengthgen.selfcheck import selfcheck, text_table

    folder = options.results or project_root() / "results"
    checks = selfcheck(options.names, folder, profile=options.profile, jobs=options.jobs)
    print(text_table(checks))
    return 0 if all(check.passed for check in checks) else 1
