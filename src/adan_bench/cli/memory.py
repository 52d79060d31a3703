"""The command that plans memory."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

from adan_bench.cli.common import Json, run_flags
from adan_bench.config import RunConfig
from adan_bench.errors import UsageError


class Weights(str, Enum):
    fp32 = "fp32"
    bf16 = "bf16"


@run_flags("scale", "data", "script")
def memory(
    model: Annotated[
        str,
        typer.Argument(
            help="A number of parameters (7B, 345M), a model (GPT-2-1B, …) or a workload. Default: that of --script.",
            show_default=False,
        ),
    ] = "",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that FSDP2 shards over; 1 for a single GPU or DDP.")] = 1,
    weights: Annotated[Weights, typer.Option(help="Type of the weights and gradients.")] = Weights.fp32,
    kahan_sum: Annotated[
        bool, typer.Option("--kahan-sum", help="Plan for Adan(kahan_sum=True), which is for bf16 weights.")
    ] = False,
    release_gradients: Annotated[
        bool,
        typer.Option(
            "--release-gradients", help="Plan for adan.release_gradients: each gradient is freed during backward."
        ),
    ] = False,
    as_json: Json = False,
    *,
    chosen: RunConfig,
) -> None:
    """Predict the bytes of weights, gradients and states per GPU, with AdamW and every form of Adan's states."""
    import torch

    from adan import plan_memory
    from adan_bench.studies.memory import find_model

    try:
        plan = plan_memory(
            find_model(model, chosen.scale, chosen.data),
            shards=gpus,
            dtype={Weights.fp32: torch.float32, Weights.bf16: torch.bfloat16}[weights],
            kahan_sum=kahan_sum,
            release_gradients=release_gradients,
        )
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{model}: {error}") from error
    if not as_json:
        print(plan)
        return
    for name, row in plan.rows.items():
        sizes = {**row._asdict(), "total": row.total}
        print(json.dumps({"event": "memory", "parameters": plan.parameters, "optimizer": name, **sizes}))
