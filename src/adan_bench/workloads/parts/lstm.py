"""AWD-LSTM (arXiv:1708.02182); without its dropout, a plain LSTM with a tied embedding."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.workloads.parts.sizes import LstmSizes


class LSTM(nn.Module):
    """Dropout with one mask for all times, dropped recurrent weights, the embedding as output layer."""

    def __init__(self, words: int, layers: int, sizes: LstmSizes) -> None:
        super().__init__()
        self.sizes = sizes
        widths = [sizes.embedding, *[sizes.hidden] * (layers - 1), sizes.embedding]
        self.embedding = nn.Embedding(words, sizes.embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.layers = nn.ModuleList(nn.LSTM(*pair) for pair in pairwise(widths))
        self.bias = nn.Parameter(torch.zeros(words))

    def initial(self, columns: int, device: torch.device | str | None = None) -> list[Tensor]:
        """The state before the first word: hidden layers and cells of zeros."""
        widths: Any = [layer.hidden_size for layer in self.layers]
        return [torch.zeros(2, columns, width, device=device) for width in widths]

    def fix_recurrent(self) -> None:
        """Leave the recurrent weights as they are."""
        for layer in self.layers:
            layer.weight_hh_l0.requires_grad_(False)

    def forward(self, words: Tensor, carry: list[Tensor] | None) -> tuple[Tensor, list[Tensor], Tensor]:
        """Logits, the state to carry on, and the penalties of the last layer's activations."""
        sizes, following = self.sizes, []
        mask = F.dropout(torch.ones_like(self.embedding.weight[:, :1]), sizes.words, self.training)
        hidden = self._locked(F.embedding(words, self.embedding.weight * mask), sizes.input)
        carry = self.initial(words.shape[1], words.device) if carry is None else carry
        for i, layer in enumerate(self.layers):
            hidden, last, cell = self._run(layer, hidden, carry[i].to(hidden.dtype))
            following.append(torch.cat([last, cell]).detach().float())
            if i < len(self.layers) - 1:
                hidden = self._locked(hidden, sizes.between)
        output = self._locked(hidden, sizes.output)
        penalty = 2 * output.float().square().mean() + (hidden[1:] - hidden[:-1]).float().square().mean()
        return F.linear(output, self.embedding.weight, self.bias), following, penalty

    def _run(self, layer: Any, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """nn.LSTM with dropped recurrent weights. Its own forward() keeps a list of weights that cannot be swapped."""
        dropped = F.dropout(layer.weight_hh_l0, self.sizes.recurrent, self.training)
        weights = [layer.weight_ih_l0, dropped, layer.bias_ih_l0, layer.bias_hh_l0]
        out: tuple[Tensor, Tensor, Tensor] = torch.lstm(
            hidden,
            (state[0:1].contiguous(), state[1:2].contiguous()),
            weights,
            True,
            1,
            0.0,
            self.training,
            False,
            False,
        )
        return out

    def _locked(self, hidden: Tensor, share: float) -> Tensor:
        return hidden * F.dropout(torch.ones_like(hidden[:1]), share, self.training)
