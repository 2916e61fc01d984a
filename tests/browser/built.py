"""The built book: where it is, which pages it has, and how tests are made of them.

All that is asked of a page is asked in one process, which opens the page once in every way (see
`opened` and the scheduler in conftest.py).
"""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
SUBPATH = "/some/sub"
SCHEMES = ("light", "dark")
WAYS = ("desk", "phone", "disk")
"""How a reader has the book: see `opened` in conftest.py."""


def contents(node) -> list[str]:
    """The documents named anywhere in the table of contents, in its order."""
    if isinstance(node, dict):
        own = [node[key] for key in ("root", "file") if key in node]
        return own + [doc for value in node.values() for doc in contents(value)]
    if isinstance(node, list):
        return [doc for value in node for doc in contents(value)]
    return []


def pages_of_explorables() -> dict[str, str]:
    """The page of the built book that holds each explorable, by the explorable's name."""
    return {
        name: f"notebooks/{page.name}"
        for page in sorted(SITE.glob("notebooks/*.html"))
        for name in re.findall(r'data-lx-mount="(\w+)"', page.read_text(encoding="utf8"))
    }


CHAPTERS = [f"{doc}.html" for doc in contents(yaml.safe_load((ROOT / "_toc.yml").read_text()))]
# Pages that the tool adds: search, the index of terms, the index of theorems.
ADDED = ["search.html", "genindex.html"]
ADDED += [path.name for path in sorted(SITE.glob("prf-*.html"))]
PAGES = CHAPTERS + ADDED
PAGE_OF = pages_of_explorables()


def group_of(nodeid: str) -> str:
    """The page that a test looks at, by its parameters; its file, when they name none."""
    file, _, name = nodeid.removesuffix("]").partition("[")
    for way in WAYS:
        name = name.removesuffix(f"-{way}")
    return PAGE_OF.get(name) or (name if name in PAGES else file.split("::")[0])


every_page = pytest.mark.parametrize("path", PAGES)
every_chapter = pytest.mark.parametrize("path", CHAPTERS)
every_way = pytest.mark.parametrize("way", WAYS)


def on_page(path: str):
    """Parametrize with one page."""
    return pytest.mark.parametrize("path", [path])


def explorable(*names: str):
    """Parametrize with these explorables."""
    return pytest.mark.parametrize("name", names)
