"""A process that runs one unknown program under limits; humaneval.py starts it, one for each answer.

Standard input holds a secret line, then the program. The secret goes to standard output when the program has run to its
end, so that an early exit does not count as success. What limits it: seconds of processor time, memory, file size, no
child processes; no network where the kernel lets a process give it up; no writing or removing outside its own folder.
This keeps accidents small. It is no wall against code that was written to break out: use a container for that.
"""

from __future__ import annotations

import os
import sys
from typing import Any

REFUSED = ("socket.", "subprocess.", "ctypes.", "shutil.", "signal.pthread_kill", "winreg.", "webbrowser.", "ftplib.")
PROCESSES = ("fork", "forkpty", "exec", "posix_spawn", "spawn", "system", "startfile", "kill", "killpg", "putenv")
FILES = ("remove", "rename", "rmdir", "chmod", "chown", "link", "symlink", "truncate", "mkdir", "chdir", "chflags")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NEW_USERS_AND_NETWORK = 0x10000000 | 0x40000000  # CLONE_NEWUSER | CLONE_NEWNET of Linux


def confine(seconds: int, memory: int) -> None:
    """Give up everything that an answer does not need; there is no way back."""
    import ctypes
    import resource

    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(NEW_USERS_AND_NETWORK)  # where the kernel forbids it, the hook stands alone
    limits = {"CPU": seconds, "AS": memory, "DATA": memory, "FSIZE": 1 << 20, "NOFILE": 32, "NPROC": 0, "CORE": 0}
    for name, value in limits.items():
        limit = getattr(resource, f"RLIMIT_{name}", None)
        if limit is not None:
            resource.setrlimit(limit, (value, value))
    folder = os.path.realpath(".") + os.sep

    def hook(event: str, args: tuple[Any, ...]) -> None:
        refused = event.startswith(REFUSED) or (event.startswith("os.") and event[3:] in PROCESSES + FILES)
        if event == "open":
            path, _, flags = args
            inside = isinstance(path, int) or os.path.realpath(os.fsdecode(path)).startswith(folder)
            refused = bool((flags or 0) & WRITING) and not inside
        if refused:
            raise PermissionError(f"{event} is refused here")

    sys.addaudithook(hook)


def main() -> None:
    secret = sys.stdin.readline().strip()
    program = sys.stdin.read()
    verdict = os.dup(1)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the process
    confine(int(sys.argv[1]), int(sys.argv[2]))
    exec(compile(program, "answer", "exec"), {"__name__": "answer"})
    os.write(verdict, secret.encode())


if __name__ == "__main__":
    main()
