"""Tables of the paper's form on a regression, for the tests of `adan-bench reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adan_bench.tables import PaperTable, parse

SCRIPT = '''
import torch
from torch import nn
from adan_bench import Scale, Task, shuffled, workload

def regression(context):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 4, generator=g)
    y = x @ torch.randn(4, 1, generator=g)
    model = nn.Linear(4, 1)
    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()
    def evaluate(model):
        return {"share": 1 / (1 + loss(model, (x, y)).item()), "other": 7.0}
    note = "regression" + (" from weights" if context.init else "")
    return Task(model, shuffled([x, y], context.batch_size, context.seed), loss, evaluate, note=note)

kind = dict(metric="share", higher_is_better=True, smoke=Scale(0.5, 60, 16), paper=Scale(0.5, 600, 64))

@workload("plain", **kind)
def plain(context):
    """A regression."""
    return regression(context)

@workload("earlier", **kind)
def earlier(context):
    """What comes first."""
    return regression(context)

@workload("later", after="earlier", **kind)
def later(context):
    """What starts from its weights."""
    return regression(context)

@workload("broken", **kind)
def broken(context):
    """It fails."""
    raise RuntimeError("no luck")

@workload("packageless", **kind)
def packageless(context):
    """It needs what is not there."""
    import no_such_package

@workload("doomed", after="earlier", **kind)
def doomed(context):
    """It needs what is not there, after something that does not."""
    import no_such_package

@workload("orphan", after="packageless", **kind)
def orphan(context):
    """What it starts from needs what is not there."""
    return regression(context)
'''

ADAN, ADAMW = {"head": "Adan", "optimizer": "adan"}, {"head": "AdamW", "optimizer": "adamw"}
EVERYWHERE: dict[str, Any] = {"smoke": {}, "small": {}, "paper": {"seeds": 2}}


#: The summary, the folder and the tables.
Reproduced = tuple[dict[str, Any], Path, list[PaperTable]]


def made_up(
    columns: list[dict[str, Any]], rows: list[dict[str, Any]], name: str = "made-up", **more: Any
) -> PaperTable:
    content = {
        "title": "Made up",
        "place": "Table 99",
        "label": "tab:x",
        "caption": "A caption.",
        "metric": "share, %",
        "higher_is_better": True,
        "percent": True,
        "columns": columns,
        "rows": [{"values": ["79.8*"] * len(columns), **row} for row in rows],
        "settings": [],
        "runs": EVERYWHERE,
        "marks": {"*": "said by others"},
        **more,
    }
    return parse(name, content)


def cell(summary: dict[str, Any], row: str, column: str, table: int = 0) -> dict[str, Any]:
    (found,) = [c for c in summary["tables"][table]["cells"] if (c["row"], c["column"]) == (row, column)]
    return dict(found)


def everything() -> list[PaperTable]:
    """Two tables with everything that a table may hold."""
    columns = [
        {"head": "whole", "workload": "plain"},
        {"head": "half", "workload": "plain", "budget": [1, 2]},
        {"head": "other number", "workload": "plain", "metric": "other"},
        {"head": "no such number", "workload": "plain", "metric": "color"},
        {"head": "loss", "workload": "plain", "metric": "training loss", "higher_is_better": False},
        {"head": "tuned", "workload": "later", "before": [1, 2]},
        {"head": "broken", "workload": "broken"},
        {"head": "packageless", "workload": "packageless"},
        {"head": "orphan", "workload": "orphan"},
        {"head": "published only"},
    ]
    rows = [
        ADAN,
        {**ADAMW, "values": ["70.1", *["figure"] * 4, None, "1.0", "1.0", "1.0", "1.0"]},
        {"head": "wild", "optimizer": "sgd", "fixed": {"lr": 1e30}, "values": ["1.0", *[None] * 9]},
        {"head": "quoted", "optimizer": "adan", "study": False},
    ]
    parts = [
        ADAN,
        {"head": "restart", "optimizer": "adan", "restart": True},
        {"head": "decay of AdamW", "optimizer": "adan", "fixed": {"no_prox": True}},
    ]
    return [made_up(columns, rows), made_up(columns[:1], parts, name="parts")]
