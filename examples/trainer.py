"""transformers.Trainer with Adan; training resumed from its checkpoint ends on the same numbers.

$ python examples/trainer.py
$ torchrun --nproc-per-node 2 examples/trainer.py --fsdp

--fsdp shards the model with accelerate's FSDP2. This takes GPUs: on the CPU, accelerate replicates the model instead.
"""

import argparse

import torch

from adan import Adan

try:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install '.[examples]'") from None


def train(args: argparse.Namespace, resume: str | None = None) -> Trainer:
    set_seed(0)
    config = GPT2Config(vocab_size=16, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    rows = (torch.randint(16, (64, 1)) + 3 * torch.arange(16)) % 16  # each token is the one before it, plus 3
    arguments = TrainingArguments(
        args.out,
        max_steps=args.steps,
        save_steps=args.steps // 2,
        per_device_train_batch_size=16,
        weight_decay=0.02,  # the Trainer puts it into its groups, which override an argument of Adan
        max_grad_norm=1.0,
        fsdp=args.fsdp,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        # Set the learning rate here: with this argument, the Trainer ignores TrainingArguments.learning_rate.
        optimizer_cls_and_kwargs=(Adan, {"lr": 1e-2, "betas": (0.9, 0.92, 0.99)}),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--out", default="runs/trainer")
    args = parser.parse_args()
    first = train(args)
    resumed = train(args, f"{args.out}/checkpoint-{args.steps // 2}")
    a, b = ([getattr(p, "full_tensor", p.detach)() for p in each.model.parameters()] for each in (first, resumed))
    difference = max((p - q).abs().max().item() for p, q in zip(a, b, strict=True))
    if first.is_world_process_zero():
        name, kind = type(first.optimizer.optimizer).__name__, first.accelerator.distributed_type.value
        loss = first.state.log_history[-1]["train_loss"]
        print(f"{name}, {kind}: mean loss {loss:.3f}, resumed differs by {difference}")
