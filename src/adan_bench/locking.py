"""Locks between processes. The operating system releases them when a process ends, however it ends."""

from __future__ import annotations

from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: nobody is kept out
    fcntl = None  # type: ignore[assignment]


def locked(path: Path, wait: bool = True) -> IO[bytes]:
    """A file, open and locked until it is closed; on a file system without locks, as of some NFS servers, open only.

    wait: for the process that has the lock; a BlockingIOError otherwise.
    """
    file = path.open("ab")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        raise
    except OSError:
        pass
    return file


class Lock:
    """A lock that the first `take` gets, for as long as `close` is not called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def take(self, refusal: Exception) -> None:
        """refusal: what is raised where another process has it."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file = locked(self.path, wait=False)
            except BlockingIOError as error:
                raise refusal from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
