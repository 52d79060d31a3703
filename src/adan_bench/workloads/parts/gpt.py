"""Tasks of models that write text from left to right: GPT-2 and Mixtral by transformers, GPTs over bytes."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from adan_bench.data.batching import Windows, fingerprint, library_sources
from adan_bench.data.installed import as_bytes, debian
from adan_bench.data.tokens import language, language_task, next_token_loss
from adan_bench.task import Context, Task
from adan_bench.workloads.language import REDPAJAMA, TextSizes
from adan_bench.workloads.parts.classification import without_decay
from adan_bench.workloads.parts.networks import without_mask
from adan_bench.workloads.parts.transformer import GPT

BALANCE = 0.02  # the weight of the routers' loss, as the released Mixtral's
SIZE = 2_000_000  # bytes
HELD_OUT = 1_024  # windows
EVAL_BATCH = 128


def gpt2_config(sizes: TextSizes, vocabulary: int, end: int = 0) -> Any:
    """Transformers' configuration; the tokenizer may have found fewer tokens than it was asked for."""
    return transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=sizes.length,
        n_embd=sizes.width,
        n_layer=sizes.layers,
        n_head=sizes.heads,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one kernel instead of eight
        resid_pdrop=sizes.dropout,
        embd_pdrop=sizes.dropout,
        attn_pdrop=sizes.dropout,
        bos_token_id=end,
        eos_token_id=end,
        use_cache=False,
        attn_implementation=without_mask(),
    )


def gpt2_code(context: Context) -> Task:
    data = language(context, "code", "source", context.sizes.length + 1)
    model = transformers.GPT2LMHeadModel(gpt2_config(context.sizes, data.vocabulary, data.end))
    return language_task(model, data, partial(next_token_loss, pad=data.pad), context)


def mixtral_config(sizes: TextSizes, vocabulary: int) -> Any:
    return transformers.MixtralConfig(
        vocab_size=vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.expert,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_heads,
        head_dim=sizes.width // sizes.heads,
        max_position_embeddings=sizes.length,
        num_local_experts=sizes.experts,
        num_experts_per_tok=2,
        output_router_logits=True,
        router_aux_loss_coef=BALANCE,
        sliding_window=None,
        use_cache=False,
    )


def moe(context: Context) -> Task:
    data = language(context, REDPAJAMA, "source", context.sizes.length + 1, once=True)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch[:, :-1])
        logits = out.logits.float().flatten(0, 1)
        balance: Tensor = BALANCE * out.aux_loss
        return F.cross_entropy(logits, batch[:, 1:].flatten(), ignore_index=data.pad) + balance

    model = transformers.MixtralForCausalLM(mixtral_config(context.sizes, data.vocabulary))
    return language_task(model, data, loss, context)


def pycode_gpt2(context: Context) -> Task:
    sizes: TextSizes = context.sizes
    text = "".join(library_sources()).encode()[:SIZE]
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().to(context.device)
    split = len(tokens) * 9 // 10
    tests = Windows(tokens[split:], sizes.length + 1, sizes.held_out, seed=0)
    held_out = tests.gather(tests(0).to(context.device))  # the same for every run
    loss = partial(next_token_loss, pad=-1)  # there is none

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"loss": loss(model, held_out).item()}

    note = f"standard library of Python {platform.python_version()}, {len(text):,} bytes, sha256 {fingerprint(text)}"
    model = transformers.GPT2LMHeadModel(gpt2_config(sizes, sizes.vocabulary))
    windows = Windows(tokens[:split], sizes.length + 1, context.batch_size, context.seed, context.own())
    return Task(model, windows, loss, evaluate, note, prepare=windows.gather)


def pycode_gpt(context: Context) -> Task:
    sizes: TextSizes = context.sizes
    path = debian(context, "python", "both")
    paths = [None, path] if path and context.training["text"] == "both" else [path]
    found = [as_bytes(path, whole=context.scale != "smoke") for path in paths]
    parts = ("train", "valid" if context.tuning else "test")
    train, held_out = (torch.cat([splits[part] for splits, _ in found]).to(context.device) for part in parts)
    source = " and ".join(said for _, said in found)
    length = sizes.length + 1
    windows = Windows(train, length, context.batch_size, context.seed, context.own())
    count = min(HELD_OUT if context.scale != "smoke" else EVAL_BATCH, len(held_out) // length)
    starts = torch.arange(count, device=context.device).unsqueeze(1) * ((len(held_out) - length) // count)
    tests = held_out[starts + windows.offsets].long()

    def judged(model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor | float]:
        logits, balance = model(rows[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten()), balance

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        value, balance = judged(model, rows)
        return value + BALANCE * balance

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        total = torch.stack([judged(model, part)[0] * len(part) for part in tests.split(EVAL_BATCH)]).sum()
        return {"loss": total.item() / len(tests)}

    def prepare(starts: Tensor) -> Tensor:
        return windows.gather(starts).long()

    model = GPT(sizes)
    note = f"{source}: {len(train):,} to train, {count:,} windows of {sizes.length} held out"
    return Task(model, windows, loss, evaluate, note, max_grad_norm=1.0, groups=without_decay, prepare=prepare)
