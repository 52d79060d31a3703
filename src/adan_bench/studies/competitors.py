"""Who competes: optimizers, or variants of one with other settings, each under a name of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adan_bench.spec import OptimizerSpec, Settings, UsageError, unknown
from adan_bench.training.optimizers import SPECS, get_optimizer

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
    def folder(self) -> str:
        return re.sub(r"[^\w.=+-]+", "-", self.name)


def competitors(
    text: str, pairs: Sequence[str] = (), *, flag: str = "--optimizers", most: int | None = None
) -> list[Competitor]:
    """Those of a list such as "adan,adan:state_format=8bit:lr=0.01,adamw", or "all", with the settings of `pairs`.

    pairs: KEY=VALUE for every optimizer, OPTIMIZER.KEY=VALUE for one of them.

    >>> [(c.name, c.settings) for c in competitors("adan:betas=0.9,0.92,0.99,adamw", ["adamw.lr=0.001"])]
    [('adan:betas=0.9,0.92,0.99', {'betas': (0.9, 0.92, 0.99)}), ('adamw', {'lr': 0.001})]
    """
    names = list(SPECS) if text == "all" else _split(text)
    if not names or (most is not None and len(names) > most):
        raise UsageError(f"{flag} {text}: it names {len(names)} optimizers; name {most or 'at least one'}")
    if len(set(names)) < len(names):
        raise UsageError(f"{flag} {text}: it names one twice; a variant is written {EXAMPLE}")
    found = []
    for name in names:
        optimizer, *variant = name.split(":")
        own = _settings(variant, f"{flag} {name}", EXAMPLE)
        found.append(Competitor(name, get_optimizer(optimizer), own))
    return _with_pairs(found, pairs)


def _with_pairs(found: list[Competitor], pairs: Sequence[str]) -> list[Competitor]:
    given = _settings(pairs, "--set", "--set lr=0.003 or --set adan.lr=0.003")
    here = {name for c in found for name in (c.name, c.spec.name)}
    for key in given:
        owner, dot, _ = key.rpartition(".")
        if dot and owner not in here:
            raise unknown("optimizer here", owner, sorted(here))
    result = []
    for c in found:
        said: Settings = {}
        for wanted in ("", c.spec.name, c.name):  # what is said of one optimizer overrides what is said of all
            for key, value in given.items():
                owner, _, name = key.rpartition(".")
                if owner == wanted:
                    said[name] = value
        result.append(replace(c, settings={**said, **c.settings}))
    return result


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
    found = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (equals and key and text):
            raise UsageError(f"{where}: {pair!r} is not KEY=VALUE; for example {example}")
        found[key] = value_of(text)
    return found


def value_of(text: str) -> Any:
    """A setting as it was typed: a number, a tuple, true, false, none, or else the word itself.

    >>> [value_of(text) for text in ("1e-3", "0.9,0.99", "true", "None", "8bit")]
    [0.001, (0.9, 0.99), True, None, '8bit']
    """
    words: Mapping[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
