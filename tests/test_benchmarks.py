"""The tool that measures speed: turns, equal work, its file, and the page that shows it.

No speed is tested here, and no package that we are compared with is needed.
"""

import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import children, evaluation, files, heads, report, timing, training
from benchmarks.__main__ import main
from benchmarks.fairness import UnequalWork, same_numbers
from lengthgen.training import train

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "book" / "how_fast.ipynb"


# -- turns ---------------------------------------------------------------------------------------


def test_contestants_take_turns_and_the_first_round_is_not_counted():
    calls, now = [], iter(range(1_000))
    runners = {name: lambda name=name: calls.append(name) or name for name in "ABC"}
    rounds = []
    seconds = timing.race(runners, 2, rounds.append, clock=lambda: next(now))
    assert calls == list("ABC") * 3
    assert rounds == [{"A": "A", "B": "B", "C": "C"}] * 3  # every round is checked
    assert seconds == {"A": [1, 1], "B": [1, 1], "C": [1, 1]}


def test_a_time_is_that_of_its_own_contestant():
    now = [0.0]

    def lasting(duration):
        def run():
            now[0] += duration

        return run

    runners = {"slow": lasting(3.0), "fast": lasting(0.5)}
    seconds = timing.race(runners, 2, lambda returned: None, clock=lambda: now[0])
    assert seconds == {"slow": [3.0, 3.0], "fast": [0.5, 0.5]}
    assert timing.ratio(seconds["slow"], seconds["fast"]) == (6.0, 6.0, 6.0)


def test_a_slow_minute_that_hits_a_whole_round_leaves_the_ratio_alone():
    assert timing.ratio([2.0, 200.0, 2.0], [1.0, 100.0, 1.0]) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("repeats", "contestants"), [(0, {"A": list}), (1, {})])
def test_a_race_without_rounds_or_contestants_is_refused(repeats, contestants):
    with pytest.raises(ValueError, match="at least 1 of each"):
        timing.race(contestants, repeats, print)


def test_a_race_ends_with_the_round_that_fails_its_check():
    rounds = []

    def check(returned):
        rounds.append(returned)
        same_numbers("losses", returned, 0.1)

    answers = iter([1.0, 1.0, 1.0, 2.0])  # the second contestant does less in a counted round
    runners = {name: lambda: [next(answers)] for name in "AB"}
    with pytest.raises(UnequalWork):
        timing.race(runners, 5, check)
    assert len(rounds) == 2


# -- equal work ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config():
    return training.configuration(2, steps=12)


@pytest.fixture(scope="module")
def ours(config):
    return train(config)[1]


@pytest.mark.parametrize("name", ["loop", "vmap"])
def test_a_contestant_that_does_the_same_work_has_the_same_losses(config, ours, name):
    losses = training.contestants(config)[name]()
    # Float32 sums in another order, twelve steps: a few units in the last place of 2.8 nats.
    assert same_numbers("losses", {"ours": ours, name: losses}, 1e-5) > 0


def with_half_the_batch(monkeypatch):
    drawn = heads.draw
    monkeypatch.setattr(
        heads, "draw", lambda c: tuple(x[:, :, :32] if x.dim() > 2 else x for x in drawn(c))
    )


def with_shorter_sequences(monkeypatch):
    drawn = heads.draw

    def shorter(config):
        tokens, lengths, targets = drawn(config)
        return tokens, lengths.clamp(max=12), targets

    monkeypatch.setattr(heads, "draw", shorter)


def with_a_step_left_out(monkeypatch):
    step, count = torch.optim.Adam.step, []

    def lazy(self, *arguments):
        count.append(1)
        return None if len(count) == 5 else step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", lazy)


def with_a_parameter_left_out(monkeypatch):
    step = torch.optim.Adam.step

    def lazy(self, *arguments):
        self.param_groups[0]["params"][0].grad = None
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", lazy)


def with_the_first_data_again(monkeypatch):
    drawn = heads.draw
    monkeypatch.setattr(heads, "draw", lambda c: tuple(x[:1].expand_as(x) for x in drawn(c)))


