"""The README and the docs: every code block runs, or is in the list of those that do not; the site in a browser."""

import functools
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from markdown_it import MarkdownIt
from support.pages import ROOT, blocks
from torch import nn

import adan

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Python blocks that are not run here, by page and the name that only they have.
ELSEWHERE = {
    ("algorithm.md", "AveragedModel"): "run by tests/adan/test_algorithm_page.py, against an oracle",
    ("README.md", "suggest_from_adamw"): "run below",
    ("optimizers.md", "Task("): "one argument of a workload's; tests/adan_bench/test_roles.py",
    ("own-workload.md", "load_wine"): "run by tests/adan_bench/test_docs.py, with the page's command",
    ("own-workload.md", "SignSGD"): "run by tests/adan_bench/test_docs.py, with the page's command",
    ("frameworks.md", "create_optimizer_v2"): "timm is not installed here; examples/timm_layer_decay.py",
    ("frameworks.md", "deepspeed"): "make test-hosts runs examples/deepspeed_zero.py",
    ("frameworks.md", "convert_to_float8_training"): "make test-hosts runs examples/torchao_*.py",
    ("frameworks.md", "@torch.compile"): "compiling takes 20 s; examples/compiled_step.py does it once",
    ("memory.md", "CPUOffloadOptimizer"): "torchao's offload needs a GPU; examples/torchao_offload.py",
}
#: Pages whose blocks are one program.
ONE_PROGRAM = {"quick-start.md"}


def programs():
    """Each page's programs, with an identifier for each."""
    for page in PAGES:
        found = blocks(page, "python")
        for i, text in enumerate(["\n".join(found)] if page.name in ONE_PROGRAM else found):
            elsewhere = [reason for (name, word), reason in ELSEWHERE.items() if name == page.name and word in text]
            marks = [pytest.mark.skip(reason=reason) for reason in elsewhere]
            if text.strip():
                yield pytest.param(page.name, text, id=f"{page.stem}-{i}", marks=marks)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return 2 * self.down(self.up(x))


def loss(model, batch):
    return model(batch).square().mean()


def common():
    torch.manual_seed(0)
    model = Model()
    batches = list(torch.randn(3, 4, 8))
    return {"torch": torch, "adan": adan, "model": model, "batches": batches, "data": batches, "loss": loss, "mu": 0.1}


def for_distributed(names):
    """One process on the CPU stands for all: meshes of other devices and sizes shrink to it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed import fsdp
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import parallel

    def mesh(device, shape, **options):
        return init_device_mesh("cpu", (1,) * len(shape), **options)

    names |= vars(parallel) | vars(state_dict) | {"dcp": dcp, "path": "checkpoint", "mesh": mesh("cuda", (8,))}
    names |= {"init_device_mesh": mesh, "fully_shard": fsdp.fully_shard}
    names["FullyShardedDataParallel"] = functools.partial(
        fsdp.FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=True
    )
    names["DistributedDataParallel"] = nn.parallel.DistributedDataParallel
    names["ZeroRedundancyOptimizer"] = ZeroRedundancyOptimizer
    names["optimizer"] = adan.Adan(names["model"].parameters())


def for_frameworks(names):
    from accelerate import Accelerator
    from transformers import Trainer, TrainingArguments

    inputs = torch.randn(16, 8)
    loader = torch.utils.data.DataLoader(list(zip(inputs, inputs, strict=True)), batch_size=4)
    names |= {"Accelerator": Accelerator, "Trainer": Trainer, "TrainingArguments": TrainingArguments}
    names |= {"batches": loader, "loss_of": nn.functional.mse_loss, "optimizer": adan.Adan(names["model"].parameters())}


def for_memory(names):
    names["opt"] = adan.Adan(names["model"].parameters())


def for_migration(names):
    """A checkpoint as the authors' release writes it."""
    from support.authors_release import AuthorsAdan

    model = names["model"]
    optimizer = AuthorsAdan(model.parameters(), 1e-3, (0.98, 0.92, 0.99), max_grad_norm=5.0)
    loss(model, names["batches"][0]).backward()
    optimizer.step()
    torch.save({"optimizer": optimizer.state_dict()}, "checkpoint.pt")


SET_UP = {
    "distributed.md": for_distributed,
    "frameworks.md": for_frameworks,
    "memory.md": for_memory,
    "migration.md": for_migration,
}


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore:FSDP is switching", "ignore:.*FullyShardedDataParallel", "ignore:.*single rank")
@pytest.mark.filterwarnings("ignore:.*pin_memory", "ignore:`torch.jit")
@pytest.mark.parametrize(("page", "text"), list(programs()))
def test_program(page, text, tmp_path, monkeypatch):
    """Runs as printed; an optimizer that it makes also takes a step."""
    monkeypatch.chdir(tmp_path)
    names = common()
    SET_UP.get(page, lambda names: None)(names)
    exec(compile(text, page, "exec"), names)
    if "def configure_optimizers" in text:
        names["optimizer"] = names["configure_optimizers"](names["model"])
    if "Trainer(" in text:
        assert isinstance(names["trainer"].create_optimizer(), adan.Adan)
    elif re.search(r"\b(opt|optimizer) = ", text) and ".step()" not in text:
        optimizer = names.get("optimizer", names.get("opt"))
        dtype = next(names["model"].parameters()).dtype
        names["model"](torch.randn(4, 8, dtype=dtype)).float().sum().backward()
        optimizer.step()


