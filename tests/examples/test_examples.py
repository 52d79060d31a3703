"""Every example, run by the command that its docstring gives, says what it should."""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.forked import Program, ranks

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RESUMED = r"resumed differs by (\S+)"

gpu_only = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def needs(package):
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"needs {package}: see docs/frameworks.md")


def commands(name):
    text = ast.get_docstring(ast.parse((ROOT / "examples" / name).read_text(encoding="utf-8")))
    found = re.findall(r"^\$ (.*)$", text, re.M)
    # Two processes cannot share one GPU over NCCL.
    return [line.replace("node 2", "node 1") if torch.cuda.device_count() == 1 else line for line in found]


def start(command, folder):
    """A command as running programs. What they print lands in the folder's `output`, what they write beside it."""
    settings, program, words = re.fullmatch(r"((?:\w+=\w+ )*)(python|torchrun) (.*)", command).groups()
    env = {**os.environ, **dict(word.split("=") for word in settings.split())}
    env |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    words = shlex.split(words.replace("examples/", f"{ROOT}/examples/"))
    with (folder / "output").open("w", encoding="utf-8") as file:
        options = {"stdout": file, "stderr": file, "env": env, "cwd": folder}
        if program == "torchrun":
            return ranks(["--standalone", *words], **options)
        return [Program([sys.executable, *words], **options)]


def run(command, folder):
    """The exit status of a command, that of the first rank that failed, and what it prints."""
    failed = [status for program in start(command, folder) if (status := program.wait(600)) != 0]
    return next(iter(failed), 0), (folder / "output").read_text(encoding="utf-8")


