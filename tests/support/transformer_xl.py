"""Transformer-XL by the formulas of arXiv:1901.02860, section 3.3, one query and one key at a time: a slow oracle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

EDGES = [7, 10, 15]  # where the clusters of the adaptive softmax end


def loss(
    weights: dict[str, Tensor], words: Tensor, following: Tensor, past: list[Tensor], heads: int, memory: int
) -> tuple[Tensor, list[Tensor]]:
    """The mean of −log p(next word), and what each layer remembers: its last `memory` inputs."""
    width = weights["embedding.weight"].shape[1]
    hidden, kept = weights["embedding.weight"][words] * width**0.5, []
    for number, before in enumerate(past):
        own = {key.split(".", 2)[2]: value for key, value in weights.items() if key.startswith(f"layers.{number}.")}
        context = torch.cat([before, hidden])
        kept.append(context[-memory:].detach())
        hidden = norm(hidden + attention(own, hidden, context, weights["u"], weights["v"], heads), own, "norm")
        inner = (hidden @ own["feed.0.weight"].T + own["feed.0.bias"]).clamp(min=0)
        hidden = norm(hidden + inner @ own["feed.3.weight"].T + own["feed.3.bias"], own, "last_norm")
    pairs = zip(hidden.flatten(0, 1), following.flatten().tolist(), strict=True)
    return -torch.stack([log_probability(weights, state, word) for state, word in pairs]).mean(), kept


def attention(own: dict[str, Tensor], hidden: Tensor, context: Tensor, u: Tensor, v: Tensor, heads: int) -> Tensor:
    length, columns, width = hidden.shape
    size, out = width // heads, torch.zeros_like(hidden)
    w_key, w_value = own["key_value.weight"].split(width)
    for column in range(columns):
        for i in range(length):
            now = len(context) - length + i
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                query = own["query.weight"][part] @ hidden[i, column]
                scores, values = [], []
                for j in range(now + 1):
                    key = w_key[part] @ context[j, column]
                    distance = own["position.weight"][part] @ sinusoid(now - j, width)
                    content = query @ key + u[head] @ key
                    scores.append((content + query @ distance + v[head] @ distance) / size**0.5)
                    values.append(w_value[part] @ context[j, column])
                share = torch.stack(scores).softmax(0)
                out[i, column, part] = (share[:, None] * torch.stack(values)).sum(0)
    return out @ own["out.weight"].T


def sinusoid(distance: int, width: int) -> Tensor:
    angles = [distance / 10_000 ** (2 * k / width) for k in range(width // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def norm(x: Tensor, own: dict[str, Tensor], name: str) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    scaled = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * own[f"{name}.weight"] + own[f"{name}.bias"]


def log_probability(weights: dict[str, Tensor], state: Tensor, word: int) -> Tensor:
    """p(word) where it is frequent; p(its cluster) p(word | cluster) else (arXiv:1609.04309)."""
    logits = weights["embedding.weight"] @ state + weights["bias"]
    clusters = weights["clusters"] @ state + weights["clusters_bias"]
    head = torch.cat([logits[: EDGES[0]], clusters]).log_softmax(0)
    if word < EDGES[0]:
        return head[word]
    number = next(i for i, edge in enumerate(EDGES) if word < edge)
    first = EDGES[number - 1]
    return head[EDGES[0] + number - 1] + logits[first : EDGES[number]].log_softmax(0)[word - first]
