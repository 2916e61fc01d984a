import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthgen import chapter, figures
from lengthgen.results import Result

ROW = {"encoding": "rotary", "offset": 1, "seed": 0, "length": 16, "n_sequences": 50}


def a_result(name="base"):
    environment = {"code": "abc123", "torch": "2.0"}
    rows = [{**ROW, "accuracy": 0.5}] * 1234
    return Result(name, "paper", {}, [0, 3, 7], rows, {}, 1.0, environment)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(chapter, "project_root", lambda: tmp_path)
    return tmp_path


def test_a_frozen_result_is_read_from_results(root):
    a_result().save(root / "results")
    assert chapter.frozen("base") == a_result()


def test_a_missing_frozen_result_says_how_to_make_it(root):
    with pytest.raises(FileNotFoundError, match=r"base.json.*clone.*lengthgen reproduce base"):
        chapter.frozen("base")


def test_provenance_names_profile_rows_seeds_code_and_the_command():
    page = chapter.provenance(a_result(), a_result("multiseed")).data
    for words in (
        "../results/base.json",
        "full profile",
        "1,234 rows",
        "seeds 0 to 7",
        "abc123",
        "PyTorch 2.0",
        "lengthgen selfcheck multiseed",
    ):
        assert words in page


def test_provenance_is_html_without_surprises():
    assert "<b>" not in chapter.provenance(a_result("<b>")).data


def test_agreement_compares_the_cells_that_both_have():
    kept = [{**ROW, "length": n, "accuracy": a} for n, a in ((16, 1.0), (17, 0.5), (48, 0.25))]
    fresh = [{**ROW, "length": n, "accuracy": a} for n, a in ((17, 0.75), (16, 1.0), (99, 0.0))]
    assert chapter.agreement(fresh, kept) == (2, 0.25)
    assert chapter.agreement(kept, kept) == (3, 0.0)


@pytest.mark.parametrize("field", ["encoding", "offset", "seed", "length", "n_sequences"])
def test_a_row_of_another_cell_is_not_compared(field):
    other = {**ROW, "accuracy": 0.5, field: 999}
    with pytest.raises(ValueError, match="no row in common"):
        chapter.agreement([other], [{**ROW, "accuracy": 0.5}])


def test_rows_without_accuracy_are_passed_over():
    kept = [{**ROW, "accuracy": 0.5}]
    assert chapter.agreement([{"pin": 3}, *kept], [{"pin": 3}, *kept]) == (1, 0.0)


def test_a_difference_is_a_size_or_none_at_all():
    assert [chapter.difference(x) for x in (0.0, -0.0, 0, -0.0123, 1e-12)] == [
        *["identical"] * 3,
        "1e-02",
        "1e-12",
    ]


def test_a_count_of_none_or_all_is_a_word():
    assert [chapter.count(k, 3) for k in range(4)] == ["none of 3", "1 of 3", "2 of 3", "all 3"]


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3), (0, 0)])
def test_a_count_that_is_none_is_refused(k, n):
    with pytest.raises(ValueError, match=f"{k} of {n} is no count"):
        chapter.count(k, n)


@given(st.floats(-1e6, 1e6), st.sampled_from([".0f", ".2f", ".5f", ".0e", ".3e"]))
def test_a_bound_is_on_its_side_and_no_further_than_the_last_digit(value, form):
    low, high = float(chapter.at_least(value, form)), float(chapter.at_most(value, form))
    assert low <= value <= high
    assert float(format(value, form)) in (low, high)


def test_glued_numbers_carry_the_chapters_prefix(monkeypatch):
    glued = {}
    monkeypatch.setattr(
        "myst_nb.glue", lambda name, value, display: glued.update({name: value}), raising=False
    )
    chapter.glue_all("task", {"rotary": 0.99, "learned": 0.07})
    assert glued == {"task-rotary": 0.99, "task-learned": 0.07}


