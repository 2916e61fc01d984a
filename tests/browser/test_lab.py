"""A chapter in JupyterLab, as a reader with a kernel has it: it runs, and its figures are live."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from built import ROOT

CHAPTER = "01_task.ipynb"
TOKEN = "only-for-this-test"
# A chapter that trains takes this long on a busy machine; nothing waits so long when it works.
CHAPTER_MS = 600_000
ANSWER = ".jp-OutputArea-output:has-text('length in Python:')"
QUESTION = 'print("length in Python:", explorable.state.get("length"))'


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab on a copy of the chapter with one more cell, a question."""
    folder = tmp_path_factory.mktemp("lab")
    chapter = json.loads((ROOT / "notebooks" / CHAPTER).read_text(encoding="utf8"))
    question = {"cell_type": "code", "id": "question", "metadata": {}, "source": QUESTION}
    chapter["cells"].append(question | {"outputs": [], "execution_count": None})
    (folder / "work").mkdir()
    (folder / "work" / CHAPTER).write_text(json.dumps(chapter), encoding="utf8")
    settings = folder / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    # All cells are in the page, not only those in view.
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", f"--IdentityProvider.token={TOKEN}"]
    command += [f"--ServerApp.root_dir={folder / 'work'}", "--LabApp.expose_app_in_browser=True"]
    own = {
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | own)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:  # ends when the server answers or has ended
            assert child.poll() is None, (folder / "log").read_text()
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}").close()
                break
            except OSError:
                time.sleep(0.2)
        yield address
    finally:
        child.terminate()
        child.wait()
        shutil.rmtree(folder / "runtime", ignore_errors=True)


@pytest.fixture(scope="module")
def notebook(lab, chromium):
    """The chapter, open in JupyterLab and run from top to bottom."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(CHAPTER_MS)
    page.goto(f"{lab}/lab/tree/{CHAPTER}?token={TOKEN}")
    page.wait_for_function("window.jupyterapp?.shell.currentWidget?.sessionContext?.isReady")
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.locator(f"{ANSWER}, .jp-OutputArea-output[data-mime-type*='error']").first.wait_for()
    yield page
    context.close()


def test_the_chapter_runs_without_an_error(notebook):
    errors = notebook.locator(".jp-OutputArea-output[data-mime-type*='error']")
    assert errors.all_inner_texts() == []
    warnings = notebook.locator(".jp-OutputArea-output[data-mime-type*='stderr']")
    assert warnings.all_inner_texts() == []


def test_the_panel_retrains_and_redraws(notebook):
    button = notebook.get_by_role("button", name="Train and draw")
    panel = notebook.locator(".widget-vbox", has=button).first
    picture = panel.locator("img.lg-figure")
    before, words = picture.get_attribute("src"), picture.get_attribute("alt")
    panel.locator("select").first.select_option("learned")
    panel.get_by_role("button", name="Train and draw").click()
    notebook.wait_for_function(
        "([image, old]) => image.isConnected === false || image.src !== old",
        arg=[picture.element_handle(), before],
    )
    assert picture.get_attribute("alt") != words
    assert "mean accuracy" in picture.get_attribute("alt")


def test_a_slider_of_the_explorable_is_live_and_reaches_python(notebook):
    figure = notebook.locator("[data-explorable='task']").first
    figure.scroll_into_view_if_needed()
    # What only a kernel can do is there: this is the widget, not the static page's figure.
    assert figure.get_by_role("button", name="Train new heads").is_enabled()
    picture = figure.locator("svg[role='img']").first
    before = picture.get_attribute("aria-label")
    slider = figure.locator("input[type='range']").first
    slider.focus()
    for _ in range(4):
        notebook.keyboard.press("ArrowRight")
    notebook.wait_for_function(
        "([svg, old]) => svg.getAttribute('aria-label') !== old",
        arg=[picture.element_handle(), before],
    )
    wanted = figure.evaluate(
        "(root) => root.querySelector('input[type=range]').parentElement"
        ".querySelector('output').textContent"
    )
    notebook.evaluate(
        """async () => {
            const cells = jupyterapp.shell.currentWidget.content;
            cells.activeCellIndex = cells.widgets.length - 1;
            await jupyterapp.commands.execute("notebook:run-cell");
        }"""
    )
    notebook.locator(f"{ANSWER}:not(:has-text('None'))").wait_for()
    number = notebook.locator(ANSWER).inner_text().split(":")[1].strip()
    assert wanted.startswith(f"{number} "), (number, wanted)
