"""A real Chromium on the built site, served from this machine alone.

The site is opened as a reader may have it: from the root of a server, from a folder of one on a
phone, and from the disk. A request that would leave the server finds nothing and fails the test.
"""

import functools
import http.server
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from built import ROOT, SITE, SUBPATH, group_of
from chromium import ARGUMENTS, find_chromium

REQUIRED = os.environ.get("LENGTHGEN_REQUIRE_BROWSER") == "1"
# Generous for a busy machine of two cores; nothing waits this long when it works.
TIMEOUT_MS = 30_000


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
    # What takes longest in one piece comes first.
    items.sort(key=lambda item: item.path.stem != "test_lab")


def pytest_xdist_make_scheduler(config, log):
    """All tests of a page go to one process: where this folder is run with `-n`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByPage(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByPage(config, log)


def skip_or_fail(message: str):
    """Say what is missing; where the browser tests are required, that is a failure."""
    if REQUIRED:
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="session")
def needed() -> Callable:
    """`needed("package.module")`: import what the browser tests alone need."""

    def needed(name: str):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            skip_or_fail(f"{error}: run `pip install 'lengthgen[test]'`")

    return needed


class SiteHandler(http.server.SimpleHTTPRequestHandler):
    """The built site at `/` and, once more, under SUBPATH."""

    protocol_version = "HTTP/1.1"

    def translate_path(self, path):
        return super().translate_path(path.removeprefix(SUBPATH))

    def end_headers(self):
        # As most servers do: files with a digest in their name may be kept.
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()

    def log_message(self, *args):
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A browser that closes a page early resets its connections: no fault of the site."""


@pytest.fixture(scope="session")
def site() -> Path:
    if not (SITE / "index.html").is_file():
        skip_or_fail(f"No built book in {SITE.relative_to(ROOT)}: run `make book` first.")
    return SITE


@pytest.fixture(scope="session")
def server(site) -> Iterator[str]:
    """The address of the loopback server, without a slash at its end."""
    handler = functools.partial(SiteHandler, directory=str(site))
    with QuietServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def chromium(needed):
    """One browser for the whole session."""
    path = find_chromium()
    if path is None:
        skip_or_fail(
            "No Chromium found. Install one (Debian, Ubuntu: `apt-get install chromium`; macOS: "
            "`brew install --cask chromium`) or name it: LENGTHGEN_CHROMIUM=/path/to/chromium"
        )
    with needed("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=[
                *ARGUMENTS,
                # No name but this machine's own is found: what leaves the server fails at once.
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )
        yield browser
        browser.close()


@dataclass
class Visit:
    """One open page, and everything that went wrong since it was opened."""

    page: object
    base: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> "Visit":
        """Go to a page of the site and wait until its fonts, mathematics and pictures are set."""
        self.page.goto(f"{self.base}/{path}", wait_until="load")
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until fonts, mathematics and pictures are there and two frames are drawn."""
        self.page.evaluate(
            """async () => {
                await window.lengthgenReady?.();
                await document.fonts.ready;
                await Promise.all([...document.images].map((image) => {
                    image.loading = "eager";
                    return image.complete || new Promise((done) => {
                        image.onload = image.onerror = done;
                    });
                }));
                for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
            }"""
        )

    def set_scheme(self, scheme: str) -> None:
        """Change the reader's colour scheme, which the page follows."""
        self.page.emulate_media(color_scheme=scheme)
        self.page.wait_for_function(
            "scheme => document.documentElement.dataset.theme === scheme", arg=scheme
        )
        self.settle()

    def unfold(self) -> None:
        """Open what is folded; `rest` closes it."""
        self.page.evaluate(
            """() => {
                for (const folded of document.querySelectorAll("details:not([open])"))
                    folded.open = folded.dataset.unfolded = true;
            }"""
        )
        self.settle()

    def rest(self) -> None:
        """Bring the page back to how it was opened: light, folded, on a screen."""
        self.page.bring_to_front()
        self.page.emulate_media(media="screen", color_scheme="light", reduced_motion="reduce")
        self.page.evaluate(
            """() => {
                for (const folded of document.querySelectorAll("[data-unfolded]")) {
                    folded.open = false;
                    delete folded.dataset.unfolded;
                }
            }"""
        )
        self.settle()

    def check(self) -> None:
        """Fail on the first problems, all of them listed."""
        assert not self.problems, "\n".join(self.problems)


