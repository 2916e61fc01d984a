import matplotlib.pyplot as plt
import pytest

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
        "paper profile",
        "1,234 rows",
        "seeds 0 to 7",
        "abc123",
        "PyTorch 2.0",
        "lengthgen reproduce multiseed",
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
