"""Errors of the harness, and the words in them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path
from pickle import PickleError
from typing import Any

MANY = 20  # of more names, only those near the one that was given are listed
LISTED = 12  # names of a folder that are listed
declared: list[tuple[str, str]] = []  # decorators and names since the last script began to load


class UsageError(ValueError):
    """What the user asked for does not exist; the message is the one line to print, the exit code is 2."""


class WorkloadError(ValueError):
    """What a workload's `loss` or `evaluate` returned cannot be used: the run has failed, and the message says why."""


def unknown(what: str, name: str, known: Iterable[str], of: str = "", see: str = "") -> UsageError:
    """The error for a name that is none of the known ones, which all belong to `of`, with the nearest of them first.

    see: a command that lists them, in place of a long list.

    >>> unknown("optimizer", "adanw", ["adan", "adamw", "sgd"])
    UsageError("no optimizer 'adanw'; did you mean adan or adamw? There are: adan, adamw, sgd")
    """
    names = list(known)
    bare = {own.lstrip("-"): own for own in names}  # dashes would make all options near
    near = [bare[own] for own in difflib.get_close_matches(name.lstrip("-"), bare, n=2)]
    has, have = (f"{of} has no", "it has") if of else ("no", "there are")
    meant = f"did you mean {' or '.join(near)}?"
    if near and len(names) > MANY:
        return UsageError(f"{has} {what} {name!r}; {meant}")
    if see and len(names) > MANY:
        return UsageError(f"{has} {what} {name!r}; see: {see}")
    hint = f"{meant} {have.capitalize()}" if near else have
    return UsageError(f"{has} {what} {name!r}; {hint}: {', '.join(names) or 'none'}")


@contextmanager
def reading(path: Path, wrong: str, remedy: str = "get it again") -> Iterator[None]:
    """Say what is wrong with a file that cannot be read, and what to do about it."""
    try:
        yield
    except UsageError:
        raise
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, PickleError, LZMAError) as error:
        raise UsageError(f"{path}: {wrong} ({error}); {remedy}") from error


def check_name(decorator: str, name: Any, marks: str = "_+-") -> None:
    """Check the name of a workload or an optimizer, and note it as declared: it becomes part of paths and options."""
    if not isinstance(name, str) or not re.fullmatch(rf"[A-Za-z][\w{marks}]*", name) or name == "all":
        raise ValueError(f"{decorator}: name must be a word of letters, digits and {marks}, got {name!r}")
    declared.append((decorator, name))


class TimeLimitReached(Exception):
    """--time-limit ended the work before it was done; the message says how to continue, the exit code is 4."""


def listing(folder: Path) -> str:
    """The names in a folder, for an error message of one line."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return ", ".join([*names[:LISTED], *(["…"] if names[LISTED:] else [])]) or "nothing"


def short(value: Any) -> str:
    """A value in an error message: itself, or its type where it is long."""
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"