def test_begin_gives_pictures_the_books_look(monkeypatch):
    formats = []
    monkeypatch.setattr(chapter, "set_matplotlib_formats", lambda *a, **k: formats.append((a, k)))
    with plt.rc_context():
        chapter.begin()
        assert plt.rcParams["axes.spines.top"] is figures.SETTINGS["axes.spines.top"]
    assert formats[0][0] == ("svg",)
    assert formats[0][1]["metadata"] == {"Date": None}  # no date: two builds are the same


class Cells(HTMLParser):
    """The parts of a table: tag, role and label of each, in order."""

    def __init__(self, page):
        super().__init__()
        self.parts = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "role" in values:
            self.parts.append((tag, values["role"], values.get("data-label")))


def test_a_table_says_the_role_of_every_part_and_the_head_of_every_cell():
    """Laid out as cards, its parts have no roles of their own."""
    table = Cells(chapter.table(("claim", "value < 1"), [("a", 1), ("b", 2)]).data)
    assert table.parts == [
        ("table", "table", None),
        ("thead", "rowgroup", None),
        ("tr", "row", None),
        *[("th", "columnheader", None)] * 2,
        ("tbody", "rowgroup", None),
        *[("tr", "row", None), ("th", "rowheader", None), ("td", "cell", "value < 1")] * 2,
    ]


def test_a_row_that_is_longer_than_the_heads_is_refused():
    with pytest.raises(ValueError, match="zip"):
        chapter.table(("claim", "value"), [("a", 1, 2)])


ROOT = Path(__file__).parents[1]
CHAPTERS = sorted(ROOT.glob("notebooks/*.ipynb"))
NOTEBOOKS = [*CHAPTERS, *sorted(ROOT.glob("book/*.ipynb"))]


def shown_code(path):
    """The lines of code that a page shows: its cells, and the solutions in its text."""
    for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for block in re.findall(r"^```python\n(.*?)^```", source, flags=re.DOTALL | re.M):
                yield from block.splitlines()
        elif "remove-cell" not in cell["metadata"].get("tags", []):
            yield from source.splitlines()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_of_a_chapter_fits_its_page(path):
    assert [line for line in shown_code(path) if len(line) > 80] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_text_of_a_chapter_is_cut_off_from_its_statement(path):
    """A string on a line of its own, after a line that should have had parentheses."""
    for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
        if cell["cell_type"] == "code":
            nodes = list(ast.walk(ast.parse("".join(cell["source"]))))
            documentation = [n.body[0] for n in nodes if isinstance(n, ast.FunctionDef)]
            alone = [n for n in nodes if isinstance(n, ast.Expr) and n not in documentation]
            texts = (ast.JoinedStr, ast.Constant)
            assert not [ast.unparse(n) for n in alone if isinstance(n.value, texts)]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_opens_with_its_claim_whose_it_is_and_how_to_check_it(path):
    first = "".join(json.loads(path.read_text(encoding="utf8"))["cells"][0]["source"])
    title, lead, *_ = first.split("\n\n")
    assert title.startswith("# ")
    labels = [re.match(r"- \*\*(.*?)\*\*", line)[1] for line in lead.splitlines()]
    assert labels == ["Claim.", "Whose.", "Check it."]
    assert "ledger-" in lead.splitlines()[-1]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_exercise_has_a_folded_solution_with_code(path):
    text = "\n".join(
        "".join(cell["source"])
        for cell in json.loads(path.read_text(encoding="utf8"))["cells"]
        if cell["cell_type"] == "markdown"
    )
    exercises = re.split(r"^\*\*(?:Exercise )?\d\.", text.split("## Exercises")[1], flags=re.M)[1:]
    assert len(exercises) >= 3
    for exercise in exercises:
        solution = re.search(r"^````\{dropdown\}.*?^````$", exercise, flags=re.DOTALL | re.M)
        assert "```python\n" in solution[0]
