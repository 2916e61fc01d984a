"""The book takes a chapter's outputs from the run that was checked, and from no other."""

import importlib.util
import json
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[1] / "book" / "_ext" / "lengthgen_book.py"


@pytest.fixture(scope="module")
def book():
    spec = importlib.util.spec_from_file_location("lengthgen_book", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chapter(code="1 + 1", outputs=(), count=None):
    words = {"cell_type": "markdown", "metadata": {}, "source": ["Some ", "words."]}
    cell = {"cell_type": "code", "metadata": {"tags": ["hide-input"]}, "source": code}
    cell |= {"outputs": list(outputs), "execution_count": count}
    return {"cells": [words, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


OUTPUT = {"output_type": "stream", "name": "stdout", "text": "2\n"}


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    run = json.dumps(chapter(outputs=[OUTPUT], count=1))
    (tmp_path / "01_task.ipynb").write_text(run)
    monkeypatch.setenv("LENGTHGEN_CHAPTERS", str(tmp_path))


@pytest.mark.usefixtures("run_folder")
def test_a_chapter_gets_the_outputs_of_its_run_and_is_not_run_again(book):
    source = [json.dumps(chapter())]
    book.take_executed_chapter(None, "notebooks/01_task", source)
    found = json.loads(source[0])
    assert found["metadata"].pop("mystnb") == {"execution_mode": "off"}
    assert found == chapter(outputs=[OUTPUT], count=1)


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("code", ["1 + 2", ""])
def test_a_chapter_changed_after_its_run_stops_the_build(book, code):
    with pytest.raises(book.ExtensionError, match=r"notebooks/01_task\.ipynb was changed"):
        book.take_executed_chapter(None, "notebooks/01_task", [json.dumps(chapter(code))])


@pytest.mark.usefixtures("run_folder")
def test_a_chapter_that_was_not_run_stops_the_build(book):
    with pytest.raises(FileNotFoundError, match="02_equivariance"):
        book.take_executed_chapter(None, "notebooks/02_equivariance", [json.dumps(chapter())])


@pytest.mark.usefixtures("run_folder")
def test_a_prose_page_is_left_alone(book):
    source = ["# Words"]
    book.take_executed_chapter(None, "book/intro", source)
    assert source == ["# Words"]


def test_without_a_named_folder_the_build_runs_the_chapter_itself(book, monkeypatch):
    monkeypatch.delenv("LENGTHGEN_CHAPTERS", raising=False)
    source = [json.dumps(chapter())]
    book.take_executed_chapter(None, "notebooks/01_task", source)
    assert source == [json.dumps(chapter())]
