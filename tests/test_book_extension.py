"""The book's pages: outputs from the run that was checked, and nothing that they need not carry."""

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "book" / "_ext"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def book():
    return loaded("lengthgen_book")


def chapter(code="1 + 1", outputs=(), count=None):
    words = {"cell_type": "markdown", "metadata": {}, "source": ["Some ", "words."]}
    cell = {"cell_type": "code", "metadata": {"tags": ["hide-input"]}, "source": code}
    cell |= {"outputs": list(outputs), "execution_count": count}
    return {"cells": [words, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


class Environment:
    """Of Sphinx: where a document comes from."""

    def doc2path(self, docname):
        return docname + (".md" if docname == "book/glossary" else ".ipynb")


APP = SimpleNamespace(env=Environment())
OUTPUT = {"output_type": "stream", "name": "stdout", "text": "2\n"}


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    run = json.dumps(chapter(outputs=[OUTPUT], count=1))
    (tmp_path / "01_task.ipynb").write_text(run)
    monkeypatch.setenv("LENGTHGEN_CHAPTERS", str(tmp_path))


@pytest.mark.usefixtures("run_folder")
def test_a_chapter_gets_the_outputs_of_its_run_and_is_not_run_again(book):
    source = [json.dumps(chapter())]
    book.take_executed_chapter(APP, "notebooks/01_task", source)
    found = json.loads(source[0])
    assert found["metadata"].pop("mystnb") == {"execution_mode": "off"}
    assert found == chapter(outputs=[OUTPUT], count=1)


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("code", ["1 + 2", ""])
def test_a_chapter_changed_after_its_run_stops_the_build(book, code):
    with pytest.raises(book.ExtensionError, match=r"notebooks/01_task\.ipynb was changed"):
        book.take_executed_chapter(APP, "notebooks/01_task", [json.dumps(chapter(code))])


@pytest.mark.usefixtures("run_folder")
def test_a_chapter_that_was_not_run_stops_the_build(book):
    with pytest.raises(FileNotFoundError, match="02_equivariance"):
        book.take_executed_chapter(APP, "notebooks/02_equivariance", [json.dumps(chapter())])


@pytest.mark.usefixtures("run_folder")
def test_a_prose_page_is_left_alone(book):
    source = ["# Words"]
    book.take_executed_chapter(APP, "book/glossary", source)
    assert source == ["# Words"]


def test_without_a_named_folder_the_build_runs_the_chapter_itself(book, monkeypatch):
    monkeypatch.delenv("LENGTHGEN_CHAPTERS", raising=False)
    source = [json.dumps(chapter())]
    book.take_executed_chapter(APP, "notebooks/01_task", source)
    assert source == [json.dumps(chapter())]


# ---------------------------------------------------------------- light pages


@pytest.fixture(scope="module")
def light_pages():
    return loaded("light_pages")


# Two sets, as in Font Awesome's own file: outlines first, then the solid icons.
FONT_AWESOME = (
    '{list:[9,9,[],"f03a","M1"]},'
    '{list:[512,448,["l"],"f03a","M2"],"file-pdf":[384,512,[],"f1","M3"]}'
)
PAGE = """<html data-content_root="../"><head>
  <script data-cfasync="false">theme()</script>
  <script defer src="../_static/scripts/fontawesome.js?digest=1"></script>
  <script src="../_static/documentation_options.js?v=1"></script>
  <script src="../_static/copybutton.js?v=2"></script>
  <script>inline()</script>
  <script defer="defer" src="../_static/../vendor/mathjax/tex-svg-full.js?v=3"></script>
  <script src="../_static/searchtools.js"></script>
  <script src="../searchindex.js"></script>
  <script src="../_static/sphinx_highlight.js?v=4"></script>
</head><body><div class="bd-content"><i class="fa-solid fa-list fa-lg" data-mode="a"></i>
<span class="fas fa-file-pdf"> </span><i class="other">words</i></div></body></html>"""


def test_a_page_does_not_wait_for_what_it_does_not_need(light_pages):
    page = light_pages.lighten(PAGE, light_pages.Icons(FONT_AWESOME))
    for gone in ("fontawesome.js", "searchtools.js", "searchindex.js", "sphinx_highlight.js"):
        assert gone not in page
    waits = [tag for tag in re.findall(r"<script[^>]*src=[^>]*>", page) if " defer" not in tag]
    assert waits == ['<script src="../_static/documentation_options.js?v=1">']
    assert "<script>inline()</script>" in page, "a script of the page itself stays"
    mathjax = "../_static/../vendor/mathjax/tex-svg-full.js?v=3"
    assert f'<script type="text/plain" data-lg-mathjax="{mathjax}"></script>' in page
    assert page.index("matchMedia") < page.index("theme()"), "colours are chosen too late"
    assert "`../_static/fonts/" in page
    search = light_pages.lighten(PAGE, light_pages.Icons(FONT_AWESOME), is_search=True)
    assert "searchtools.js" in search and "sphinx_highlight.js" in search


def test_icons_are_the_solid_ones_of_the_theme(light_pages):
    icons = light_pages.Icons(FONT_AWESOME)
    page = light_pages.lighten(PAGE, icons)
    assert '<svg class="lg-icon fa-solid fa-list fa-lg" data-mode="a" viewBox="0 0 512 448"' in page
    assert 'd="M2"' in page and 'd="M3"' in page and 'd="M1"' not in page
    assert '<i class="other">words</i>' in page
    with pytest.raises(light_pages.ExtensionError, match="no icon 'moon'"):
        light_pages.lighten(PAGE.replace("fa-list", "fa-moon"), icons)


def test_the_place_of_the_contents_is_kept_where_there_are_contents(light_pages):
    icons = light_pages.Icons(FONT_AWESOME)
    contents = PAGE.replace("</body>", '<div id="pst-secondary-sidebar"></div></body>')
    assert "lg-with-contents" in light_pages.lighten(contents, icons)
    assert "lg-with-contents" not in light_pages.lighten(PAGE, icons)
