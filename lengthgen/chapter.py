"""What every chapter does around its subject: the look, frozen results, their provenance."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import HTML
from matplotlib_inline.backend_inline import set_matplotlib_formats

from lengthgen import figures
from lengthgen.claims import WORDS, check_claims
from lengthgen.results import Result, project_root

__all__ = ["agreement", "begin", "frozen", "glue_all", "ledger", "provenance"]


def begin() -> None:
    """Give the notebook's pictures the book's look, as SVG that does not change between builds."""
    set_matplotlib_formats("svg", bbox_inches="tight", metadata={"Date": None})
    plt.rcParams.update(figures.SETTINGS)


def frozen(name: str) -> Result:
    """Return an experiment's frozen result: the paper profile, as kept in `results/`.

    Raises:
        FileNotFoundError: there is none; says how to make it.
    """
    path = project_root() / "results" / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(
            f"no {path}: clone the whole repository, or run `lengthgen reproduce {name}`"
        )
    return Result.load(path)


def provenance(*results: Result) -> HTML:
    """Return a line that says where frozen numbers come from, with links to the data."""
    parts = []
    for result in results:
        name, environment = html.escape(result.experiment), result.environment
        parts.append(
            f'<a href="../results/{name}.json">{name}.json</a>: {result.profile} profile, '
            f"{len(result.rows):,} rows, seeds {min(result.seeds)} to {max(result.seeds)}, "
            f"code {environment['code']}, PyTorch {environment['torch']}; "
            f"again with <code>lengthgen reproduce {name}</code>"
        )
    return HTML('<p class="lg-static">' + "<br>".join(parts) + "</p>")


def agreement(
    fresh: Iterable[Mapping[str, Any]], kept: Iterable[Mapping[str, Any]]
) -> tuple[int, float]:
    """Compare accuracies computed now with frozen ones.

    Returns:
        the number of cells that both have, and the largest difference of accuracy among them.

    Raises:
        ValueError: no cell in common.
    """
    cell = ("encoding", "offset", "seed", "length", "n_sequences")
    table = {tuple(row[c] for c in cell): row["accuracy"] for row in kept if "accuracy" in row}
    pairs = [
        (row["accuracy"], table[key])
        for row in fresh
        if "accuracy" in row and (key := tuple(row[c] for c in cell)) in table
    ]
    if not pairs:
        raise ValueError("no row in common: compare results of the same experiment")
    return len(pairs), max(abs(a - b) for a, b in pairs)


def glue_all(prefix: str, values: Mapping[str, Any]) -> None:
    """Make numbers available to the prose as `PREFIX-NAME`."""
    from myst_nb import glue  # only the book needs it

    for name, value in values.items():
        glue(f"{prefix}-{name}", value, display=False)


def ledger(prefix: str) -> HTML:
    """Return the claims of one prefix, held against the frozen results, as a table.

    Raises:
        ValueError: no claim has this prefix.
    """
    verdicts = check_claims(project_root() / "results")
    chosen = [verdict for verdict in verdicts if verdict.id.startswith(f"{prefix}.")]
    if not chosen:
        prefixes = sorted({verdict.id.split(".")[0] for verdict in verdicts})
        raise ValueError(f"no claim starts with {prefix!r}; choose from {', '.join(prefixes)}")
    rows = []
    for verdict in chosen:
        name = html.escape(verdict.experiment)
        seeds = len(frozen(verdict.experiment).seeds)
        cells = (
            f"<code>{html.escape(verdict.id)}</code>",
            html.escape(verdict.statement),
            html.escape(verdict.source),
            f"{verdict.value:.4g}",
            html.escape(verdict.criterion.replace(">=", "≥").replace("<=", "≤")),
            f"<strong>{WORDS[verdict.passed]}</strong>",
            f'<a href="../results/{name}.json">{name}</a>, {seeds} seed{"s" if seeds > 1 else ""}',
        )
        first, *rest = cells
        rows.append(
            f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{c}</td>" for c in rest) + "</tr>"
        )
    heads = ("claim", "statement", "source", "value", "criterion", "verdict", "data")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return HTML(
        f'<div class="pst-scrollable-table-container"><table class="table lg-ledger">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
