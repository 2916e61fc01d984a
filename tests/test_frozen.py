"""The frozen results are those of the present code, whole, in the book's profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from lengthgen.code_hash import code_hash
from lengthgen.experiments import NAMES, get
from lengthgen.reproduce import _results_page
from lengthgen.results import Result, to_json

FROZEN = Path(__file__).parent.parent / "results"
LEAST_SEEDS = {"base": 1, "prop1": 3, "transformer": 5, "selection": 10}
"""Fewer than the twenty of the other experiments: each says why in its configuration."""

every_experiment = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def frozen():
    """`frozen("shift")`: the frozen result, read once."""
    kept = {}

    def frozen(name):
        if name not in kept:
            kept[name] = Result.load(FROZEN / f"{name}.json")
        return kept[name]

    return frozen


@every_experiment
def test_a_frozen_result_was_computed_by_the_present_code(frozen, name):
    found = frozen(name).environment["code"]
    assert found == code_hash(get(name).module), f"stale: run `lengthgen reproduce {name}`"


@every_experiment
def test_a_frozen_result_is_the_present_paper_profile(frozen, name):
    result = frozen(name)
    assert result.profile == "paper"
    assert result.config == to_json(get(name).config("paper"))


@every_experiment
def test_every_seed_is_listed_and_used(frozen, name):
    result = frozen(name)
    assert result.seeds == list(range(len(result.seeds)))
    assert len(result.seeds) >= LEAST_SEEDS.get(name, 20)
    used = {row["seed"] for row in result.rows if "seed" in row}
    assert used == set(result.seeds)


@every_experiment
def test_a_frozen_result_says_where_it_was_computed(frozen, name):
    recorded = frozen(name).environment
    wanted = {"code", "python", "torch", "numpy", "machine", "system", "threads_per_unit"}
    assert wanted <= recorded.keys()
    assert recorded["threads_per_unit"] == 1
    assert frozen(name).seconds > 0


@every_experiment
def test_picture_and_log_are_beside_it(frozen, name):
    assert (FROZEN / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    log = (FROZEN / f"{name}.log").read_text()
    assert frozen(name).environment["code"] in log


def test_the_page_of_results_is_made_of_these_results():
    page = (FROZEN / "RESULTS.md").read_text()
    assert page == _results_page(FROZEN), "run `lengthgen reproduce` to write RESULTS.md again"


def test_nothing_else_is_frozen():
    names = {f"{name}.{end}" for name in NAMES for end in ("json", "png", "log")}
    assert {path.name for path in FROZEN.iterdir()} - {"README.md"} == names | {"RESULTS.md"}
