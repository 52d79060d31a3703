"""Where a run ran: commit, versions, hardware. Every record holds it."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from adan_bench.config import cores

COMMAND = "ADAN_BENCH_COMMAND"  # what the user typed: set by `cli.app.main`, and inherited by worker processes
PACKAGES = (
    "adan", "torch", "triton", "transformers", "tokenizers", "pytorch_optimizer", "schedulefree", "numpy",
    "scikit-learn", "torchvision", "timm", "torch_geometric", "stable-baselines3", "gymnasium", "mujoco",
)  # fmt: skip


def describe(device: str = "cpu") -> dict[str, Any]:
    import torch

    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        "cuda": torch.version.cuda if device.startswith("cuda") else None,
        "command": os.environ.get(COMMAND, ""),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@functools.cache  # what this process has imported stays as it is, and to ask git and the packages takes 25 ms a run
def _commit() -> str | None:
    """The commit of the checkout that this file lies in, with a + where files differ from it; None when installed."""
    here = Path(__file__)

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here.parent, capture_output=True, text=True, timeout=10).stdout

    try:
        if not git("ls-files", here.name):  # installed into a folder of another repository, such as its .venv
            return None
        return git("describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*").strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


@functools.cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's name: Linux on arm gives only a part number, which is better than nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    part = fields.get("CPU part", "unknown")
    known = {"0xd0c": "Arm Neoverse-N1"}.get(part)
    return fields.get("model name") or known or platform.processor() or part
