"""The models that are trained: a small ViT, a byte-level GPT, a small BERT, CNNs, a graph network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int, causal: bool, experts: int = 0) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp: nn.Module = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        if experts:
            self.mlp = Experts(width, experts)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: (batch, 1, 1, length), True where a token is attended to; all are unless given."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Experts(nn.Module):
    """MLPs of which the router gives each token two, weighted; computed by all of them, so that shapes are fixed.

    balance: the router's loss of the last call, which is 1 where all experts get as many tokens (arXiv:2101.03961).
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(0.02 * torch.randn(count, width, 4 * width))
        self.down = nn.Parameter(0.02 * torch.randn(count, 4 * width, width))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).float().softmax(-1)
        best, chosen = shares.topk(2, -1)
        weights = torch.zeros_like(shares).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        used = (weights > 0).float().flatten(0, -2).mean(0) / 2
        self.balance = len(used) * (used * shares.flatten(0, -2).mean(0)).sum()
        y = torch.einsum("nc,ech->enh", x.flatten(0, -2), self.up)
        y = torch.einsum("enh,ehc->enc", F.gelu(y), self.down)
        return torch.einsum("enc,ne->nc", y.float(), weights.flatten(0, -2)).view_as(x)


def _init(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
            nn.init.trunc_normal_(module.weight, std=0.02)
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.bias is not None:
            nn.init.zeros_(module.bias)


class ViT(nn.Module):
    """Patches of 4×4 pixels, mean pooling. Six layers of width 256: 4.8 M parameters."""

    def __init__(self, width: int = 256, layers: int = 6, heads: int = 4, patch: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, width)
        self.pos_embed = nn.Parameter(0.02 * torch.randn((32 // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        _init(self)

    def patches(self, images: Tensor) -> Tensor:
        b, c, side, n = len(images), images.shape[1], self.patch, images.shape[2] // self.patch
        return images.reshape(b, c, n, side, n, side).permute(0, 2, 4, 1, 3, 5).reshape(b, n * n, c * side * side)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.embed(self.patches(images)) + self.pos_embed)
        return self.head(self.norm(x).mean(1))


class MAE(nn.Module):
    """A masked autoencoder (arXiv:2111.06377): a ViT sees a quarter of the patches, a decoder draws the others."""

    def __init__(self, encoder: ViT, width: int = 128, layers: int = 2, heads: int = 4, share: float = 0.75) -> None:
        super().__init__()
        self.encoder = encoder
        self.encoder.head.requires_grad_(False)  # what is fine-tuned has its own
        count, inner = encoder.pos_embed.shape
        self.shown = count - round(share * count)
        self.between = nn.Linear(inner, width)
        self.mask_token = nn.Parameter(0.02 * torch.randn(width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(count, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, encoder.embed.in_features)
        for part in (self.between, self.blocks, self.head):
            _init(part)

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        """The mean squared error of the hidden patches, each normalized. noise: (batch, patches), its order decides."""
        patches = self.encoder.patches(images)
        order = noise.argsort(1)
        shown, hidden = order[:, : self.shown], order[:, self.shown :]
        x = _chosen(self.encoder.embed(patches) + self.encoder.pos_embed, shown)
        x = self.between(self.encoder.norm(self.encoder.blocks(x)))
        blank = self.mask_token.to(x.dtype).expand(len(x), hidden.shape[1], -1)
        x = _chosen(torch.cat([x, blank], 1), order.argsort(1)) + self.pos_embed
        drawn = self.head(self.norm(self.blocks(x))).float()
        target = _chosen(patches.float(), hidden)
        mean, variance = target.mean(2, keepdim=True), target.var(2, keepdim=True)
        return F.mse_loss(_chosen(drawn, hidden), (target - mean) / (variance + 1e-6).sqrt())


def _chosen(x: Tensor, places: Tensor) -> Tensor:
    """x[b, places[b, i]] of (batch, length, width)."""
    return x.gather(1, places.unsqueeze(2).expand(-1, -1, x.shape[2]))


class GPT(nn.Module):
    """A decoder over bytes. Six layers of width 384: 10.9 M parameters."""

    def __init__(self, width: int = 384, layers: int = 6, heads: int = 6, context: int = 256, experts: int = 0) -> None:
        super().__init__()
        self.embed, self.pos_embed = nn.Embedding(256, width), nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True, experts=experts) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        _init(self)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens) + self.pos_embed)))