def test_the_quick_start_is_short_and_learns(capsys):
    (text,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in text.splitlines() if line.strip()]) <= 15
    torch.manual_seed(0)
    exec(text, {})
    out = capsys.readouterr().out
    assert "Adan(lr=0.002" in out
    assert float(re.search(r"loss (\S+)$", out.strip())[1]) < 0.6  # the variance of the data is 3.5


# ---- commands -------------------------------------------------------------------------------------------------------


def commands():
    for page in PAGES:
        for line in "".join(blocks(page, "sh")).splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield pytest.param(words, id=f"{page.stem}: {' '.join(words)[:60]}")


@functools.cache
def command_line():
    import typer

    from adan_bench.cli.app import app

    return typer.main.get_command(app)


@pytest.mark.parametrize("words", list(commands()))
def test_command(words):
    """Names what exists: a target, an extra, a command with these options.

    Those of bench.md and own-workload.md are run by tests/adan_bench/test_docs.py; the others take minutes, data or
    several GPUs.
    """
    program, *rest = words
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), (
            "no such target"
        )
    elif program == "pip":
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert rest[0] == "install"
        for extra in re.findall(r"\w+", rest[-1].partition("[")[2]):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), "no such extra"
    elif program == "torchrun":
        check_options(rest[rest.index("adan_bench.cli") + 1 :])
    else:
        assert program == "adan-bench", "say in this test how such a command is checked"
        check_options(rest)


def check_options(words):
    command = command_line()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        words = words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known | {"--help"}


def test_every_page_compares_a_script_by_the_command_that_is_run():
    found = {line for page in PAGES for line in "".join(blocks(page, "sh")).splitlines() if "compare --script" in line}
    assert found <= set("".join(blocks(ROOT / "docs" / "own-workload.md", "sh")).splitlines())


def test_the_results_take_ten_minutes_to_read():
    """At most 3,000 words, tables included."""
    assert len((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split()) <= 3_000


# ---- the site -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_formula_turns_into_italics(page):
    """Emphasis is written with asterisks: a pair of underscores is two indices, of which one needs a backslash."""
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    found = [token for block in tokens for token in block.children or () if token.markup == "_"]
    assert not found, [block.content for block in tokens if any(token in found for token in block.children or ())]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A page with what is wider than a phone, built as the documentation is."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "figures").mkdir()
    for name in ("memory.png", "results-vit.svg"):
        shutil.copy(ROOT / "docs" / "figures" / name, folder / "figures")
    row = "| " + " | ".join(["1.2345 ± 0.6789"] * 9) + " |\n"
    rest = f"![a](figures/memory.png)\n\n![b](figures/results-vit.svg)\n\n```python\n{'x = ' * 60}1\n```\n"
    text = "# A page with a heading of many words\n\n" + row + "|---" * 9 + "|\n" + row + "\n" + rest
    (folder / "page.md").write_text(text, encoding="utf-8")
    options = ["-qW", "-D", "root_doc=page", "-c", ROOT / "docs"]
    subprocess.run([sys.executable, "-m", "sphinx", *options, folder, folder / "out"], check=True)
    return (folder / "out" / "page.html").as_uri()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1350, 800, 400])
def test_site_in_chromium(browser, site, width, dark):
    """Nothing is wider than the screen, what is cut off has a shadow and figures are as dark as the page."""
    browser.open(site, width, 900, dark)
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.table-wrapper, pre')].filter(e => e.scrollWidth > e.clientWidth)"
    assert browser.evaluate(f"{cut}.map(e => getComputedStyle(e).backgroundAttachment)") == ["local, scroll"] * 2
    images = "[...document.querySelectorAll('article img')]"
    png, svg = browser.evaluate(f"{images}.map(e => getComputedStyle(e).filter)")
    assert png.startswith("invert") == dark
    assert svg == "none"  # it has a rule of its own
    assert min(browser.evaluate(f"{images}.map(e => e.width)")) >= 500
    browser.evaluate(f"document.body.dataset.theme = '{'light' if dark else 'dark'}'")
    assert {text[:6] for text in browser.evaluate(f"{images}.map(e => getComputedStyle(e).filter)")} == (
        {"none", "invert"} if dark else {"invert"}
    )
    assert browser.of("Runtime.exceptionThrown") == []
    requested = {event["request"]["url"] for event in browser.of("Network.requestWillBeSent")}
    assert {url for url in requested if not url.startswith(("file:", "data:"))} == set()
