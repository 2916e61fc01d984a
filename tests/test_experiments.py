import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from lengthgen import experiments
from lengthgen.attention import HeadConfig
from lengthgen.encodings import ENCODINGS
from lengthgen.experiments import NAMES, base, get, heads, mechanics, multiseed, prop1, shift
from lengthgen.experiments.experiment import PROFILES
from lengthgen.reproduce import default_folder, reproduce
from lengthgen.results import Result
from lengthgen.task import FixedOffsetTask
from lengthgen.training import TrainingConfig
from lengthgen.units import _read_unit

CELL = {"encoding", "offset", "seed", "length", "accuracy", "n_sequences"}
MODULES = {m.__name__.split(".")[-1]: m for m in (base, multiseed, prop1, shift, mechanics)}


def tiny_stacks(encoding, n_seeds):
    """What `head_stacks` gives, but small: two seeds at two offsets, two steps."""
    head = HeadConfig(encoding, vocabulary=5, d_model=8, d_head=8)
    return [
        TrainingConfig(head, (first, first + 1), (1, 2), steps=2, batch_size=4)
        for first in range(0, n_seeds, 2)
    ]


TINY = {
    "base": {"lengths": (16, 17), "picture_lengths": (16, 18), "n_sequences": 20},
    "multiseed": {"n_seeds": 2, "offsets": (1, 2), "lengths": (16, 17, 64, 65), "n_sequences": 20},
    "prop1": {"n_seeds": 2, "offsets": (1, 2), "span": 12, "far": (1000,), "far_span": 6},
    "shift": {"n_seeds": 2, "offsets": (1, 2), "shifts": (1, 16, 2000), "n_sequences": 20},
    "mechanics": {
        "n_seeds": 2,
        "offsets": (1, 2),
        "lengths": (32, 64),
        "n_sequences": 20,
        "accuracy_lengths": (16, 48),
        "n_accuracy_sequences": 20,
    },
}
CHANGES = {
    "base": {
        "n_seeds": 2,
        "offset": 3,
        "encodings": ("rotary", "none"),
        "lengths": (16, 18),
        "picture_lengths": (16,),
        "n_sequences": 21,
    },
    "multiseed": {
        "n_seeds": 1,
        "offsets": (2,),
        "encodings": ("rotary", "learned"),
        "lengths": (16, 18),
        "n_sequences": 21,
    },
    "prop1": {"n_seeds": 1, "offsets": (2,), "span": 13, "far": (2000,), "far_span": 7},
    "shift": {"n_seeds": 1, "offsets": (2,), "length": 12, "shifts": (1, 2), "n_sequences": 21},
    "mechanics": {
        "n_seeds": 1,
        "offsets": (2,),
        "ablation_offset": 1,
        "short_mix_offsets": (1,),
        "lengths": (64, 128),
        "cut_length": 32,
        "n_sequences": 21,
        "accuracy_lengths": (16, 32),
        "n_accuracy_sequences": 21,
    },
}


@pytest.fixture
def tiny(monkeypatch, tmp_path_factory):
    """`tiny("shift")` is that experiment with few and small heads; one cache for all tests here."""
    cache = Path(tmp_path_factory.getbasetemp()) / "tiny-experiments"
    monkeypatch.setenv("LENGTHGEN_CACHE", str(cache))
    for module in (heads, prop1, shift, mechanics):
        monkeypatch.setattr(module, "head_stacks", tiny_stacks)
    small = partial(TrainingConfig, steps=2, batch_size=4)
    monkeypatch.setattr(mechanics, "TrainingConfig", small)

    def tiny(name):
        config = MODULES[name].Config(**TINY[name])
        return replace(get(name), profiles={"quick": config, "paper": config})

    return tiny


@pytest.fixture
def results(tiny):
    return {name: tiny(name).run("quick") for name in MODULES}


# -- the registry --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_found_by_its_name_and_has_both_profiles(name):
    experiment = get(name)
    assert experiment.name == name
    assert experiment.module == f"lengthgen.experiments.{name}"
    assert set(experiment.profiles) == set(PROFILES)
    assert experiment.title
    for profile in PROFILES:
        config = experiment.config(profile)
        assert experiment.config(profile, 3) == replace(config, n_seeds=3)
        assert list(experiment.plan(config))


