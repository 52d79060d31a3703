"""Builds the CPU engine's library and names the wheel after it. All else about the package is in pyproject.toml.

The library is plain C that Python loads with ctypes: neither Python's nor PyTorch's headers enter it, so one build
serves every version of both, and a wheel with it is `py3-none-PLATFORM`. Without a C compiler, or with ADAN_PURE=1, the
package is built without it: that wheel is `py3-none-any`, and on the CPU the `foreach` engine serves.
"""

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent


class BuildLibrary(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # No Python's tag in the name: it is not a module.
        return fullname.replace(".", "/") + ".so"


class BuildWheel(bdist_wheel):
    def run(self) -> None:
        self.run_command("build")
        library = self.get_finalized_command("build_ext")
        if not any(Path(path).exists() for path in library.get_outputs()):
            print("adan: built without its C library, so this wheel has no CPU engine", file=sys.stderr)
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", "any" if self.root_is_pure else super().get_tag()[2]


LIBRARY = Extension(
    "adan.engines._cpu",
    sources=["src/adan/engines/cpu.c"],
    # No contraction: the same bits on every machine. No -ffast-math: inf and NaN must come through.
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fvisibility=hidden",
        "-g0",
    ],
    extra_link_args=["-pthread", "-lm"],
    optional=True,
)


def readme() -> str:
    """README.md, whose links lead into the repository, with the repository's address before them."""
    found = re.search(r'^Source = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{found[1]}/raw/main/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{found[1]}/blob/main/", text)


setup(
    ext_modules=[] if sys.platform == "win32" or os.environ.get("ADAN_PURE") else [LIBRARY],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": BuildWheel},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
