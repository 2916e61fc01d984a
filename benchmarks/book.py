"""Building the book and reading it: builds, weight of the pages, time to the first interaction.

These run the project's own targets in the checkout, with a unit cache of their own, and take many
minutes; `python -m benchmarks builds pages` runs them alone. Each build runs once.
"""

from __future__ import annotations

import functools
import gzip
import http.server
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.children import ROOT
from benchmarks.timing import summary

__all__ = ["builds", "pages"]

SITE = ROOT / "_build" / "html"
SLIDER = ".lx-control input[type=range]:enabled"
FIRST_INTERACTION = """
(() => {
  const attempt = () => {
    const slider = document.querySelector("%s");
    const output = slider?.parentElement.querySelector("output");
    if (output?.textContent) {
      const before = [output.textContent, slider.value];
      slider.stepUp();
      if (slider.value === before[1]) slider.stepDown();
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      if (output.textContent !== before[0])
        return requestAnimationFrame(() => setTimeout(() => (window.lgMoved = performance.now())));
    }
    requestAnimationFrame(attempt);
  };
  requestAnimationFrame(attempt);
})();
"""
"""Moves the first slider as soon as there is one; notes when the frame with its answer is drawn."""


def builds() -> dict[str, float]:
    """Return the seconds of `make book` with an empty and a full unit cache, and of the chapters.

    Raises:
        subprocess.CalledProcessError: a build failed.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "LENGTHGEN_CACHE": cache}
        seconds = {}
        for name, target in (("cold", "book"), ("warm", "book"), ("nbmake_warm", "chapters")):
            began = time.perf_counter()
            subprocess.run(["make", target], cwd=ROOT, env=environment, check=True)
            seconds[f"{name}_s"] = time.perf_counter() - began
    return seconds


def pages(repeats: int) -> dict[str, dict[str, Any]]:
    """Return, for every chapter, what a first visit transfers and when a reader can move a slider.

    `page_kb` is the page alone and `visit_kb` everything that the first visit loads, both with
    gzip, in 1e3 bytes. The first visit has an empty cache and a server on this machine, so that
    only the browser's own work is in the time.

    Args:
        repeats: visits of each chapter.

    Raises:
        FileNotFoundError: nothing was built.
    """
    if not (SITE / "index.html").is_file():
        raise FileNotFoundError(f"no built book in {SITE}: run `make book` first")
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    from chromium import ARGUMENTS, find_chromium
    from playwright.sync_api import sync_playwright

    chapters = sorted(path.relative_to(SITE) for path in SITE.glob("notebooks/*.html"))
    found = {}
    with _server(SITE) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        for chapter in chapters:
            visits = [_visit(browser, f"{address}/{chapter.as_posix()}") for _ in range(repeats)]
            moments = [seconds for seconds, _ in visits if seconds is not None]
            found[chapter.stem] = {
                "page_kb": len(gzip.compress((SITE / chapter).read_bytes())) / 1e3,
                "visit_kb": visits[0][1] / 1e3,
                "first_interaction": summary(moments) if moments else None,
            }
        browser.close()
    return found


def _visit(browser: Any, url: str) -> tuple[float | None, int]:
    """Visit with an empty cache; the seconds until a slider answered, and the bytes with gzip."""
    with browser.new_context() as context:
        page = context.new_page()
        bodies: list[Any] = []
        page.on("response", lambda response: bodies.append(response))  # a plain method is refused
        page.add_init_script(FIRST_INTERACTION % SLIDER)
        page.goto(url, wait_until="networkidle")
        moment = None
        if page.locator(SLIDER).count():
            page.wait_for_function("window.lgMoved")
            moment = page.evaluate("window.lgMoved") / 1e3
        return moment, sum(len(gzip.compress(r.body())) for r in bodies if r.ok)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
