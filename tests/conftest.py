"""What the tests of the package share: a private cache, one thread, small heads."""

import json
import os
import shutil

import pytest
import torch

from lengthgen.attention import HeadConfig
from lengthgen.training import TrainingConfig

os.environ.setdefault("MPLBACKEND", "Agg")
SMALL = {"vocabulary": 5, "d_model": 8, "d_head": 8, "max_length": 64}


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """A cache of its own for every test; nothing a test computes outlives it."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("LENGTHGEN_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_head():
    """`small_head("rotary", width=4)`: five tokens, eight channels, 64 positions."""

    def small_head(encoding="rotary", sizes=None, **options):
        return HeadConfig(encoding, options, **SMALL | (sizes or {}))

    return small_head


@pytest.fixture(scope="session")
def small_training(small_head):
    """`small_training("learned", steps=5)`: two seeds, two offsets, three steps."""

    def small_training(encoding="rotary", head=None, **values):
        defaults = {
            "seeds": (0, 1),
            "offsets": (1, 3),
            "lengths": (5, 8),
            "steps": 3,
            "batch_size": 8,
        }
        return TrainingConfig(head or small_head(encoding), **defaults | values)

    return small_training


@pytest.fixture
def edit_json():
    """`edit_json(path, profile="paper")`: replace entries of a JSON file."""

    def edit_json(path, **changes):
        content = json.loads(path.read_text())
        content |= changes
        path.write_text(json.dumps(content))

    return edit_json


TINY_BASE = """
from dataclasses import replace
from lengthgen.experiments import base, heads
tiny = base.Config(
    encodings=("rotary", "learned", "none"), lengths=(16, 17, 24), picture_lengths=(16,),
    n_sequences=60,
)
base.EXPERIMENT = replace(base.EXPERIMENT, profiles={"quick": tiny, "paper": tiny})
heads.default_steps = lambda encoding: 40
heads.SEEDS_PER_STACK = 1
"""
"""Makes `base` small; for this process, and as the head of a script for another one."""


@pytest.fixture
def tiny_base(monkeypatch):
    from lengthgen.experiments import base, heads

    monkeypatch.setattr(base, "EXPERIMENT", base.EXPERIMENT)  # all put back afterwards
    for name in ("default_steps", "SEEDS_PER_STACK"):
        monkeypatch.setattr(heads, name, getattr(heads, name))
    exec(TINY_BASE, {})
    return base.EXPERIMENT


@pytest.fixture(scope="session")
def finished_base(tmp_path_factory):
    """The small `base`, run once: a folder with its results in `out`, its units in `cache`."""
    from lengthgen.experiments import base, heads
    from lengthgen.reproduce import reproduce

    top = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENGTHGEN_CACHE", str(top / "cache"))
        patch.setattr(base, "EXPERIMENT", base.EXPERIMENT)
        patch.setattr(heads, "default_steps", heads.default_steps)
        exec(TINY_BASE, {})
        reproduce(["base"], "quick", top / "out", echo=lambda line: None)
    return top


@pytest.fixture
def done(finished_base, tiny_base, private_cache, tmp_path):
    """A folder with the small `base`, complete, whose units are in the cache."""
    shutil.copytree(finished_base / "cache", private_cache, dirs_exist_ok=True)
    return shutil.copytree(finished_base / "out", tmp_path / "out")


@pytest.fixture
def tiny_script(tmp_path):
    """A script that is `python -m lengthgen`, with the small `base`; says when it starts work."""
    path = tmp_path / "tiny.py"
    path.write_text(
        f"{TINY_BASE}\nimport sys\nfrom lengthgen.cli import main\n"
        'if __name__ == "__main__":\n    print("started", flush=True)\n    sys.exit(main())\n'
    )
    return path
