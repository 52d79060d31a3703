"""A small GPT on text, complete: settings from AdamW's, warm-up and schedule, checkpoints, resume.
Stop it at any time: the next run continues from minimal_gpt-300.pt as if it had never stopped. Delete it to start over.

$ python examples/minimal_gpt.py 300
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics  # Python's own help texts: half a megabyte of English

import torch
from torch import nn, optim

import adan

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
CHECKPOINT = Path(f"minimal_gpt-{STEPS}.pt")
CONTEXT, BATCH, WIDTH = 64, 16, 64
train, held_out = torch.tensor(list("\n".join(topics.values()).encode())).tensor_split([400_000])


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.blocks(self.token_embedding(x) + self.position_embedding.weight, mask, is_causal=True))


def loss_on(data, seed):  # a batch depends on its seed alone, so a resumed run sees the same batches
    starts = torch.randint(len(data) - CONTEXT, (BATCH, 1), generator=torch.Generator().manual_seed(seed))
    windows = data[starts + torch.arange(CONTEXT + 1)]
    return nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


torch.manual_seed(0)
model = GPT()
s = adan.suggest_from_adamw(1e-3, weight_decay=0.1, total_steps=STEPS)
optimizer = adan.Adan(adan.parameter_groups(model, s.weight_decay), **s.options(), max_grad_norm=1.0)
schedule = optim.lr_scheduler.OneCycleLR(optimizer, s.lr, STEPS, pct_start=s.warmup_steps / STEPS, cycle_momentum=False)
parts, done = {"model": model, "optimizer": optimizer, "schedule": schedule}, 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    done = saved.pop("done")
    for name, state in saved.items():
        parts[name].load_state_dict(state)
for step in range(done, STEPS):
    loss_on(train, seed=step).backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if (step + 1) % 20 == 0:
        torch.save({"done": step + 1} | {name: part.state_dict() for name, part in parts.items()}, "minimal_gpt.new")
        Path("minimal_gpt.new").replace(CHECKPOINT)  # atomic: a crash while writing loses nothing
        print(f"step {step + 1}: held-out loss {loss_on(held_out, seed=0).item():.9f}", flush=True)
