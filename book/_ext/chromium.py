"""Where a Chromium is, and how it starts: to print the book, to test it and to time it."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Chromium has no sandbox for root, as which CI may run; /dev/shm may be small.
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage"]


def find_chromium() -> str | None:
    """Return the path of `$LENGTHGEN_CHROMIUM` or of a Chromium by its usual names, or `None`."""
    named = os.environ.get("LENGTHGEN_CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