LAZY = [
    with_half_the_batch,
    with_shorter_sequences,
    with_a_step_left_out,
    with_a_parameter_left_out,
    with_the_first_data_again,
]


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("name", ["loop", "vmap"])
def test_a_contestant_that_does_less_is_refused(config, ours, name, lazy, monkeypatch):
    lazy(monkeypatch)
    losses = training.contestants(config)[name]()
    monkeypatch.undo()
    with pytest.raises(UnequalWork, match=f"losses of {name}"):
        same_numbers("losses", {"ours": ours, name: losses}, training.TOLERANCE)


def test_fewer_steps_and_fewer_models_are_refused(ours):
    for less in (ours[:, :-1], ours[:1]):
        with pytest.raises(UnequalWork, match="shape"):
            same_numbers("losses", {"ours": ours, "peer": less}, 1.0)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_refused_on_either_side(broken):
    for found in ({"a": [1.0], "b": [broken]}, {"a": [broken], "b": [1.0]}):
        with pytest.raises(UnequalWork):
            same_numbers("losses", found, 1.0)


def test_the_largest_difference_is_reported():
    assert same_numbers("x", {"a": [1.0, 2.0], "b": [1.5, 2.0], "c": [1.0, 2.25]}, 1.0) == 0.5


def test_both_ways_to_evaluate_find_the_same_accuracy(config):
    stack, _ = train(training.configuration(2, steps=40))
    ways = {name: run(stack, 24, 200) for name, run in evaluation.CONTESTANTS.items()}
    assert same_numbers("accuracies", ways, evaluation.TIES / 200) <= 1 / 200
    assert float(ways["ours"].max()) > 0  # not an agreement of zeros


def test_operations_of_a_step_grow_with_the_models_and_not_with_the_steps():
    one, two = (training.flops_per_step(training.configuration(n, 2)) for n in (1, 2))
    assert two == 2 * one > 0
    # At least the products of the tables: queries and keys of 16 tokens, and each pair of them
    # at 16 positions, all 32 wide, twice more on the way back.
    assert one >= 3 * 2 * 32 * (2 * 16 * 32 + 16 * 16 * 16)


def test_the_slope_of_a_power_law_is_its_exponent():
    lengths = [10, 100, 1_000]
    assert evaluation.growth_exponent(lengths, [7 * n**1.5 for n in lengths]) == pytest.approx(1.5)


# -- processes -----------------------------------------------------------------------------------


def test_a_child_has_no_more_cores_than_it_was_given():
    cores = children.call("machine:usable_cores", threads=1)
    assert cores == 1 if hasattr(os, "sched_getaffinity") else cores >= 1


def test_a_child_that_fails_says_why_in_one_line():
    with pytest.raises(children.ChildFailed, match=r"^timing:ratio: ZeroDivisionError"):
        children.call("timing:ratio", slow=[1.0], fast=[0.0])


def test_memory_that_was_held_for_a_moment_counts():
    before = children.forget_peak()
    block = bytearray(b"x" * 64_000_000)
    held = children.peak_memory_mb()
    del block
    assert held - before > 60
    assert children.peak_memory_mb() >= held - 1


# -- the file and the page -----------------------------------------------------------------------


def test_sections_are_replaced_and_those_of_another_machine_leave(tmp_path):
    path = tmp_path / "results.json"
    files.merge(path, {"cores": 2}, {"training": {"32": 1}})
    files.merge(path, {"cores": 2}, {"evaluation": {"x": 0.123456789}})
    files.merge(path, {"cores": 2}, {"training": {"8": 2}})
    assert files.read(path) == {
        "machine": {"cores": 2},
        "training": {"8": 2},
        "evaluation": {"x": 0.12346},
    }
    files.merge(path, {"cores": 4}, {"book": {}})
    assert files.read(path) == {"machine": {"cores": 4}, "book": {}}


