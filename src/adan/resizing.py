"""`resize_state`: parameters that gain or lose rows during training, as in Gaussian splatting."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adan import checkpoints, sharding


@torch.no_grad()
def resize_state(optimizer: Optimizer, param: Tensor, index: Tensor, value: Tensor | None = None) -> nn.Parameter:
    """Replace a parameter by one with other rows, in the optimizer and its state, and return it.

    Row i of the new parameter and of its state is row ``index[i]`` of the old ones. Where ``index[i]`` is −1, the row
    and its state are zero. The step count stays. Put the result where the model had the old parameter.

    Args:
        optimizer: the optimizer, an ``Adan`` or another, one of whose parameters this is.
        param: the parameter.
        index: one integer for each row of the new parameter, or a mask (``torch.bool``) of the rows that stay.
        value: what the new parameter holds in place of those rows.

    Example:
        >>> import torch, adan
        >>> points = torch.nn.Parameter(torch.ones(3, 2))
        >>> opt = adan.Adan([points], lr=0.1)
        >>> points.grad = torch.ones(3, 2)
        >>> opt.step()
        >>> points = adan.resize_state(opt, points, torch.tensor([0, 2, 2, -1]))
        >>> print(points.shape, opt.state[points]["exp_avg"][:, 0].count_nonzero().item())
        torch.Size([4, 2]) 3
    """
    places = [(x["params"], i) for x in optimizer.param_groups for i, p in enumerate(x["params"]) if p is param]
    if not places:
        raise ValueError(f"resize_state: param of shape {tuple(param.shape)} is not one of the optimizer's")
    if param.dim() == 0 or sharding.is_dtensor(param):
        got = f"a {type(param).__name__} of shape {tuple(param.shape)}"
        raise ValueError(f"resize_state: param must have rows on this process, got {got}")
    if getattr(optimizer, "_releases", None):
        raise ValueError("resize_state: gradients of this optimizer are released; remove() the release first")
    wanted = f"a tensor of row numbers or a mask of {len(param)} rows"
    if not isinstance(index, Tensor):
        raise TypeError(f"resize_state: index must be {wanted}, got {index!r}")
    if index.dtype == torch.bool and index.shape == param.shape[:1]:
        index = index.nonzero()[:, 0]
    if index.dim() != 1 or index.dtype == torch.bool or not torch.can_cast(index.dtype, torch.int64):
        raise ValueError(f"resize_state: index must be {wanted}, got {index.dtype} of shape {tuple(index.shape)}")
    index = index.to(param.device, torch.int64)
    if len(index) and not -1 <= int(index.min()) <= int(index.max()) < len(param):
        got = f"{int(index.min())} to {int(index.max())}"
        raise ValueError(f"resize_state: index must be from -1 to {len(param) - 1}, got {got}")
    is_new = (index < 0).reshape(-1, *[1] * (param.dim() - 1))

    def rows(x: Tensor) -> Tensor:
        return x[index].masked_fill(is_new, 0)

    new = nn.Parameter(rows(param) if value is None else value, param.requires_grad)
    if new.shape != (shape := (len(index), *param.shape[1:])):
        raise ValueError(f"resize_state: value must have shape {shape}, got {tuple(new.shape)}")
    state = optimizer.state.pop(param, {})
    if "exponents" in state:  # the next step quantizes it again
        state = checkpoints.dequantized(state)
    resized = {name: rows(x) for name, x in state.items() if isinstance(x, Tensor) and x.shape == param.shape}
    optimizer.state[new] = {**state, **resized}
    for params, i in places:
        params[i] = new
    return new