def test_the_five_experiments_of_the_headline_are_there_in_order():
    headline = ["base", "multiseed", "prop1", "shift", "mechanics"]
    assert [name for name in NAMES if name in headline] == headline


def test_an_unknown_name_or_profile_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match=r"'baze'; choose from base, multiseed"):
        experiments.get("baze")
    with pytest.raises(ValueError, match=r"'slow'; choose from quick, paper"):
        get("base").config("slow")
    with pytest.raises(ValueError, match=r"seeds=0 .*at least 1"):
        get("base").config("quick", 0)


def test_the_paper_profile_is_as_large_as_the_book_says():
    paper = get("multiseed").config("paper")
    assert paper.n_seeds >= 20 and paper.n_sequences >= 2000
    assert paper.offsets == tuple(range(1, 9))
    assert {16, 17, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 4096} <= set(paper.lengths)
    assert {"rotary", "learned", "learned-random-offset"} <= set(paper.encodings)
    assert get("base").config("paper").n_seeds == 1
    headline = {"rotary", "learned", "learned-random-offset", "none"}
    assert set(get("base").config("paper").encodings) == headline <= set(ENCODINGS)
    assert get("prop1").config("paper").offsets == (1, 2, 3)
    assert get("prop1").config("paper").far[-1] == 2**20
    assert get("shift").config("paper").shifts[-1] == 2**20
    assert get("mechanics").config("paper").n_seeds >= 20


def test_the_first_unseen_length_is_measured():
    """Training length + 1, by value."""
    for name in ("base", "multiseed"):
        longest = heads.head_stacks("rotary", 1)[0].lengths[1]
        for profile in PROFILES:
            assert {longest, longest + 1} <= set(get(name).config(profile).lengths)


def test_heads_are_the_same_units_for_every_number_of_seeds():
    assert heads.head_stacks("rotary", 3) == heads.head_stacks("rotary", 4)
    assert heads.head_stacks("rotary", 9)[:2] == heads.head_stacks("rotary", 8)
    seeds = [seed for stack in heads.head_stacks("learned", 20) for seed in stack.seeds]
    assert seeds == list(range(20))
    for stack in heads.head_stacks("learned-random-offset", 4):
        assert stack.steps == 4000 and stack.offsets == tuple(range(1, 9))


def test_quick_heads_are_the_first_of_the_paper_heads():
    plans = [
        {unit.key(config) for unit, config in get("multiseed").plan(get("multiseed").config(p))}
        for p in PROFILES
    ]
    assert plans[0] < plans[1]


@pytest.mark.parametrize("name", MODULES)
def test_every_unit_of_the_paper_profile_is_planned_once(name):
    keys = [unit.key(config) for unit, config in get(name).plan(get(name).config("paper"))]
    assert len(set(keys)) == len(keys)


# -- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_every_field_of_the_configuration_matters(tiny, name):
    experiment = tiny(name)
    config = experiment.config("quick")
    assert set(CHANGES[name]) == {field.name for field in fields(config)}

    def keys(config):
        return sorted(unit.key(c) for unit, c in experiment.plan(config))

    default = keys(config), experiment.measure(config)
    for field, value in CHANGES[name].items():
        changed = replace(config, **{field: value})
        assert keys(changed) != default[0] or experiment.measure(changed) != default[1], field


@pytest.mark.parametrize("name", MODULES)
def test_a_result_says_everything_and_can_be_drawn(tiny, name):
    experiment, lines = tiny(name), []
    result = experiment.run("quick", log=lines.append)
    content = json.loads(result.to_bytes())
    assert content["experiment"] == name and content["profile"] == "quick"
    assert content["seeds"] == list(range(result.config["n_seeds"]))
    assert {row["seed"] for row in result.rows} == set(result.seeds)
    assert len(lines) == len(list(experiment.plan(experiment.config("quick"))))
    assert isinstance(experiment.plot(Result(**{**vars(result)})), Figure)
    for row in result.rows:
        if "accuracy" in row:
            assert row.keys() >= CELL


@pytest.mark.parametrize("name", MODULES)
def test_a_second_run_has_identical_rows_and_summary(tiny, name, tmp_path, monkeypatch):
    first = tiny(name).run("quick")
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path))  # nothing comes from the cache
    second = tiny(name).run("quick")
    assert first.rows == second.rows and first.summary == second.summary


