"""Where a Chromium is: for printing the book and for its browser tests."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Return the path of `$LENGTHGEN_CHROMIUM` or of a Chromium by its usual names, or `None`."""
    named = os.environ.get("LENGTHGEN_CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
