"""Who competes: optimizers, or variants of one with other settings, each under a name of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adan_bench.errors import UsageError, unknown
from adan_bench.task import OptimizerSpec, Settings
from adan_bench.training.optimizers import get_optimizer, known

EXAMPLE = "adan:state_format=8bit"


@dataclass(frozen=True)
class Competitor:
    """An optimizer, or a variant of one, in a comparison.

    name: as the user wrote it, "adan" or "adan:state_format=8bit". settings: set by the user, so tuning leaves them.
    """

    name: str
    spec: OptimizerSpec
    settings: Settings = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What a record calls a variant; an optimizer as such needs none."""
        return "" if self.name == self.spec.name else self.name

    @property
    def folder(self) -> str:
        return folder_name(self.name)


def folder_name(name: str) -> str:
    """The folder of a competitor's runs: its name without what a file system may refuse."""
    return re.sub(r"[^\w.=+-]+", "-", name)


def competitors(
    text: str, pairs: Sequence[str] = (), *, flag: str = "--optimizers", most: int | None = None
) -> list[Competitor]:
    """Read a list such as "adan,adan:state_format=8bit:lr=0.01,adamw", or "all", with the settings of `pairs`.

    pairs: KEY=VALUE for every optimizer, OPTIMIZER.KEY=VALUE for one with its variants, VARIANT.KEY=VALUE for that.

    >>> [(c.name, c.settings) for c in competitors("adan:betas=0.9,0.92,0.99,adamw", ["adamw.lr=0.001"])]
    [('adan:betas=0.9,0.92,0.99', {'betas': (0.9, 0.92, 0.99)}), ('adamw', {'lr': 0.001})]
    """
    names = list(known()) if text == "all" else _split(text)
    if not names or (most is not None and len(names) > most):
        raise UsageError(f"{flag} {text}: it names {len(names)} optimizers; name {most or 'at least one'}")
    if len(set(names)) < len(names):
        raise UsageError(f"{flag} {text}: it names one twice; a variant is written {EXAMPLE}")
    entries = []
    for name in names:
        optimizer, *variant = name.split(":")
        spec = get_optimizer(optimizer)
        entries.append(Competitor(name, spec, _settings(variant, f"{flag} {name}", EXAMPLE)))
    assignments = [_owned(pair, entries) for pair in pairs]
    result = []
    for c in entries:
        said: Settings = {}
        for wanted in ("", c.spec.name, c.name):  # what is said of one optimizer overrides what is said of all
            for owner, settings in assignments:
                if owner == wanted:
                    said |= settings
        result.append(replace(c, settings={**said, **c.settings}))
    return result


def _owned(pair: str, entries: Sequence[Competitor]) -> tuple[str, Settings]:
    """The owner of a pair's setting, "" for all, and the setting. The name of a variant has dots and = of its own."""
    here: dict[str, Settings] = {c.spec.name: {} for c in entries} | {c.name: c.settings for c in entries}
    owner = max((name for name in here if pair.startswith(f"{name}.")), key=len, default="")
    setting = pair[len(owner) + 1 :] if owner else pair
    settings = _settings([setting], "--set", "--set lr=0.003 or --set adan.lr=0.003")
    for key in settings:
        if "." in key or ":" in key:
            name = pair.rpartition("=")[0].rpartition(".")[0] or key
            raise unknown("optimizer", name, sorted(here), of=f"--set {pair}: this comparison")
        if owner and key in here[owner]:
            raise UsageError(f"--set {pair}: {owner} has its {key} in its name; leave out one of the two")
    return owner, settings


def _split(text: str) -> list[str]:
    """The parts between commas; one that is a number belongs to the tuple before it."""
    parts: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if parts and re.fullmatch(r"[-+\d.eE]+", part):
            parts[-1] += f",{part}"
        elif part:
            parts.append(part)
    return parts


def _settings(pairs: Sequence[str], where: str, example: str) -> dict[str, Any]:
    settings = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (equals and key and text):
            raise UsageError(f"{where}: {pair!r} is not KEY=VALUE; for example {example}")
        settings[key] = value_of(text)
    return settings


def value_of(text: str) -> Any:
    """A setting as it was typed: a number, a tuple, true, false, none, or else the word itself.

    >>> [value_of(text) for text in ("1e-3", "3", "0.9,0.99", "False", "None", "8bit")]
    [0.001, 3, (0.9, 0.99), False, None, '8bit']
    """
    words: Mapping[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