def test_fewer_seeds_give_the_first_rows_of_more(tiny):
    for name in ("multiseed", "shift", "prop1"):
        experiment = tiny(name)
        few, more = (experiment.run("quick", n_seeds=n) for n in (1, 2))
        assert few.rows == [row for row in more.rows if row["seed"] == 0]


def test_multiseed_keeps_every_seed_and_counts_failures_to_fit(results):
    result = results["multiseed"]
    for encoding, lengths in (
        ("rotary", [16, 17, 64, 65]),
        ("learned", [16, 17, 64, 65]),
        ("learned-random-offset", [16, 17, 64]),  # as far as the table reaches
    ):
        rows = result.select(encoding=encoding)
        cells = [(r["seed"], r["offset"], r["length"]) for r in rows]
        wanted = [(s, k, n) for s in (0, 1) for k in (1, 2) for n in lengths]
        assert sorted(cells) == sorted(wanted)
        summary = result.summary[encoding]
        assert summary["n_models"] == 4
        # two steps teach nothing: every model failed, and is listed
        failures = {(f["seed"], f["offset"]) for f in summary["failures_to_fit"]}
        assert failures == {(s, k) for s in (0, 1) for k in (1, 2)}
        mean = sum(r["accuracy"] for r in rows if r["length"] == 17) / 4
        assert summary["mean_accuracy"]["17"] == pytest.approx(mean, abs=1e-6)


def test_base_keeps_the_mean_attention_of_every_encoding(results):
    pictures = results["base"].summary["mean_attention"]
    assert set(pictures) == set(get("base").config("paper").encodings)
    for by_length in pictures.values():
        assert {length: len(weights) for length, weights in by_length.items()} == {
            "16": 16,
            "18": 18,
        }
        for weights in by_length.values():
            assert sum(weights) == pytest.approx(1, abs=2e-4)  # each rounded to 5 decimals


def test_prop1_measures_far_out_only_where_there_are_positions(results):
    rows = results["prop1"].rows
    found = {(r["encoding"], r["precision"], r["first_position"]) for r in rows}
    assert found == {
        (e, p, f)
        for e in ("rotary", "rotary-rounded-product")
        for p in ("float64", "float32")
        for f in (0, 1000)
    } | {("learned", p, 0) for p in ("float64", "float32")}
    for precision, most in (("float64", 1e-10), ("float32", 1e-5)):
        errors = [
            r["error"] for r in results["prop1"].select(encoding="rotary", precision=precision)
        ]
        assert max(errors) < most


def test_shift_stays_within_each_table(results):
    shifts = {}
    for row in results["shift"].rows:
        shifts.setdefault(row["encoding"], set()).add(row["shift"])
    assert shifts == {"rotary": {1, 16, 2000}, "learned-random-offset": {1, 16}, "learned": {1, 16}}


def test_mechanics_reports_every_setting_and_shares_that_are_counts(results):
    result = results["mechanics"]
    settings = set(mechanics.ablations(mechanics.Config(**TINY["mechanics"]))) | {mechanics.DEFAULT}
    assert {row["setting"] for row in result.rows} == settings == set(result.summary["by_setting"])
    default = [row for row in result.rows if row["setting"] == mechanics.DEFAULT]
    assert {(r["seed"], r["offset"]) for r in default} == {(s, k) for s in (0, 1) for k in (1, 2)}
    for row in default:
        assert row["untrained_rows_moved"] == 0
        assert 0 <= row["agreement"] <= 1
        assert set(row["peaks"]) == set(row["in_range_mass"]) == {"32", "64"}
        stays = len(set(row["peaks"].values())) == 1 and max(row["peaks"].values()) < 16
        assert row["pinned"] == stays
        inside = sum(peak < 16 for peak in row["peaks"].values()) / 2
        assert row["pinning_index"] == pytest.approx(inside)
    for offset in ("1", "2"):
        rows = [r for r in default if str(r["offset"]) == offset]
        share = result.summary["by_offset"][offset]["pinned"]
        assert share == sum(r["pinned"] for r in rows) / len(rows)
    for setting in ("L2 penalty 1e-4", "AdamW decay 0.01"):
        rows = [r for r in result.select(setting=setting) if "untrained_rows_moved" in r]
        assert rows and all(r["untrained_rows_moved"] > 0 for r in rows)


