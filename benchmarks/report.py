"""The tables and sentences of the book's page "How fast", every number from `results.json`."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from IPython.display import HTML

from benchmarks.children import LIMIT_GB
from benchmarks.evaluation import FORWARD_UP_TO
from benchmarks.machine import SIZE
from lengthgen.chapter import table
from lengthgen.evaluation import COLUMNS

__all__ = [
    "PEERS",
    "book_builds",
    "book_pages",
    "dilution",
    "evaluation",
    "glued",
    "machine",
    "peers_ahead",
    "training",
    "transformer",
]

PEERS = {
    "ours": "this package",
    "loop": "plain PyTorch, one model at a time",
    "vmap": "PyTorch vmap over stacked parameters",
    "jax": "JAX jit, vmap and scan",
    "x_transformers": "x-transformers, one model at a time",
    "forward": "plain attention over whole sequences",
    "law": "the law, predicting",
    "sampling": "measuring, one pass for all lengths",
    "evaluation": "measuring, one pass for each length",
}
THREADS = {"": 1, "_two_threads": 2}
Results = dict[str, Any]


def _number(value: float) -> str:
    """Return two or three significant digits, thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2g}" if value < 0.1 else f"{value:.{1 if value >= 10 else 2}f}"


def _spread(entry: Results, factor: float) -> str:
    """Return a median time and, in parentheses, the least and the greatest."""
    middle, low, high = (_number(entry[k] * factor) for k in ("median_s", "min_s", "max_s"))
    return f"{middle} ({low}–{high})"


def _times(cell: Results, name: str) -> str:
    """Return how many times faster than this contestant the package is."""
    if name == "ours":
        return "1"
    low, high = cell[f"speedup_vs_{name}_range"]
    middle = _number(cell[f"speedup_vs_{name}"])
    return f"{middle} ({_number(low)}–{_number(high)})"


def _ordered(section: Results) -> list[tuple[int, Results]]:
    """Return the cells of a section, named by a number, in its order."""
    return sorted((int(key), cell) for key, cell in section.items() if key.isdigit())


def _training_rows(results: Results, section: str, names: tuple[str, ...]) -> Iterator[tuple]:
    for suffix, threads in THREADS.items():
        for n_models, cell in _ordered(results[section + suffix]):
            for name in names:
                entry = cell[name]
                yield (
                    f"{n_models}",
                    f"{threads}",
                    PEERS[name],
                    _spread(entry, 1e3 / cell["steps"]),
                    _times(cell, name),
                    f"{entry['final_loss']:.3f} after {cell['steps']:,}",
                )


TRAINING_HEADS = (
    "models",
    "threads",
    "trained by",
    "ms a step",
    "this package is faster by",
    "mean loss, steps",
)


def training(results: Results) -> HTML:
    """Return the races of training heads."""
    names = ("ours", "loop", "vmap", "jax")
    return table(TRAINING_HEADS, _training_rows(results, "training", names))


def transformer(results: Results) -> HTML:
    """Return the races of training decoders."""
    names = ("ours", "loop", "x_transformers")
    return table(TRAINING_HEADS, _training_rows(results, "transformer", names))


def evaluation(results: Results) -> HTML:
    """Return the races of evaluating heads, with memory."""
    rows = []
    for section, threads in (("", 1), ("_one_model", 1), ("_two_threads", 2)):
        found = results[f"evaluation{section}"]
        for length, cell in _ordered(found):
            for name in ("ours", "forward"):
                if name not in cell:
                    rows.append(
                        (f"{length:,}", found["models"], threads, PEERS[name], *["not run"] * 4)
                    )
                    continue
                entry = cell[name]
                rows.append(
                    (
                        f"{length:,}",
                        found["models"],
                        threads,
                        PEERS[name],
                        _spread(entry, 1.0),
                        _times(cell, name),
                        _number(entry["peak_mb"]),
                        f"{entry['accuracy']:.3f}",
                    )
                )
    heads = ("length", "models", "threads", "evaluated by", "seconds", "this package is faster by")
    return table((*heads, "memory added, MB", "mean accuracy"), rows)