def test_a_number_that_is_not_finite_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "results.json"
    files.merge(path, {}, {"training": 1})
    with pytest.raises(ValueError):
        files.merge(path, {}, {"training": float("nan")})
    assert files.read(path) == {"machine": {}, "training": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_an_unknown_subject_is_one_line(capsys):
    assert main(["trainig"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "'trainig'" in said
    assert "training" in said


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="make bench"):
        files.read(tmp_path / "results.json")


@pytest.fixture(scope="module")
def results():
    return files.read()


KEYS = [
    "training.32.speedup_vs_loop",
    "training.32.speedup_vs_jax",
    "evaluation.4096.speedup_vs_forward",
    "evaluation.growth_exponent",
    "evaluation.1048576.peak_mb",
]


@pytest.mark.parametrize("key", KEYS)
def test_what_others_read_is_in_the_file(results, key):
    value = results
    for part in key.split("."):
        value = value[part]
    assert isinstance(value, (int, float))


def test_every_race_of_the_file_has_at_least_five_rounds_and_equal_work(results):
    for section, tolerance in (("training", training.TOLERANCE), ("transformer", 1e-3)):
        for suffix in report.THREADS:
            for _, cell in report._ordered(results[section + suffix]):
                assert cell["ours"]["repeats"] >= 5
                assert cell["largest_loss_difference"] <= tolerance


CELLS = [
    "".join(cell["source"])
    for cell in json.loads(PAGE.read_text(encoding="utf8"))["cells"]
    if cell["cell_type"] == "code"
]


def shown_by_the_page(monkeypatch, results):
    """Run the page's cells on some results; return its HTML and its glued numbers."""
    glued = {}
    monkeypatch.setattr("lengthgen.chapter.glue_all", lambda prefix, values: glued.update(values))
    monkeypatch.setattr(files, "read", lambda: results)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the page adds to it
    names, shown = {}, []
    for code in CELLS:
        *statements, last = code.strip().splitlines()
        if last.startswith("report."):
            exec("\n".join(statements), names)
            shown.append(eval(last, names).data)
        else:
            exec(code, names)
    return "".join(shown), glued


def numbers(value):
    """The places of all numbers in nested results."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from ((key, *place) for place in numbers(item))
    elif isinstance(value, float):
        yield ()


TIMES = {"median_s", "min_s", "max_s"}


def test_every_time_and_every_ratio_of_the_file_is_on_the_page(results, monkeypatch):
    before, _ = shown_by_the_page(monkeypatch, results)
    places = [
        place
        for place in numbers(results)
        if place[-1] in TIMES or place[-1].startswith("speedup_vs_")
    ]
    assert len(places) > 50
    for place in places:
        other = json.loads(json.dumps(results))
        inner = other
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] *= 7.7
        after, _ = shown_by_the_page(monkeypatch, other)
        assert after != before, ".".join(place)


def test_every_number_that_the_prose_names_is_glued(results, monkeypatch):
    _, glued = shown_by_the_page(monkeypatch, results)
    named = re.findall(r"\{glue:text\}`fast-([^`]+)`", PAGE.read_text(encoding="utf8"))
    assert set(named) == set(glued)


def test_a_race_that_is_lost_is_named(results):
    other = json.loads(json.dumps(results))
    other["training"]["32"]["speedup_vs_jax"] = 0.25
    assert "JAX jit, vmap and scan is faster by 4" in report.peers_ahead(other).data
    for section in other:
        for _, cell in report._ordered(other[section]):
            cell |= {key: 2.0 for key in cell if re.fullmatch(r"speedup_vs_\w+(?<!_range)", key)}
    assert "none" in report.peers_ahead(other).data


def test_nothing_of_the_tool_that_others_import_needs_a_peer():
    code = (
        "import sys; sys.modules.update(jax=None, optax=None, x_transformers=None)\n"
        "from benchmarks import __main__, book, children, decoders, dilution, evaluation, "
        "fairness, files, heads, machine, report, timing, training, transformer"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_number_of_models_that_offsets_do_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"n_models=12.*multiple of 8"):
        training.configuration(12, steps=1)


@pytest.mark.parametrize("module", [timing, evaluation])
def test_examples_in_docstrings_are_right(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