def test_every_ablation_changes_one_thing():
    default = replace(heads.head_stacks("learned", 1)[0], head=HeadConfig("learned", {"std": 0.02}))
    for name, training in mechanics.ablations(mechanics.Config()).items():
        if name.startswith("rotary"):
            continue
        reference = replace(default, seeds=training.seeds, offsets=training.offsets)
        changed = {
            f.name
            for f in fields(training)
            if getattr(training, f.name) != getattr(reference, f.name)
        }
        assert len(changed - {"optimizer"}) == 1, name
        FixedOffsetTask(training.offsets[0]).check_length(training.lengths[0])


def test_every_seed_that_a_row_has_is_listed():
    """Some measurements have seeds of their own, whatever `--seeds` says."""
    rows = [{"seed": 3}, {"law": 0.5}, {"seed": 0}, {"seed": 3}]
    made_up = replace(get("base"), plan=lambda config: [], measure=lambda config: (rows, {}))
    assert made_up.run("quick", n_seeds=1).seeds == [0, 3]


# -- reproduce -----------------------------------------------------------------------------------


def test_default_folders_are_those_of_the_design(tmp_path):
    assert default_folder("paper", tmp_path) == tmp_path / "results"
    assert default_folder("quick", tmp_path) == tmp_path / "_build" / "results" / "quick"


def test_reproduce_runs_all_experiments_in_order(tiny, tmp_path, monkeypatch):
    names = tuple(MODULES)
    for name in names:
        monkeypatch.setattr(MODULES[name], "EXPERIMENT", tiny(name))
    monkeypatch.setattr("lengthgen.reproduce.NAMES", names)
    monkeypatch.setattr("lengthgen.reproduce.check_claims", lambda folder, results: [])
    said = []
    found = reproduce([], "quick", tmp_path, echo=said.append)
    assert [result.experiment for result in found] == list(names)
    assert [line.split(":")[0] for line in said[:-1]] == list(names)
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".png", ".log", ".md"}
    page = (tmp_path / "RESULTS.md").read_text()
    assert all(f"[{name}]({name}.json)" in page for name in names)


def start(script, out, cache, *more):
    environment = os.environ | {"LENGTHGEN_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), "reproduce", "base", "--profile", "quick"]
    return subprocess.Popen(
        [*command, "--seeds", "1", "--out", str(out), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(child):
    out, err = child.communicate()
    assert child.returncode == 0, err
    return out


def test_a_kill_at_any_moment_loses_nothing_that_was_finished(tiny_base, tiny_script, tmp_path):
    began = time.perf_counter()
    expected = tiny_base.run("quick", n_seeds=1)
    seconds = time.perf_counter() - began
    moments = random.Random(5)
    out, cache = tmp_path / "out", tmp_path / "child-cache"
    kept = set()
    for _ in range(2):
        child = start(tiny_script, out, cache, "--jobs", "1")
        assert child.stdout.readline() == "started\n"
        time.sleep(moments.uniform(0.05, 0.95) * seconds)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        child.stderr.close()
        units = set(cache.rglob("*.safetensors"))
        assert kept <= units  # a unit once finished stays
        kept = units
        for path in units:
            _read_unit(path)  # ... and is whole
        if (out / "base.json").exists():
            Result.load(out / "base.json")
    ages = {path: path.stat().st_mtime_ns for path in kept}
    finish(start(tiny_script, out, cache, "--jobs", "1"))
    assert {path: path.stat().st_mtime_ns for path in kept} == ages  # none was computed again
    found = Result.load(out / "base.json")
    assert found.rows == expected.rows and found.summary == expected.summary


def test_two_runs_into_one_folder_at_once_both_end_well(tiny_base, tiny_script, tmp_path):
    out, cache = tmp_path / "out", tmp_path / "child-cache"
    children = [start(tiny_script, out, cache, "--jobs", jobs) for jobs in ("1", "2")]
    for child in children:
        finish(child)
    assert Result.load(out / "base.json").rows == tiny_base.run("quick", n_seeds=1).rows
    assert {path.name for path in out.iterdir()} == {
        "base.json",
        "base.png",
        "base.log",
        "RESULTS.md",
    }
    assert {path.suffix for path in cache.rglob("*") if path.is_file()} == {".safetensors"}