def numbers(command, folder, pattern):
    """The numbers in what a command prints, of every place that the pattern fits."""
    status, output = run(command, folder)
    assert status == 0, output
    found = [tuple(map(float, match.groups())) for match in re.finditer(pattern, output)]
    assert found, output
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_on_the_page(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 65
    assert commands(path.name)
    assert any(
        f"(../examples/{path.name})" in page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")
    )


def test_minimal_gpt(tmp_path):
    """It learns, and one that was killed between two checkpoints ends with the bits of one that was not."""
    (command,) = commands("minimal_gpt.py")
    command, killed = command.replace(" 300", " 40"), tmp_path / "killed"
    killed.mkdir()
    whole = numbers(command, tmp_path, r"step (\d+): held-out loss (\S+)")
    assert [step for step, _ in whole] == [20, 40]
    assert whole[1][1] < whole[0][1] < 4  # bytes at random: ln 256 = 5.5
    (process,) = start(command, killed)
    while not (killed / "output").read_text(encoding="utf-8").startswith("step 20"):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert numbers(command, killed, r"step (\d+): held-out loss (\S+)") == whole[1:]


@needs("accelerate")
def test_trainer(tmp_path):
    alone, sharded = commands("trainer.py")
    # accelerate 1.15 has FSDP for GPUs alone; on CPUs it replicates without a word.
    fsdp = "FSDP" if torch.cuda.is_available() else "MULTI_CPU"
    for command, kind in ((alone, "NO"), (sharded, fsdp)):
        ((loss, difference),) = numbers(command, tmp_path, rf"Adan, {kind}: mean loss (\S+), {RESUMED}")
        assert loss < 1.2  # at the start ln 16 = 2.77
        assert difference == 0


@needs("accelerate")
@pytest.mark.parametrize("command", commands("accelerate_loop.py"))
def test_accelerate(command, tmp_path):
    ((accuracy, difference),) = numbers(command, tmp_path, rf"Adan, \w+: accuracy (\S+), {RESUMED}")
    assert accuracy > 0.9
    assert difference == 0


@needs("lightning")
def test_lightning(tmp_path):
    (command,) = commands("lightning_module.py")
    ((accuracy, difference),) = numbers(command, tmp_path, rf"Adan, bf16-mixed: accuracy (\S+), {RESUMED}")
    assert accuracy > 0.95
    assert difference == 0


def test_compiled_step(tmp_path):
    (command,) = commands("compiled_step.py")
    ((loss, difference),) = numbers(command, tmp_path, r"loss (\S+), compiled differs by (\S+)")
    assert loss < 1
    assert difference < 1e-5


@gpu_only
def test_cuda_graph(tmp_path):
    (command,) = commands("cuda_graph.py")
    ((loss, difference),) = numbers(command, tmp_path, r"loss (\S+), replayed differs by (\S+)")
    assert loss < 1
    assert difference < 1e-6


@needs("timm")
def test_timm(tmp_path):
    if subprocess.run([sys.executable, "-c", "import torchvision"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("timm needs torchvision, which does not import beside this build of torch")
    (command,) = commands("timm_layer_decay.py")
    ((accuracy, low, high),) = numbers(command, tmp_path, r"adan.optimizer: accuracy (\S+), rates from (\S+) to (\S+)")
    assert accuracy > 0.5
    assert low == pytest.approx(high * 0.9**4, rel=0.01)


@needs("deepspeed")
def test_deepspeed(tmp_path):
    (command,) = commands("deepspeed_zero.py")
    found = numbers(command, tmp_path, rf"ZeRO (\d): differs by (\S+), {RESUMED}")
    assert [stage for stage, _, _ in found] == [1, 2, 3]
    for _, difference, resumed in found:
        assert difference < 5e-6
        assert resumed == 0


@needs("torchao")
def test_torchao_low_precision(tmp_path):
    (command,) = commands("torchao_low_precision.py")
    fp32, *low = (loss for (loss,) in numbers(command, tmp_path, r"\w+: loss (\S+)"))
    assert len(low) == 3
    for loss in low:
        assert loss != fp32  # or nothing was done in 8 bits
        assert loss < 0.1


@needs("torchao")
def test_torchao_offload(tmp_path):
    (command,) = commands("torchao_offload.py")
    if not torch.cuda.is_available():
        status, output = run(command, tmp_path)
        assert status == 1
        assert "CPU Offload currently only supports CUDA & XPU" in output
        return
    pattern = r"loss (\S+), differs by (\S+), (\d+) of (\d+) bytes"
    ((loss, difference, left, whole),) = numbers(command, tmp_path, pattern)
    assert loss < 0.1
    assert difference < 1e-5
    assert left < 0.05 * whole


def test_without_its_package_an_example_names_it_in_one_line(tmp_path):
    (tmp_path / "transformers.py").write_text("raise ModuleNotFoundError(name='transformers')", encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, ROOT / "examples" / "trainer.py"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "transformers is missing; run: pip install '.[examples]'\n")


@needs("torchtitan")
@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # its own schedule's, and that of a checkpoint by one process
def test_torchtitan_trains_and_checkpoints_adan_by_its_own_container(tmp_path, monkeypatch):
    import torch.distributed.checkpoint as dcp

    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example = importlib.import_module("torchtitan_debug_model")

    run, other = example.build(30), example.build(30)
    (optimizer,) = run[1].optimizers
    assert optimizer.param_groups[1]["lr"] == optimizer.param_groups[2]["lr"] / 2
    assert optimizer.param_groups[0]["weight_decay"] == 0
    losses = list(example.train(*run, 24))
    assert losses[-1] < 0.1 * losses[0]
    dcp.save({"model": run[0].state_dict(), "optimizer": run[1].state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    saved = {"model": other[0].state_dict(), "optimizer": other[1].state_dict()}
    dcp.load(saved, checkpoint_id=tmp_path, no_dist=True)
    other[0].load_state_dict(saved["model"])
    other[1].load_state_dict(saved["optimizer"])
    other[2].load_state_dict(run[2].state_dict())
    for parts in (run, other):
        torch.manual_seed(1)
        assert len(list(example.train(*parts, 2))) == 2
    for p, q in zip(run[0].parameters(), other[0].parameters(), strict=True):
        assert torch.equal(p, q)
