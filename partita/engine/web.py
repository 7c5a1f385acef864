"""What an HTTP server in this process needs beside the package's own dependencies."""

from __future__ import annotations

import importlib
import sys


class MissingServerError(ImportError):
    """A package that serves HTTP is not installed."""


def require_server(what: str, extra: str) -> None:
    """Raise MissingServerError unless a server can be started here. what: what needs it; extra: of the package, brings it."""
    try:
        for name in ("starlette", "uvicorn"):
            importlib.import_module(name)
    except ImportError as error:
        raise MissingServerError(
            f"{what} needs starlette and uvicorn, which {sys.executable} cannot import ({error}). Install them there: "
            f"pip install 'partita[{extra}]'"
        ) from error
