"""What is installed and released: versions, names of wheels, the sdist, extras, links that work elsewhere."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from support.absent import packages, without

import adan

ROOT = Path(__file__).parents[1]

#: Stands for a C compiler: writes an empty library.
COMPILER = "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ $1 = -o ] && : > $2; shift; done\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what a build reads, without what an editable installation has left there."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("src", "docs", "tests", "examples"):
        left_out = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__", "_build")
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for path in ROOT.glob("*"):
        if path.is_file():
            shutil.copy(path, folder)
    return folder


def build(source, kind, **environment):
    shutil.rmtree(source / "build", ignore_errors=True)
    program = f"from setuptools import build_meta as b; b.build_{kind}('dist')"
    env = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=source, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    newest = max((source / "dist").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return newest, done.stdout + done.stderr


def test_a_wheel_with_the_library_names_its_platform_alone(source, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(COMPILER, encoding="utf-8")
    compiler.chmod(0o755)
    wheel, _ = build(source, "wheel", CC=str(compiler))
    assert re.fullmatch(rf"adan-{adan.__version__}-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert "adan/engines/_cpu.so" in names
    assert not [name for name in names if name.endswith(".c")]


@pytest.mark.parametrize("environment", [{"CC": "false"}, {"ADAN_PURE": "1"}], ids=["no compiler", "asked for"])
def test_a_wheel_without_the_library_says_so(source, environment):
    wheel, output = build(source, "wheel", **environment)
    assert wheel.name == f"adan-{adan.__version__}-py3-none-any.whl"
    assert "no CPU engine" in output
    archive = zipfile.ZipFile(wheel)
    assert not [name for name in archive.namelist() if name.endswith(".so")]
    assert {"adan/py.typed", "adan/recipes.json"} <= set(archive.namelist())
    (wheel_file,) = (name for name in archive.namelist() if name.endswith("/WHEEL"))
    assert "Root-Is-Purelib: true" in archive.read(wheel_file).decode()


def test_without_the_library_the_optimizer_says_why(monkeypatch):
    import torch

    from adan.engines import cpu

    monkeypatch.setattr(cpu, "LIBRARY", "/nowhere/_cpu.so")
    param = torch.nn.Parameter(torch.zeros(1))
    assert "foreach for 1 parameter (not fused: adan was installed without its C library" in repr(adan.Adan([param]))


def test_the_sdist_is_whole_and_the_readme_works_elsewhere(source):
    sdist, _ = build(source, "sdist")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        about = archive.extractfile(f"adan-{adan.__version__}/PKG-INFO").read().decode()
    for name in (
        "tests/reference.py",
        "docs/index.md",
        "examples/minimal_gpt.py",
        "CHANGELOG.md",
        "Makefile",
        "LICENSE",
    ):
        assert name in names
    assert "src/adan/engines/cpu.c" in names
    assert f"\nVersion: {adan.__version__}\n" in about
    assert "Project-URL: Source, https://" in about
    links = re.findall(r"\]\(([^)]+)\)", about)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    for path in re.findall(r"/(?:blob|raw)/main/([^)#\s]+)", about):
        assert (ROOT / path).exists(), path


def test_the_version_of_the_command():
    words = [sys.executable, "-X", "importtime", "-m", "adan_bench.cli", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"adan-bench {metadata.version('adan')}\n"
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)  # at once: without torch


# ---- extras ---------------------------------------------------------------------------------------------------------


def test_without_its_extra_the_command_says_what_to_install(tmp_path):
    done = without(packages("bench"), tmp_path, "list")
    assert done.returncode == 2
    assert done.stderr == "adan-bench: the package typer is missing; run: pip install '.[bench]'\n"
