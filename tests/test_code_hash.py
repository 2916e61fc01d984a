import ast
import importlib
import sys
from pathlib import Path

import pytest

import lengthgen
from lengthgen import code_hash as hashing
from lengthgen.code_hash import code_hash

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
        code_hash.cache_clear()
        importlib.invalidate_caches()
        return code_hash(f"toy.{module}")

    yield hash_with
    code_hash.cache_clear()
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
