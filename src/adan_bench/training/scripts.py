"""The user's own file, --script: the workloads and optimizers that it registers, and its checksum."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path

from adan_bench.errors import UsageError, declared
from adan_bench.training import optimizers
from adan_bench.workloads import registry


def script_checksum(path: Path) -> str:
    return hashlib.sha256(_content(path)).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"--script {path}: {error.strerror}; give a Python file") from error


def where(error: BaseException, script: Path | None = None) -> str:
    """The last frame of the user's own script on the way to an error, else the last of all."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if script is not None and Path(frame.filename).resolve() == script.resolve()]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"


def load_script(path: Path | str, sha256: str = "") -> list[str]:
    """Import a user's file; the names of the workloads that it registers.

    sha256: of the file as it was when the study began, where a run of that study is to be made.
    """
    file = Path(path)
    content = _content(file)
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise UsageError(f"--script {path}: it has changed since the study began; undo that, or begin anew")
    before, own = registry.workloads(), dict(optimizers.OWN)
    declared.clear()
    spec = importlib.util.spec_from_file_location(f"{optimizers.SCRIPT}{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--script {path}: not a Python file; give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)  # it may import modules beside it, as if Python ran it
    # Not by spec.loader, which takes a file that was edited within a second, to the same length, for the old one.
    try:
        with redirect_stdout(sys.stderr):  # standard output is the command's, lines of JSON for example
            exec(compile(content, file, "exec"), module.__dict__)
    except UsageError as error:
        raise UsageError(f"--script {path}: {error}") from error
    except (Exception, SystemExit) as error:
        reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        raise UsageError(f"--script {path}: {type(error).__name__}: {reason} ({where(error, file)})") from error
    for decorator, name in declared:
        if declared.count((decorator, name)) > 1:
            raise UsageError(f"--script {path}: it has two {decorator}({name!r}); give one of them another name")
    names = [name for name, workload in registry.workloads().items() if before.get(name) is not workload]
    if not (names or sha256) and all(own.get(name) is optimizer for name, optimizer in optimizers.OWN.items()):
        raise UsageError(
            f"--script {path}: it registers no workload and no optimizer; decorate a function with "
            "@adan_bench.workload(...) or @adan_bench.optimizer(...)"
        )
    return names
