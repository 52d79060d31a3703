"""Studies as data: one TOML file each, which says what is compared, how long, and how settings are chosen.

docs/studies.md says what a file may hold. `parse` reads one, `read` those that it needs as well, `arms` makes the arms
that `Planner` plans.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from adan_bench.config import TUNING_SEED, Origin, RunConfig
from adan_bench.errors import UsageError, unknown
from adan_bench.records.store import CONFIG
from adan_bench.studies.arms import Arm, Search, rounded
from adan_bench.studies.competitors import competitors, folder_name
from adan_bench.studies.ranges import PRIMES, RangeSearch, extremes, filled
from adan_bench.task import Settings
from adan_bench.training.configure import configure
from adan_bench.training.optimizers import defaults
from adan_bench.workloads.registry import get_workload

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FACTORS = (0.5, 1.0, 2.0, 4.0)  # of the first trials' rates
TRIALS = 7  # unless a search says how many
LIBRARY = resources.files("adan_bench.studies") / "library"
#: The options of a run that a file may set; the others are the machine's, and flags of the command.
OPTIONS = [
    f.name
    for f in fields(RunConfig)
    if f.metadata.get("decides") and f.metadata["help"] and f.name not in ("seed", "init", "device", "keep_weights")
] + ["training"]
#: What each part of a file may hold, and of which types.
KINDS: dict[str, dict[str, tuple[type, ...]]] = {
    "": {
        **dict.fromkeys(("summary", "workload", "follows", "repeats"), (str,)),
        **dict.fromkeys(("run", "search", "optimizers", "start"), (dict,)),
        "seeds": (int, list, str),
        "runs": (list,),
    },
    "search": {
        **dict.fromkeys(("trials", "confirm", "seed"), (int,)),
        "ranges": (dict,),
        **{name: CONFIG[name] for name in OPTIONS},
    },
    "optimizers": {"settings": (dict,), "alternatives": (list,)},
    "runs": {"optimizer": (str,), "lr_factor": (int, float), **dict.fromkeys(("change", "run", "grid"), (dict,))},
    "start": {"study": (str,), "optimizer": (str,)},
    "run": {name: CONFIG[name] for name in OPTIONS},
}


@dataclass(frozen=True)
class StudyEntry:
    """An optimizer, where its search starts, and what is tried at the best rate; or its search over ranges."""

    settings: Settings
    alternatives: tuple[Settings, ...] = ()
    search: RangeSearch | None = None


@dataclass(frozen=True)
class StudyVariant:
    """Runs with the settings that another study chose: what is changed of them, and the options of the run."""

    optimizer: str
    change: Settings = field(default_factory=dict)
    run: Settings = field(default_factory=dict)
    lr_factor: float = 1.0

    @property
    def folder(self) -> str:
        """The name of its folder: what differs from the other runs of the study."""
        factor = {} if self.lr_factor == 1 else {"lr_factor": self.lr_factor}
        return "-".join([self.optimizer, *_assignments({**self.change, **self.run, **factor})])


@dataclass(frozen=True)
class Study:
    """One study as its file has it.

    optimizers: with a search of their own; follows, variants: with the settings of another study.
    trials: of each optimizer; 0: settings are taken as they are. trial: options of a trial beside those of a run.
    start: the study whose final weights runs start from, and the optimizer; an empty one is each's own.
    """

    name: str
    file: Path
    summary: str
    seeds: tuple[int, ...]
    run: Settings = field(default_factory=dict)
    workload: str = ""
    trials: int = 0
    trial: Settings = field(default_factory=dict)
    optimizers: Mapping[str, StudyEntry] = field(default_factory=dict)
    follows: str = ""
    variants: tuple[StudyVariant, ...] = ()
    start: tuple[str, str] = ("", "")

    @property
    def judged_by_validation(self) -> bool:
        """Whether its runs are made as trials are: on the tuning seed, looking at the validation split."""
        return self.seeds == (TUNING_SEED,)


def library() -> dict[str, Path]:
    """The studies of this package: their files by name."""
    folder = Path(str(LIBRARY))
    return {file.stem: file for file in sorted(folder.glob("*.toml"), key=lambda file: file.stem)}


def find(name: str, beside: Path | None = None) -> Path:
    """The file of a study: a path, or a name of the library or of a file in the same folder."""
    own = Path(name) if beside is None else beside / f"{name}.toml"
    if own.suffix == ".toml" and own.exists():
        return own
    if name not in library():
        if own.suffix == ".toml" and beside is None:
            raise UsageError(f"{name}: no such file; give a study of `adan-bench list studies`, or a TOML file")
        raise unknown("study", name, library(), see="adan-bench list studies")
    return library()[name]


def read(names: Sequence[str]) -> dict[str, Study]:
    """Studies by name, each after those that it needs."""
    studies: dict[str, Study] = {}

    def add(file: Path, chain: tuple[str, ...]) -> None:
        study = parse(file)
        if study.name in chain:
            raise UsageError(f"{file}: follows: {' → '.join((*chain, study.name))} is a circle; break it")
        if study.name in studies:
            if not file.samefile(there := studies[study.name].file):
                raise UsageError(f"{file}: {there} has the same name, and so the same folder of runs; rename one")
            return
        for key, other in (("follows", study.follows), ("start.study", study.start[0])):
            if other:
                with _of(file, key):
                    there = find(other, file.parent)
                add(there, (*chain, study.name))
        told = [("runs.optimizer", study.follows, variant.optimizer) for variant in study.variants]
        for key, other, name in (*told, ("start.optimizer", *study.start)):
            if name and name not in (own := _names(studies[other], studies)):
                raise UsageError(f"{file}: {key}: {unknown('optimizer', name, own)}")
        studies[study.name] = study

    for name in names:
        add(find(name), ())
    return studies


@contextmanager
def _of(*where: Any) -> Iterator[None]:
    """Put the file and the part of it before what is wrong there."""
    try:
        yield
    except UsageError as error:
        raise UsageError(": ".join(str(part) for part in (*where, error) if part)) from error


def parse(file: Path) -> Study:
    """The study of a file; every key is known, and of the right type."""
    with _of(file):
        return _checked(file, _content(file))


def _checked(file: Path, content: dict[str, Any]) -> Study:
    chosen = content.pop("chosen", None)
    _check("", content, "summary")
    for part, needed in (("run", ()), ("search", ()), ("start", ("study",) if "start" in content else ())):
        _check(part, content.get(part, {}), *needed)
    follows = content.get("follows", "")
    if bool(follows) == bool(content.get("optimizers")):
        raise UsageError("optimizers: give them, or the study that this one follows: follows = NAME")
    if not follows:
        _check("", content, "workload")
        if "runs" in content:
            raise UsageError("runs: they are of a study that this one follows: follows = NAME; or omit them")
    search, start = dict(content.get("search", {})), content.get("start", {})
    over = _ranges(search)
    entries: dict[str, StudyEntry] = {}
    for name, entry in content.get("optimizers", {}).items():
        _check("optimizers", entry, "settings", name=name)
        if over is not None:
            entries[name] = _searched(name, entry, over)
            continue
        if "lr" not in entry["settings"]:
            raise UsageError(f"optimizers.{name}.settings: no lr; write the learning rate to start from")
        for alternative in entry.get("alternatives", ()):
            if not isinstance(alternative, dict):
                example = "give tables of settings, such as { weight_decay = 0.1 }"
                raise UsageError(f"optimizers.{name}.alternatives: {alternative!r}; {example}")
        entries[name] = StudyEntry(entry["settings"], tuple(entry.get("alternatives", ())))
    starts = json.dumps([entry.search.start for entry in entries.values() if entry.search])
    for key in over.ranges if over is not None else ():
        if key not in OPTIONS and f'"{key}"' not in starts:
            raise UsageError(f'search.ranges.{key}: no setting has it; write NAME = "{key}" among settings')
    return Study(
        name=file.stem,
        file=file,
        summary=content["summary"],
        seeds=_seeds(content.get("seeds", 3)),
        run={**({"own_schedule": False} if "schedule" in content.get("run", {}) else {}), **content.get("run", {})},
        workload=content.get("workload", ""),
        trials=search.pop("trials", TRIALS) if "search" in content else 0,
        trial=search,
        optimizers={name: entries[name] for name in chosen or entries},
        follows=follows,
        variants=tuple(v for entry in content.get("runs", ()) for v in _variants(entry)),
        start=(start.get("study", ""), start.get("optimizer", "")),
    )


def _content(file: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What a file says, and what the study says that it repeats. chosen: some of its optimizers."""
    try:
        content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"not a study in TOML ({error})") from error
    if "repeats" not in content:
        return content
    chosen = content.pop("optimizers") if isinstance(content.get("optimizers"), list) else None
    _check("", content)
    if file in chain:
        raise UsageError(f"repeats: {content['repeats']} repeats this study; name another")
    with _of("repeats"):
        other = find(content["repeats"], file.parent)
        with _of(other):
            there = _content(other, (*chain, file))
    for key in {"run", "search"} & content.keys():
        content[key] = {**there.get(key, {}), **content[key]}
    if chosen is not None:
        names, known = [*map(str, chosen)], there.get("chosen", [*there.get("optimizers", {})])
        if len(set(names)) < len(names):
            raise UsageError(f"optimizers: {', '.join(names)}: it names one twice; omit it")
        for name in names:
            if name not in known:
                raise UsageError(f"optimizers: {unknown('optimizer', name, known)}")
        content["chosen"] = names
    elif "optimizers" in content:
        there.pop("chosen", None)
    return {**there, **content}


