"""Empty CUDA libraries, so that PyPI's torchvision loads beside a CPU build of torch.

The wheel's operators for the CPU are all there, but the file that holds them is linked against libc10_cuda,
libtorch_cuda and libcudart. Where torch brings the first two this script does nothing; otherwise it compiles stubs,
with a function that aborts for each symbol that is asked for, and links the libcudart that lies in the wheel.

    python cuda_stubs.py FOLDER      then run with LD_LIBRARY_PATH=FOLDER
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path


def main(folder: Path) -> None:
    import torch

    if torch.version.cuda is not None:
        return
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", package / "_C.so"], capture_output=True, text=True, check=True
    ).stdout.split()
    symbols = [name for name in listed if "cuda" in name and "@" not in name]
    folder.mkdir(exist_ok=True)
    for library, names in (("libc10_cuda.so", symbols), ("libtorch_cuda.so", [])):
        source = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in names)
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-x", "c", "-", "-o", folder / library]
        subprocess.run(command, input=source, text=True, check=True)
    (runtime,) = (package.parent / "torchvision.libs").glob("libcudart.*")
    link = folder / ("libcudart.so." + runtime.name.rpartition(".")[2])
    link.unlink(missing_ok=True)
    link.symlink_to(runtime)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
