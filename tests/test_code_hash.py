import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lengthgen
from lengthgen import code_hash as hashing
from lengthgen.code_hash import code_hash, code_text
from lengthgen.files import ResultError

LEAF = '''"""A leaf."""

def value(x):
    """Twice x."""
    return 2 * x  # doubled
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of three modules, `top` imports `middle` imports `leaf`; and how to edit one."""
    monkeypatch.setattr(hashing, "PACKAGE", "toy")
    monkeypatch.setattr(hashing, "WITHOUT_NUMBERS", {"toy.plots"})
    folder = tmp_path / "toy"
    folder.mkdir()
    sources = {
        "__init__": "",
        "leaf": LEAF,
        "middle": "from toy import leaf\n",
        "plots": "COLOR = 1\n",
        "other": "OTHER = 1\n",
        "top": "import numpy\nimport toy.middle\nfrom toy.plots import COLOR\n",
    }
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))

    def hash_with(module="top", **changed):
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(changed.get(name, source))
        forget()
        importlib.invalidate_caches()
        return code_hash(module if module in sys.modules else f"toy.{module}")

    def forget():
        code_hash.cache_clear()
        hashing._parsed.cache_clear()

    yield hash_with
    forget()
    for name in [name for name in sys.modules if name.split(".")[0] == "toy"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.replace("# doubled", "# multiplied by two"),
        lambda s: s.replace("Twice x.", "Two times x."),
        lambda s: s.replace('"""A leaf."""', '"""Another leaf,\n\nlonger."""'),
        lambda s: s.replace('    """Twice x."""\n', ""),
        lambda s: s.replace("2 * x", "(2\n        * x)"),
        lambda s: s + "\n\n# the end\n",
        lambda s: s + '\n"""A note on the module."""\n',
    ],
)
def test_comments_docstrings_and_layout_do_not_change_the_hash(package, edit):
    assert edit(LEAF) != LEAF
    assert package(leaf=edit(LEAF)) == package()


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.replace("2 * x", "3 * x"),
        lambda s: s.replace("2 * x", "x * 2"),
        lambda s: s.replace("value", "valeur"),
        lambda s: s + "\nX = 'text'\n",
        lambda s: s.replace("def value(x)", "def value(x=1)"),
    ],
)
def test_code_anywhere_below_changes_the_hash(package, edit):
    assert package(leaf=edit(LEAF)) != package()


def test_only_what_a_module_imports_counts(package):
    assert package(other="OTHER = 2\n") == package()
    assert package(plots="COLOR = 2\n") == package()
    assert package(module="leaf") != package(module="top")
    assert package(other="OTHER = 2\n", module="other") != package(module="other")


def test_a_package_and_its_submodules_named_in_one_import_are_found(package):
    assert package(top="from toy import middle\n", leaf=LEAF) != package(
        top="from toy import middle\n", leaf=LEAF + "X = 1\n"
    )


def test_a_module_outside_the_package_counts_with_what_it_imports_of_it(package, tmp_path):
    def reader(source, **changed):
        (tmp_path / "reader.py").write_text(source)
        package()  # the folder is importable
        sys.modules["reader"] = importlib.import_module("reader")
        return package("reader", **changed)

    source = "import toy.leaf\n\ndef mine():\n    return 1\n"
    try:
        original = reader(source)
        assert reader(source + "# the end\n") == original
        assert reader(source.replace("1", "2")) != original
        assert reader(source, leaf=LEAF.replace("2 *", "3 *")) != original
        assert reader(source, other="OTHER = 2\n") == original
    finally:
        del sys.modules["reader"]


def test_an_edit_after_the_import_is_refused_and_named(monkeypatch):
    """The hash would be that of code that does not run here."""
    whole = code_hash.__wrapped__("lengthgen.pinning")
    monkeypatch.setattr(hashing, "_parsed", hashing._parsed.__wrapped__)
    path = Path(lengthgen.__file__).parent / "attention.py"
    monkeypatch.setitem(hashing.IMPORTED, path, hashing.IMPORTED[path] + 1)
    with pytest.raises(ResultError, match=r"^lengthgen/attention.py was edited .*restart it"):
        code_hash.__wrapped__("lengthgen.pinning")
    monkeypatch.undo()
    assert code_hash.__wrapped__("lengthgen.pinning") == whole


# -- code outside the package --------------------------------------------------------------------

IMPORTS = """
import lengthgen
from lengthgen import pinning
from lengthgen.task import FixedOffsetTask
"""
READER = """
import functools

SCALE = 2
SEEN = []

def helper(x):
    return x + 1

class Helper:
    slope = {"near": 1}

def mine(x, factor=3, *, shift=4):
    SEEN.append(x)
    if x in {"a", "b", "c", 17, 2.5}:
        return [helper(y) for y in range(SCALE)]
    return factor * Helper().slope["near"], (lambda z: 5 * z)(shift), mine

class Mine:
    decay = frozenset({"near", "far"})

    def __init__(self, std=1.5):
        self.std = std

    @property
    def rate(self):
        return 6

    @functools.cached_property
    def slow(self):
        return 7

    @staticmethod
    def plain():
        return 8

    def bias(self, q, k):
        return helper(q)
"""
IN_FUNCTION = [
    ("+ 1", "+ 2"),
    ("SCALE = 2", "SCALE = 3"),
    ('"near": 1', '"near": 2'),
    ("factor=3", "factor=4"),
    ("shift=4", "shift=5"),
    ("17", "18"),
    ("5 * z", "6 * z"),
]
IN_CLASS = [
    ("+ 1", "+ 2"),
    ('"far"', '"further"'),
    ("std=1.5", "std=2.5"),
    ("return 6", "return 16"),
    ("return 7", "return 17"),
    ("return 8", "return 18"),
]


def text_of(name, source=READER):
    """As a notebook defines it: in `__main__`, without a file."""
    space = {"__name__": "__main__"}
    exec(source, space)
    return code_text(space[name])


@pytest.mark.parametrize(
    ("name", "edits", "others"), [("mine", IN_FUNCTION, IN_CLASS), ("Mine", IN_CLASS, IN_FUNCTION)]
)
def test_the_code_of_a_reader_counts_with_all_it_names_and_nothing_else(name, edits, others):
    original = text_of(name)
    assert text_of(name, "\n\n" + READER.replace("(2, 3)", "(2,  3)  # a note")) == original
    for old, new in edits:
        assert READER.count(old) == 1 and text_of(name, READER.replace(old, new)) != original, old
    for old, new in others:
        if (old, new) not in edits:
            assert text_of(name, READER.replace(old, new)) == original, old


@pytest.mark.parametrize(
    "body",
    [
        "return pinning.peak(x)",
        "return FixedOffsetTask(x)",
        "return lengthgen.pinning.peak(x)",
        "from lengthgen.pinning import peak\n    return peak(x)",
    ],
)
def test_the_code_of_a_reader_counts_with_what_it_names_of_the_package(monkeypatch, body):
    source = f"{IMPORTS}\ndef calls(x):\n    {body}\n"
    original = text_of("calls", source)
    monkeypatch.setattr(hashing, "code_hash", lambda module: f"{module}, edited")
    assert text_of("calls", source) != original


def test_a_class_derived_from_one_of_the_package_counts_with_its_module(monkeypatch):
    source = "from lengthgen.encodings import Rotary\nclass Mine(Rotary):\n    pass\n"
    original = text_of("Mine", source)
    assert code_hash("lengthgen.encodings.rotary") in original
    monkeypatch.setattr(hashing, "code_hash", lambda module: "edited")
    assert "edited" in text_of("Mine", source) != original


def test_the_text_is_the_same_in_every_process():
    """Whatever the order of sets, and wherever objects are in memory."""
    script = (
        f"from lengthgen.code_hash import code_text\nexec({READER!r})\n"
        "print(code_text(mine), code_text(Mine))"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    first, second = [child.communicate()[0] for child in children]
    assert first == second and b"factor" in first and b"0x" not in first


def test_every_number_depends_on_the_modules_that_make_it():
    found = hashing._dependencies("lengthgen.experiments.mechanics")
    wanted = "task encodings encodings.base encodings.learned encodings.rotary attention training"
    wanted += " evaluation pinning experiments.heads experiments.mechanics"
    assert {f"lengthgen.{name}" for name in wanted.split()} <= found
    assert not found & hashing.WITHOUT_NUMBERS


def test_the_package_imports_itself_by_full_name():
    """The hash follows absolute imports only; a relative one would escape it."""
    for path in Path(lengthgen.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path