def _ranges(search: Settings) -> RangeSearch | None:
    """What the searches over ranges of a study share; None: it has none. The keys of `search` that it uses are gone."""
    for key, least in (("trials", 1), ("confirm", 0), ("seed", TUNING_SEED)):
        if search.get(key, least) < least:
            raise UsageError(f"search.{key}: {search[key]}; give a number from {least} on, or omit it")
    confirm, trials = search.get("confirm", 0), search.get("trials", TRIALS)
    if confirm > trials:
        raise UsageError(f"search.confirm: {confirm}; give at most the number of search.trials, {trials}")
    ranges, how = search.pop("ranges", {}), {key: search.pop(key) for key in ("confirm", "seed") if key in search}
    if not ranges:
        for key, value in how.items():
            raise UsageError(f"search.{key}: {value} is for a search over ranges; add search.ranges, or omit it")
        return None
    if len(ranges) >= len(PRIMES):
        raise UsageError(f"search.ranges: {len(ranges)} of them; give at most {len(PRIMES) - 1}")
    for key, values in ranges.items():
        _check_range(f"search.ranges.{key}", values)
        for value in extremes(values) if key in OPTIONS else ():
            _check("run", {key: value})
    options = tuple(key for key in ranges if key in OPTIONS)
    return RangeSearch((), trials, {}, options=options, ranges=ranges, **how)


