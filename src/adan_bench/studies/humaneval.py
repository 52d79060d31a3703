"""HumanEval (arXiv:2107.03374): how many of its problems a run's model solves, by running what the model writes.

pass@k = mean over the problems of 1 − C(n−c, k) / C(n, k), with c of n answers right: the chance that one of k is.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from math import comb
from pathlib import Path
from typing import Any

from adan_bench.errors import UsageError, reading
from adan_bench.records.store import write_json
from adan_bench.studies import sandbox
from adan_bench.task import Context

FILE = "humaneval/HumanEval.jsonl.gz"
FIELDS = ("task_id", "prompt", "entry_point", "test")
AT_ONCE = 20  # answers
MEMORY = 1 << 30  # bytes for the program of an answer
#: What follows a function's body.
STOPS = ("\ndef ", "\nclass ", "\nif ", "\nprint(", "\nassert ", "\n#", "\n@", "\n```")


def pass_at_k(
    run_dir: Path,
    data: Path | None,
    samples: int = 20,
    ks: Sequence[int] = (1, 10),
    *,
    temperature: float = 0.8,
    tokens: int = 256,
    problems: int | None = None,
    seconds: float = 10.0,
    jobs: int = 1,
    device: str = "cpu",
    seed: int = 0,
    on_problem: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Sample answers from a run's final weights, run each in a limited process, and keep humaneval.json beside the run.

    problems: only the first of them. on_problem: (task, answers that are right, answers) after each problem.
    """
    if not ks or max(ks) > samples or min(ks) < 1:
        raise UsageError(f"--k {','.join(map(str, ks))}: at most --samples {samples}; raise --samples or lower --k")
    if sys.platform == "win32":
        raise UsageError("HumanEval needs the limits of a Unix process (the module resource); this is Windows")
    chosen = list(read_problems(Context(0, 1, data).path(FILE)))[:problems]
    write = writer(run_dir, data, temperature, tokens, device, seed)
    counts: dict[str, int] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for problem in chosen:
            answers = [assemble(problem, text) for text in write(problem["prompt"], samples)]
            counts[problem["task_id"]] = sum(pool.map(lambda text: passes(text, seconds), answers))
            if on_problem is not None:
                on_problem(problem["task_id"], counts[problem["task_id"]], samples)
    scores = {f"pass@{k}": sum(estimate(samples, c, k) for c in counts.values()) / len(counts) for k in ks}
    settings = {"samples": samples, "temperature": temperature, "tokens": tokens, "seed": seed, "first": problems}
    result = {**scores, "problems": len(counts), **settings, "right": counts}
    write_json(run_dir / "humaneval.json", result)
    return result


def estimate(samples: int, right: int, k: int) -> float:
    """The chance that one of k answers is right, without bias, where `right` of the samples are.

    >>> estimate(samples=2, right=1, k=1)
    0.5
    """
    return 1 - comb(samples - right, k) / comb(samples, k)


def read_problems(path: Path) -> Iterator[Mapping[str, str]]:
    with reading(path, "not HumanEval's gzipped JSON lines"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            problems = [json.loads(line) for line in file if line.strip()]
        if not problems or not all(field in problem for problem in problems for field in FIELDS):
            raise ValueError(f"every line must have {', '.join(FIELDS)}")
    yield from problems


def assemble(problem: Mapping[str, str], completion: str) -> str:
    """The program that fails unless the completion is right."""
    ends = [end for stop in STOPS if (end := completion.find(stop)) >= 0]
    body = completion[: min(ends)] if ends else completion
    return f"{problem['prompt']}{body}\n{problem['test']}\ncheck({problem['entry_point']})\n"


def passes(program: str, seconds: float = 10.0, memory: int = MEMORY) -> bool:
    """Whether a program runs to its end within the limits, in a process and a folder of its own."""
    secret = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", "-B", sandbox.__file__, str(int(seconds) + 1), str(memory)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as verdict:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=verdict,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            process.communicate(f"{secret}\n{program}".encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        verdict.seek(0)
        return verdict.read(1000) == secret.encode()


def writer(
    run_dir: Path, data: Path | None, temperature: float, tokens: int, device: str, seed: int
) -> Callable[[str, int], Iterator[str]]:
    """A function by which a run's model continues a prompt so many times."""
    import torch

    from adan_bench.data.tokens import LanguageTask
    from adan_bench.records.store import read_run
    from adan_bench.training.scripts import load_script
    from adan_bench.workloads.registry import get_workload

    if not (run_dir / "config.json").exists():
        raise UsageError(f"{run_dir}: no run there; name the folder of one that was made with --keep-weights")
    config = read_run(run_dir).config
    if config.script is not None:
        load_script(config.script)
    weights = Context(config.seed, config.batch_size, init=run_dir).weights()
    workload = get_workload(config.workload, config.scale)
    task = workload.task(config.seed, config.batch_size, data or config.data, device)
    if not isinstance(task, LanguageTask) or not hasattr(task.model, "generate"):
        raise UsageError(f"{run_dir}: {config.workload} trains no model that writes text")
    task.model.load_state_dict(weights)
    model: Any = task.model.to(device).eval()
    longest: int = model.config.max_position_embeddings
    tokens = min(tokens, longest // 2)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "max_new_tokens": tokens}
    sampling |= {"use_cache": True, "pad_token_id": task.pad, "eos_token_id": task.end}
    torch.manual_seed(seed)

    def write(prompt: str, samples: int) -> Iterator[str]:
        ids = torch.tensor([task.tokenizer.encode(prompt).ids[tokens - longest :]], device=device)
        for done in range(0, samples, AT_ONCE):
            rows = ids.expand(min(AT_ONCE, samples - done), -1)
            out = model.generate(rows, attention_mask=torch.ones_like(rows), **sampling)
            for row in out[:, ids.shape[1] :].tolist():
                yield task.tokenizer.decode([*takewhile(lambda token: token != task.end, row)])

    return write
