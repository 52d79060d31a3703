"""Python programs forked from a server that has imported torch, which takes every new Python 4 s, compiler and all."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any


class Program:
    """As `subprocess.Popen` with `[sys.executable, "-m", module, …]` or `[sys.executable, file, …]`, in text mode.

    A stream is `subprocess.PIPE`, a file, or nothing.
    """

    stdin: IO[str]
    stdout: IO[str]

    def __init__(
        self,
        words: list[str],
        stdin: int | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        text: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        ends = []
        for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
            if stream == subprocess.PIPE:
                reader, writer = os.pipe()
                theirs, ours, mode = (reader, writer, "w") if name == "stdin" else (writer, reader, "r")
                setattr(self, name, os.fdopen(ours, mode, encoding="utf-8"))
            else:
                theirs = os.open(os.devnull, os.O_RDWR) if stream is None else os.dup(stream.fileno())
            ends.append(Connection(theirs))  # which multiprocessing can send to the process
        arguments = words[1:], ends, dict(env or os.environ), cwd or Path.cwd()
        self.process = multiprocessing.get_context("forkserver").Process(target=_run, args=arguments, daemon=True)
        self.process.start()
        for end in ends:
            end.close()
        self.pid, self.kill = self.process.pid, self.process.kill

    def send_signal(self, number: int) -> None:
        if self.process.exitcode is None and self.pid is not None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        return self.process.exitcode


def ranks(arguments: list[str], env: Mapping[str, str] | None = None, **streams: Any) -> list[Program]:
    """The processes that `torchrun` starts on this machine, given these arguments."""
    from torch.distributed.run import parse_args

    options = parse_args(arguments)
    assert options.standalone
    with socket.create_server(("localhost", 0)) as server:
        address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(server.getsockname()[1])}
    count = options.nproc_per_node
    command = [sys.executable, *["-m"] * options.module, options.training_script, *options.training_script_args]
    return [
        Program(command, env={**(env or os.environ), **address, **_place(rank, count)}, **streams)
        for rank in range(int(count))
    ]


def _place(rank: int, count: str) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}


def torchrun(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of `[sys.executable, "-m", "torch.distributed.run", …]`."""
    return subprocess.CompletedProcess(words, int(any(rank.wait(60) != 0 for rank in ranks(words[3:]))), "", "")


def _run(words: list[str], ends: list[Connection], env: Mapping[str, str], cwd: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for fd, end in enumerate(ends):
        os.dup2(end.fileno(), fd)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, range(3), "rww")
    module = words[0] == "-m"
    sys.argv = words[module:]
    try:
        if module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