def _searched(name: str, entry: Mapping[str, Any], over: RangeSearch) -> StudyEntry:
    """An optimizer with its search over ranges, and with the settings at their centers."""
    where, rates, start = f"optimizers.{name}", entry["settings"].get("lr"), {**entry["settings"], "lr": "lr"}
    if "alternatives" in entry:
        raise UsageError(f"{where}.alternatives: the study searches ranges; omit them, or search.ranges")
    if isinstance(rates, dict):
        raise UsageError(f"{where}.settings.lr: {rates}; give [LOW, HIGH]")
    _check_range(f"{where}.settings.lr", rates)
    search = replace(over, rates=tuple(rates), start=start)
    return StudyEntry(filled(start, search.centers), search=search)


def _check_range(where: str, value: Any) -> None:
    kind, values = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("", value)
    many = isinstance(values, list) and len(values) > 1
    ends = many and len(values) == 2 and all(isinstance(v, (int, float)) for v in values) and 0 < values[0] < values[1]
    if not {"": ends, "one_minus": ends and values[1] <= 1, "choice": many}.get(kind):
        forms = "[LOW, HIGH] above 0, { one_minus = [LOW, HIGH] } up to 1, or { choice = [A, B, …] }"
        raise UsageError(f"{where}: {value}; give a range: {forms}")


