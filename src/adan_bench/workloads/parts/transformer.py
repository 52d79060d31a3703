"""Small models in plain torch: a ViT and its masked autoencoder, a GPT over bytes, a BERT, a ConvNeXt."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.workloads.images import ImageSizes
from adan_bench.workloads.language import TextSizes

PAD = 0  # the token that BERT does not read


class Block(nn.Module):
    """Attention and an MLP, each after its norm. experts: a mixture in place of the MLP."""

    def __init__(self, width: int, heads: int, causal: bool = False, experts: int = 0) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp: nn.Module = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        if experts:
            self.mlp = Experts(width, experts)

    def attended(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: (batch, 1, 1, length), True where a token is attended to; all are unless given."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        result: Tensor = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return result

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.attended(x, mask)
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Experts(nn.Module):
    """MLPs of which the router gives each token two, weighted; computed by all of them, so that shapes are fixed."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(0.02 * torch.randn(count, width, 4 * width))
        self.down = nn.Parameter(0.02 * torch.randn(count, 4 * width, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The result, and the router's loss, 1 where all experts get as many tokens (arXiv:2101.03961)."""
        shares = self.router(x).float().softmax(-1)
        best, chosen = shares.topk(2, -1)
        weights = torch.zeros_like(shares).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        used = (weights > 0).float().flatten(0, -2).mean(0) / 2
        balance = len(used) * (used * shares.flatten(0, -2).mean(0)).sum()
        y = torch.einsum("nc,ech->enh", x.flatten(0, -2), self.up)
        y = torch.einsum("enh,ehc->enc", F.gelu(y), self.down)
        return torch.einsum("enc,ne->nc", y.float(), weights.flatten(0, -2)).view_as(x), balance


def initialize(model: nn.Module, deviation: float = 0.02) -> None:
    """Draw the weights of linear layers, convolutions and embeddings; their biases are 0."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
            nn.init.trunc_normal_(module.weight, std=deviation)
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.bias is not None:
            nn.init.zeros_(module.bias)


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """Sines, then cosines, of the distances times 10000^(−2k/width)."""
    steps = torch.arange(0, width, 2, dtype=distances.dtype, device=distances.device)
    frequencies = 10_000 ** -(steps / width)
    angles = distances[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def taken(x: Tensor, places: Tensor) -> Tensor:
    """x[b, places[b, i]] of (batch, length, width)."""
    return x.gather(1, places.unsqueeze(2).expand(-1, -1, x.shape[2]))


class ViT(nn.Module):
    """Square patches, an embedding of position, blocks, mean pooling. classes: 0 leaves out the last layer."""

    def __init__(self, sizes: ImageSizes, size: int, channels: int, classes: int) -> None:
        super().__init__()
        width, self.patch = sizes.width, sizes.patch
        self.embed = nn.Linear(channels * self.patch**2, width)
        self.pos_embed = nn.Parameter(0.02 * torch.randn((size // self.patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, width // sizes.head) for _ in range(*sizes.depths)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes) if classes else nn.Identity()
        initialize(self, sizes.deviation)

    def patches(self, images: Tensor) -> Tensor:
        b, c, side, n = len(images), images.shape[1], self.patch, images.shape[2] // self.patch
        return images.reshape(b, c, n, side, n, side).permute(0, 2, 4, 1, 3, 5).reshape(b, n * n, c * side * side)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.embed(self.patches(images)) + self.pos_embed)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class MaskedAutoencoder(nn.Module):
    """A ViT sees a quarter of the patches, a decoder draws the others (arXiv:2111.06377)."""

    def __init__(self, encoder: ViT, width: int, layers: int, heads: int = 4, share: float = 0.75) -> None:
        super().__init__()
        self.encoder = encoder
        count, inner = encoder.pos_embed.shape
        self.shown = count - round(share * count)
        self.between = nn.Linear(inner, width)
        self.mask_token = nn.Parameter(0.02 * torch.randn(width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(count, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, encoder.embed.in_features)
        for part in (self.between, self.blocks, self.head):
            initialize(part)

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        """The mean squared error of the hidden patches, each normalized. noise: (batch, patches), its order decides."""
        patches = self.encoder.patches(images)
        order = noise.argsort(1)
        shown, hidden = order[:, : self.shown], order[:, self.shown :]
        x = taken(self.encoder.embed(patches) + self.encoder.pos_embed, shown)
        x = self.between(self.encoder.norm(self.encoder.blocks(x)))
        blank = self.mask_token.to(x.dtype).expand(len(x), hidden.shape[1], -1)
        x = taken(torch.cat([x, blank], 1), order.argsort(1)) + self.pos_embed
        drawn = self.head(self.norm(self.blocks(x))).float()
        target = taken(patches.float(), hidden)
        mean, variance = target.mean(2, keepdim=True), target.var(2, keepdim=True)
        return F.mse_loss(taken(drawn, hidden), (target - mean) / (variance + 1e-6).sqrt())


class GPT(nn.Module):
    """A decoder over bytes, with a mixture of experts in every block where the sizes have some."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        width, heads, count = sizes.width, sizes.heads, sizes.layers
        self.embed, self.pos_embed = nn.Embedding(256, width), nn.Parameter(0.02 * torch.randn(sizes.length, width))
        self.blocks = nn.ModuleList(Block(width, heads, causal=True, experts=sizes.experts) for _ in range(count))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        initialize(self)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor | float]:
        """Logits, and the sum of the routers' losses, 0 without experts."""
        x, balance = self.embed(tokens) + self.pos_embed, 0.0
        block: Block
        for block in self.blocks:  # type: ignore[assignment]
            x = block.attended(x)
            y = block.mlp(block.norm2(x))
            if isinstance(block.mlp, Experts):
                y, more = y
                balance = balance + more
            x = x + y
        return self.head(self.norm(x)), balance


class BERT(nn.Module):
    """An encoder over word pieces."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(sizes.length, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        initialize(self)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: True at tokens that are no padding."""
        x = F.dropout(self.embed(tokens) + self.pos_embed[: tokens.shape[1]], 0.1, self.training)
        for block in self.blocks:
            x = block(x, mask if mask is None else mask[:, None, None, :])
        normed: Tensor = self.norm(x)
        return normed


class MaskedLanguage(nn.Module):
    """BERT with a head that names the pieces at some places; its last matrix is that of the embedding."""

    def __init__(self, encoder: BERT) -> None:
        super().__init__()
        vocabulary, width = encoder.embed.weight.shape
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        initialize(self.head)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        return F.linear(self.head(taken(self.encoder(tokens), places)), self.encoder.embed.weight, self.bias)


class SentenceClassifier(nn.Module):
    """BERT with a head on the mean of a sentence's tokens."""

    def __init__(self, encoder: BERT, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.embed.embedding_dim, classes)
        initialize(self.head)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = tokens != PAD
        x = self.encoder(tokens, mask).float() * mask.unsqueeze(2)
        logits: Tensor = self.head(F.dropout(x.sum(1) / mask.sum(1, keepdim=True), 0.1, self.training))
        return logits


class SmallConvNeXt(nn.Module):
    """ConvNeXt (arXiv:2201.03545) for small images: stages of doubling width, mean pooling, a norm, a linear layer.

    A convolution of stride 2 stands before each stage, with no norm around it.
    """

    def __init__(self, sizes: ImageSizes, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage, depth in enumerate(sizes.depths):
            width = sizes.width << stage
            layers += [nn.Conv2d(channels, width, 2, 2), *(ConvNeXtBlock(width) for _ in range(depth))]
            channels = width
        self.body = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(channels, eps=1e-6), nn.Linear(channels, classes)
        initialize(self, sizes.deviation)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.body(images).mean((2, 3))))
        return logits


class ConvNeXtBlock(nn.Module):
    """A convolution of each channel, then an MLP over the channels of a pixel, scaled by 1e-6 at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scale * self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2)
