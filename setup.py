"""Builds the CPU engine's library. All else about the package is in pyproject.toml.

The library is plain C that Python loads with ctypes: neither Python's nor PyTorch's headers enter it, so one build
serves every version of both. Without a C compiler the package installs without it, and other engines serve.
"""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildLibrary(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # No Python's tag in the name: it is not a module.
        return fullname.replace(".", "/") + ".so"


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

setup(ext_modules=[] if sys.platform == "win32" else [LIBRARY], cmdclass={"build_ext": BuildLibrary})
