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