@pytest.fixture(scope="session")
def new_reader(chromium) -> Callable:
    """`new_reader(has_touch=True)`: a reader of their own, who wants no motion."""

    def new_reader(**options):
        context = chromium.new_context(**{"reduced_motion": "reduce"} | options)
        context.set_default_timeout(TIMEOUT_MS)
        return context

    return new_reader


@pytest.fixture(scope="session")
def shared_contexts(new_reader) -> Iterator[dict]:
    """Contexts whose cache serves the scripts of every page but the first: `[touch]`."""
    contexts = {touch: new_reader(has_touch=touch) for touch in (False, True)}
    yield contexts
    for context in contexts.values():
        context.close()


@pytest.fixture(scope="session")
def visiting(new_reader, server, shared_contexts) -> Callable:
    """`with visiting(width=390, scheme="dark") as visit: visit.open("book/intro.html")`.

    `touch` gives a reader with a finger, `fresh` one who was never here: nothing cached, no theme
    chosen; other `options` are theirs. `tolerate` lists words of the messages that are no fault.
    """

    @contextmanager
    def visiting(
        base: str = server,
        width: int = 1280,
        scheme: str = "light",
        touch: bool = False,
        fresh: bool = False,
        tolerate: tuple[str, ...] = (),
        **options,
    ):
        context = new_reader(**options) if fresh else shared_contexts[touch]
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 844 if width < 600 else 900})
        page.emulate_media(color_scheme=scheme)
        visit = Visit(page, base)
        origin = "file://" if base.startswith("file:") else server

        def report(kind, text):
            problem = f"{kind}: {text}"
            if not any(word in problem for word in tolerate):
                visit.problems.append(f"{page.url}: {problem}")

        page.on(
            "request",
            lambda request: (
                request.url.startswith((origin + "/", "data:", "blob:"))
                or report("a request leaves the site", request.url)
            ),
        )
        page.on(
            "console",
            lambda message: message.type == "error" and report("console error", message.text),
        )
        page.on("pageerror", lambda error: report("script error", str(error)))
        page.on(
            "response",
            lambda answer: answer.status >= 400 and report(str(answer.status), answer.url),
        )
        page.on(
            "requestfailed",
            # A page that was left may stop what it was still fetching.
            lambda request: (
                request.failure != "net::ERR_ABORTED"
                and report(f"request failed ({request.failure})", request.url)
            ),
        )
        try:
            yield visit
        finally:
            page.close()
            if fresh:
                context.close()

    return visiting


@pytest.fixture(scope="session")
def opened(visiting, server, site) -> Iterator[Callable]:
    """`with opened("phone", "book/intro.html") as visit:` a page that tests share.

    What is open of a page stays open until another page is asked for, so that its tests open it
    once in every way: at a desk from the root of a server, on a phone from a folder of one, and
    from the disk. A test leaves the page as it found it; one that fails leaves none. With a `hash`
    the page is opened anew.
    """
    ways = {
        "desk": {"base": server},
        "phone": {"base": server + SUBPATH, "width": 390, "touch": True},
        "disk": {"base": site.as_uri()},
    }
    held: dict[str, tuple[str, ExitStack, Visit]] = {}

    def close(way):
        if way in held:
            held.pop(way)[1].close()

    @contextmanager
    def opened(way: str, path: str, hash: str = ""):
        for other, (there, _, _) in list(held.items()):
            if there != path or (hash and other == way):
                close(other)
        try:
            if way not in held:
                stack = ExitStack()
                visit = stack.enter_context(visiting(**ways[way]))
                held[way] = path, stack, visit
                visit.open(path + hash)
            visit = held[way][2]
            visit.rest()
            yield visit
            visit.check()
        except BaseException:
            close(way)
            raise

    yield opened
    for way in ways:
        close(way)