def _names(study: Study, studies: Mapping[str, Study]) -> list[str]:
    if study.optimizers:
        return list(study.optimizers)
    return list(dict.fromkeys(v.optimizer for v in study.variants)) or _names(studies[study.follows], studies)


def _seeds(value: Any) -> tuple[int, ...]:
    if value == "tuning":
        return (TUNING_SEED,)
    seeds = range(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(seeds, (list, range)) or not seeds or not all(isinstance(s, int) and s >= 0 for s in seeds):
        raise UsageError(f'seeds: {value!r}; give a number from 1 on, a list of them, or "tuning"')
    if max(seeds) >= TUNING_SEED:
        raise UsageError(f"seeds: {max(seeds)}; those from {TUNING_SEED} on are for trials, give smaller ones")
    return tuple(seeds)


def _variants(entry: Mapping[str, Any]) -> Iterator[StudyVariant]:
    """Every combination of an entry's grid; a key that is no option of a run is a setting."""
    _check("runs", entry, "optimizer")
    _check("run", entry.get("run", {}))
    grid = entry.get("grid", {})
    if not all(isinstance(values, list) and values for values in grid.values()):
        raise UsageError(f"runs.grid: {grid}; give a list of values for each")
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        factor = chosen.pop("lr_factor", entry.get("lr_factor", 1.0))
        if not _positive(factor):
            raise UsageError(f"runs: lr_factor = {factor!r}; give a number above 0")
        options = {key: chosen.pop(key) for key in list(chosen) if key in OPTIONS}
        change = {**entry.get("change", {}), **chosen}
        yield StudyVariant(entry["optimizer"], change, {**entry.get("run", {}), **options}, factor)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _check(part: str, content: Any, *needed: str, name: str = "") -> None:
    """Refuse a part of a file that is no table, lacks a key, or has an unknown one or a value of another type."""
    where = ".".join(filter(None, (part, name))) or "top level"
    if not isinstance(content, dict):
        raise UsageError(f"{where}: {content!r} is not a table; see docs/studies.md")
    for key, value in content.items():
        kinds = KINDS[part].get(key)
        if kinds is None:
            raise UsageError(f"{where}: {unknown('key', key, KINDS[part])}")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            raise UsageError(f"{where}: {key} = {value!r} is not of type {names}")
    for key in needed:
        if not content.get(key):
            raise UsageError(f"{where}: no {key}; see docs/studies.md")


# Arms


def arms(studies: Mapping[str, Study], wanted: Sequence[str], chosen: RunConfig, out: Path) -> list[list[Arm]]:
    """The arms of studies, those of each below the folder of its name.

    wanted: whose reported runs are made; of the others only what these need. chosen: the machine's options.
    """
    groups: dict[str, dict[str, Arm]] = {}
    for study in studies.values():
        own = _followers(study, studies, chosen, out, groups) if study.follows else _searchers(study, chosen, out)
        for arm in own.values():
            arm.seeds = study.seeds if study.name in wanted else ()
        groups[study.name] = own
    plan: list[list[Arm]] = []
    likes: set[Arm | None] = set()
    for study in reversed([*studies.values()]):  # whatever a study needs comes before it
        own, (start, optimizer) = groups[study.name], _start(study, studies)
        used = [arm for arm in own.values() if arm.seeds or arm in likes]
        if any(arm.search is not None and arm.search.together for arm in used):
            used = list(own.values())
        for arm in used:
            likes.add(arm.like)
            if start and (arm.seeds or arm.search is not None):
                arm.start = _named(groups[start], optimizer or arm.base.optimizer)
                arm.start_seed = studies[start].seeds[0] if optimizer else None
                arm.start.base = replace(arm.start.base, keep_weights=True)
                needed = studies[start].seeds[: 1 if optimizer else None]
                arm.start.seeds = sorted({*arm.start.seeds, *needed})  # another study may need others
        plan.append(used)
    return plan[::-1]


def _start(study: Study, studies: Mapping[str, Study]) -> tuple[str, str]:
    """With whose weights runs start: as the study says, else as the one that it follows does."""
    return study.start if study.start[0] or not study.follows else _start(studies[study.follows], studies)


def _named(arms: Mapping[str, Arm], optimizer: str) -> Arm:
    return next(arm for arm in arms.values() if optimizer in (arm.base.name, arm.base.optimizer))


def _searchers(study: Study, chosen: RunConfig, out: Path) -> dict[str, Arm]:
    own = {}
    for name, entry in study.optimizers.items():
        base = _configured(study, name, study.workload, entry.settings, replace(chosen, **study.run))
        arm = Arm(base, out / study.name / folder_name(name))
        if study.trials:
            arm.base = replace(base, origin=replace(base.origin, kind="failed"))  # until a trial has a result
            options = {**study.run, **study.trial}
            arm.trial = _configured(study, name, study.workload, entry.settings, replace(chosen, **options))
            if entry.search is None:
                rates = tuple(rounded(base.settings["lr"] * factor) for factor in FACTORS)
                arm.search = Search(rates, study.trials, base.settings, entry.alternatives, refine=True)
            else:
                fixed = {key: value for key, value in base.settings.items() if value != entry.settings.get(key)}
                arm.search = replace(entry.search, fixed=fixed)
            for key, tried in arm.search.extremes():
                at = replace(chosen, **{**options, **tried, "settings": {}})
                _configured(study, name, study.workload, tried["settings"], at, key)
        own[name] = arm
    return own


def _followers(
    study: Study, studies: Mapping[str, Study], chosen: RunConfig, out: Path, groups: Mapping[str, Mapping[str, Arm]]
) -> dict[str, Arm]:
    chain = [study]
    while chain[-1].follows:
        chain.append(studies[chain[-1].follows])
    options = {key: value for link in reversed(chain) for key, value in link.run.items()}
    workload = study.workload or chain[-1].workload
    given = {key for link in chain[:-1] for key in link.run}
    own = {}
    for variant in study.variants or [StudyVariant(name) for name in _names(study, studies)]:
        if variant.folder in own:
            raise UsageError(f"{study.file}: runs: two of them are {variant.folder}; omit one")
        like = _named(groups[study.follows], variant.optimizer)
        settings = {**like.base.settings, **variant.change}
        at = replace(chosen, **{**options, **variant.run})
        base = _configured(study, variant.optimizer, workload, settings, at)
        if study.judged_by_validation:
            base = replace(base, role="tune")
        if variant.change:
            base = replace(base, label=":".join([variant.optimizer, *_assignments(variant.change)]))
        folder = out / study.name / folder_name(variant.folder)
        arm = Arm(base, folder, like=like, change=variant.change, lr_factor=variant.lr_factor)
        arm.own_options = given | variant.run.keys()
        own[variant.folder] = arm
    return own


def _configured(study: Study, name: str, workload: str, settings: Settings, at: RunConfig, key: str = "") -> RunConfig:
    """The configuration of an optimizer's runs with the settings of the file, those of a key where it is given."""
    with _of(study.file, "workload"):
        problem = get_workload(workload, at.scale)
    with _of(study.file, f"{name} on {workload}", key):
        (who,) = competitors(name, flag="optimizers", most=1)
        settings = {**defaults(who.spec), **settings, **who.settings}
        if not _positive(settings["lr"]):
            raise UsageError(f"lr = {settings['lr']!r}; give a number above 0")
        config = configure(problem, who.spec, at, settings)
    origin = Origin(kind="study", source=study.name)
    return replace(config, settings=settings, label=who.label, study=study.name, origin=origin)


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_plain(value)}" for key, value in values.items()]


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
