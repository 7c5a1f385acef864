"""Forces what was written to the disk: a rename that survives a power cut needs the file, then its folder, to be there.

Left out: writing. Each owner of a format knows its own order of steps.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return when the file's content, or the folder's list of names, is on the disk. Raises OSError if it cannot be."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
