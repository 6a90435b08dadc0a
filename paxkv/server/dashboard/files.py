"""The files of the page, and the paths they are served at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "assets"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# Nothing from elsewhere, nothing inline, in no frame.
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class PageFile:
    """path: of the URL. media_type: with its charset."""

    path: str
    media_type: str
    content: bytes


def page_files(root_path: str = "") -> list[PageFile]:
    """All of them, read now: a request names one of these paths or nothing.

    root_path: the page's links begin with it. Without one they are relative, and below a proxy's
    prefix right only if the page's own URL ends with a slash.
    """
    return [_read(file, root_path) for file in sorted(FOLDER.iterdir()) if file.suffix in TYPES]


def _read(file: Path, root_path: str) -> PageFile:
    content = file.read_bytes()
    if root_path and file.suffix == ".html":
        content = content.replace(b'="page/', f'="{root_path}/page/'.encode())
    return PageFile(_path(file), TYPES[file.suffix], content)


def _path(file: Path) -> str:
    return "/" if file.name == "index.html" else f"/page/{file.name}"


# Anybody may read these: they say nothing about this server.
PATHS = frozenset(_path(file) for file in FOLDER.iterdir() if file.suffix in TYPES)
