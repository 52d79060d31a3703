"""Build what a release consists of, into dist/: `make wheels`.

The sdist; from it, so that it is known to be complete, wheels for Linux on x86-64 and arm64, and one without the C
library for every other platform. The compiler is zig's: one pip package with the C libraries of all its targets, so
that any machine builds every wheel. Linking against glibc 2.17 makes them manylinux wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
GLIBC = "2.17"


def build(folder: str | Path, kind: str, *options: str, **environment: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(DIST), *options]
    subprocess.run([*command, str(folder)], check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    build(ROOT, "sdist")
    (sdist,) = DIST.glob("*.tar.gz")
    for machine in ("x86_64", "aarch64", None):
        with tempfile.TemporaryDirectory() as folder, tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
            (source,) = Path(folder).iterdir()
            if machine is None:
                build(source, "wheel", ADAN_PURE="1")
                continue
            platform = f"--plat-name=manylinux_{GLIBC.replace('.', '_')}_{machine}"
            compiler = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}"
            build(source, "wheel", f"-C--build-option={platform}", CC=compiler)
    files = sorted(map(str, DIST.iterdir()))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    if len(files) != 4:
        sys.exit(f"expected an sdist and 3 wheels, got {', '.join(files)}; a C build probably failed")


if __name__ == "__main__":
    main()