class BERT(nn.Module):
    """An encoder over word pieces; 0 is padding. Four layers of width 256 and 8,000 pieces: 5.2 M parameters."""

    def __init__(self, width: int, layers: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.pos_embed = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads, causal=False) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        _init(self)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: True at tokens that are no padding."""
        x = F.dropout(self.embed(tokens) + self.pos_embed[: tokens.shape[1]], 0.1, self.training)
        for block in self.blocks:
            x = block(x, mask if mask is None else mask[:, None, None, :])
        return self.norm(x)


class MaskedLanguage(nn.Module):
    """BERT with a head that names the pieces at some places; its last matrix is that of the embedding."""

    def __init__(self, encoder: BERT) -> None:
        super().__init__()
        vocabulary, width = encoder.embed.weight.shape
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        _init(self.head)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        return F.linear(self.head(_chosen(self.encoder(tokens), places)), self.encoder.embed.weight, self.bias)


class Classifier(nn.Module):
    """BERT with a head on the mean of a sentence's tokens."""

    def __init__(self, encoder: BERT, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.norm.normalized_shape[0], classes)
        _init(self.head)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = tokens != 0
        x = self.encoder(tokens, mask).float() * mask.unsqueeze(2)
        return self.head(F.dropout(x.sum(1) / mask.sum(1, keepdim=True), 0.1, self.training))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """ResNet of basic blocks with a 3×3 stem, as is usual for CIFAR. Depths (3, 4, 6, 3): ResNet-34, 21.3 M."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        inputs = width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                layers.append(BasicBlock(inputs, width << stage, stride=2 if stage and i == 0 else 1))
                inputs = width << stage
        self.body, self.head = nn.Sequential(*layers), nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.scale * self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """ConvNeXt (arXiv:2201.03545) with a stem of 2×2 for images of 32×32. Depths (2, 2, 6, 2), width 64: 8.5 M."""

    def __init__(self, depths: tuple[int, ...] = (2, 2, 6, 2), width: int = 64, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for stage, depth in enumerate(depths):
            outputs = width << stage
            layers.append(nn.Conv2d(inputs, outputs, 2, 2))
            layers += [ConvNeXtBlock(outputs) for _ in range(depth)]
            inputs = outputs
        self.body = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(inputs, eps=1e-6), nn.Linear(inputs, classes)
        _init(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.body(images).mean((2, 3))))


class GraphBlock(nn.Module):
    """DeeperGCN's layer (arXiv:2006.07739): a node's neighbors weighted by a softmax in each channel, then an MLP."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.temperature = nn.LayerNorm(channels), nn.Parameter(torch.ones(()))
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.LayerNorm(2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels)
        )

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        y = F.dropout(F.relu(self.norm(x)), 0.5, self.training)
        messages = y.index_select(0, source) + 1e-7
        weights = (self.temperature * messages).exp()
        total, mass = (torch.zeros_like(y).index_add(0, target, part) for part in (weights * messages, weights))
        return x + self.mlp(y + total / (mass + 1e-16))


class DeepGCN(nn.Module):
    """Residual graph convolutions between two linear layers. edges: sources and targets, each edge both ways."""

    def __init__(self, edges: Tensor, features: int, channels: int, layers: int, classes: int) -> None:
        super().__init__()
        self.edges: Tensor
        self.register_buffer("edges", edges)
        self.first = nn.Linear(features, channels)
        self.blocks = nn.ModuleList(GraphBlock(channels) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(F.dropout(x, 0.5, self.training))
        for block in self.blocks:
            x = block(x, *self.edges)
        return self.head(F.dropout(F.relu(self.norm(x)), 0.5, self.training))