def dilution(results: Results) -> HTML:
    """Return the race of predicting accuracy against measuring it."""
    cell = results["dilution"]
    lengths = [f"accuracy at {length:,}" for length in cell["lengths"]]
    rows = []
    for name in ("law", "sampling", "evaluation"):
        entry = cell[name]
        speedup = "1" if name == "law" else _times(cell, name)
        accuracies = [f"{value:.3f}" for value in entry["accuracy"]]
        rows.append((PEERS[name], _spread(entry, 1.0), speedup, *accuracies))
    return table(("by", "seconds", "the law is faster by", *lengths), rows)


BUILDS = {
    "cold_s": "make book, cold",
    "warm_s": "make book, warm",
    "nbmake_warm_s": "its chapters alone, warm",
}
NOT_MEASURED = HTML("<p>Not measured: <code>python -m benchmarks builds pages</code>.</p>")


def book_builds(results: Results) -> HTML:
    """Return how long the book takes to build."""
    builds = results.get("builds")
    if builds is None:
        return NOT_MEASURED
    rows = [(name, _number(builds[key] / 60)) for key, name in BUILDS.items()]
    return table(("what", "minutes"), rows)


def book_pages(results: Results) -> HTML:
    """Return weight and first interaction of every chapter."""
    if "pages" not in results:
        return NOT_MEASURED
    rows = []
    for chapter, cell in results["pages"].items():
        first = cell["first_interaction"]
        rows.append(
            (
                html.escape(chapter),
                _number(cell["page_kb"]),
                _number(cell["visit_kb"]),
                "nothing to move" if first is None else _spread(first, 1.0),
            )
        )
    return table(("chapter", "page, kB", "first visit, kB", "seconds until a slider answers"), rows)


def machine(results: Results) -> HTML:
    """Return what the numbers were measured on."""
    found = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    text = (
        f"{found['processor']}, {found['cores']} cores, {found['memory_gb']} GB, "
        f"{found['system']}; Python {found['python']}, {versions}"
    )
    return HTML(f'<p class="lg-static">{html.escape(text)}</p>')


def peers_ahead(results: Results) -> HTML:
    """Return every race that this package does not win, as a list, or that there is none."""
    places = [
        (section, key, cell)
        for section, found in results.items()
        if section.split("_")[0] in ("training", "transformer", "evaluation")
        for key, cell in _ordered(found)
    ]
    lost = []
    for section, key, cell in places:
        for name in PEERS:
            speedup = cell.get(f"speedup_vs_{name}")
            if speedup is not None and speedup < 1:
                what = "length" if section.startswith("evaluation") else "models:"
                where = section.replace("_", " ")
                lost.append(
                    f"<li>{where}, {what} {key:,}: {PEERS[name]} is faster by "
                    f"{_number(1 / speedup)}</li>"
                )
    if not lost:
        return HTML("<p>In these races, none.</p>")
    return HTML(f"<ul>{''.join(lost)}</ul>")


def glued(results: Results) -> dict[str, str]:
    """Return the numbers that the page's prose names."""
    training, evaluation = results["training"]["32"], results["evaluation"]
    raced, (longest, alone) = evaluation[str(FORWARD_UP_TO)], _ordered(evaluation)[-1]
    return {
        "models": f"{training['models']}",
        "vs-loop": _number(training["speedup_vs_loop"]),
        "vs-loop-two": _number(results["training_two_threads"]["32"]["speedup_vs_loop"]),
        "vs-vmap": _number(training["speedup_vs_vmap"]),
        "vs-jax": _number(training["speedup_vs_jax"]),
        "jax-compile": _number(training["jax"]["compile_s"]),
        "share": f"{100 * training['share_of_matmul_rate']:.1f} %",
        "matmul": _number(training["matmul_gflops_per_s"]),
        "flops": _number(training["flops_per_step"] / 1e6),
        "loss-difference": f"{training['largest_loss_difference']:.0e}",
        "matmul-rows": f"{SIZE:,}",
        "limit": f"{LIMIT_GB:g} GB",
        "raced-length": f"{FORWARD_UP_TO:,}",
        "vs-forward": _number(raced["speedup_vs_forward"]),
        "exponent": f"{evaluation['growth_exponent']:.2f}",
        "longest": f"{longest:,}",
        "long-memory": _number(alone["peak_mb"]),
        "together": f"{COLUMNS}",
        "sequences": f"{evaluation['sequences']:,}",
        "samples": f"{results['dilution']['samples']:,}",
    }
