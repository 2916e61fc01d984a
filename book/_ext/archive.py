"""Pack the built site and the frozen results into one zip: `python book/_ext/archive.py OUT.zip`.

Files keep fixed timestamps and a sorted order, so that the same content gives the same archive.
"""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"site": ROOT / "_build" / "html", "results": ROOT / "results"}
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can hold


def main(out: Path) -> None:
    """Write the archive, whole or not at all."""
    partial = out.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, folder in FOLDERS.items():
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                entry = zipfile.ZipInfo(f"lengthgen/{name}/{path.relative_to(folder)}", EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, path.read_bytes())
    partial.replace(out)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MiB)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
