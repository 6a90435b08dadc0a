"""OutputFile: a path that results are written to, checked before the work and written whole."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

# What a rename over a file says where only its content can be changed, as of a mounted file.
_CANNOT_BE_REPLACED = (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV)
_LONGEST_STEM = 200


class OutputError(OSError):
    """A result could not be written."""

    @classmethod
    def of(cls, error: OSError, path: str | os.PathLike[str]) -> OutputError:
        """`error`, naming the file."""
        return cls(error.errno, error.strerror or str(error), os.fspath(path))

    def __str__(self) -> str:
        return f"{self.filename} cannot be written: {self.strerror}"


class OutputFile:
    """A file, a link to one, a pipe or a device to write results to.

    Links are followed. A regular file is written whole or not at all and keeps its mode; anything
    else is written to as it stands, never replaced.

    Attributes:
        path: as it was given.
        target: where links lead.
        is_stream: a pipe, a device or another open file, whose content cannot be replaced.

    Raises ValueError if nothing can be written there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.target = Path(os.path.realpath(self.path))
        self.is_stream = False
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self._check_folder()
            return
        except OSError as error:
            raise ValueError(f"{str(self.path)!r} cannot be written: {error.strerror}") from None
        if stat.S_ISDIR(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            kind = "folder" if stat.S_ISDIR(status.st_mode) else "socket"
            raise ValueError(f"{str(self.path)!r} is a {kind}, it must be a file")
        if not os.access(self.path, os.W_OK):
            raise ValueError(f"{str(self.path)!r} cannot be written: Permission denied")
        # Of an open file below /proc the link's text may name nothing, or something else.
        self.is_stream = not (stat.S_ISREG(status.st_mode) and self.same_as(self.target))

    def _check_folder(self) -> None:
        folder = self.target.parent
        if not folder.is_dir():
            raise ValueError(f"{str(self.path)!r} is in no folder that exists")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"{str(self.path)!r} cannot be written: Permission denied")

    @property
    def suffix(self) -> str:
        return self.path.suffix

    def same_as(self, other: str | os.PathLike[str]) -> bool:
        """Whether both are one existing file."""
        try:
            return os.path.samefile(self.path, other)
        except (OSError, ValueError):
            return False

    def write_text(self, text: str) -> None:
        """Write `text` as UTF-8, instead of what is there. Raises OutputError."""
        self.write_bytes(text.encode())

    def write_bytes(self, content: bytes) -> None:
        """Write `content` instead of what is there. Raises OutputError."""
        try:
            if self.is_stream:
                self._write_through(self.path, content)
            else:
                self._write_whole(content)
        except OSError as error:
            raise OutputError.of(error, self.path) from None

    def _write_whole(self, content: bytes) -> None:
        """Into a new file that takes the old one's name; in place where that cannot be."""
        stem, end = self.target.name[:_LONGEST_STEM], secrets.token_hex(4)
        new = self.target.with_name(f".{stem}.{end}.new")
        old = self.target.stat() if self.target.exists() else None
        if old is not None and old.st_nlink > 1:
            self._write_through(self.target, content)
            return
        try:
            with new.open("xb") as file:
                if old is not None:
                    with suppress(PermissionError):
                        os.chown(file.fileno(), old.st_uid, old.st_gid)
                    os.chmod(file.fileno(), stat.S_IMODE(old.st_mode))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.target)
        except OSError as error:
            if old is None or error.errno not in _CANNOT_BE_REPLACED:
                raise
            self._write_through(self.target, content)
        finally:
            new.unlink(missing_ok=True)

    @staticmethod
    def _write_through(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content)
