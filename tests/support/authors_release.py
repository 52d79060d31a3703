"""The checkpoint format and the arithmetic of the authors' release, rewritten: enough to write checkpoints as it does.

It keeps one step count a group, stores the negated previous gradient and takes its epsilon into the clip coefficient.
"""

from __future__ import annotations

import torch


class AuthorsAdan(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, eps=1e-8, weight_decay=0.0, max_grad_norm=0.0, no_prox=False):
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        super().__init__(params, {**options, "no_prox": no_prox, "foreach": True, "fused": False})

    @torch.no_grad()
    def step(self):
        limit = self.defaults["max_grad_norm"]
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
        clip = min(1.0, (limit / (norm + self.defaults["eps"])).item()) if limit > 0 else 1.0
        for group in self.param_groups:
            b1, b2, b3 = group["betas"]
            lr, decay = group["lr"], group["lr"] * group["weight_decay"]
            t = group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                g, state = p.grad * clip, self.state[p]
                if not state:
                    state.update({key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq", "exp_avg_diff")})
                    state["neg_pre_grad"] = -g
                diff = g + state["neg_pre_grad"]
                state["exp_avg"].mul_(b1).add_(g, alpha=1 - b1)
                state["exp_avg_diff"].mul_(b2).add_(diff, alpha=1 - b2)
                state["exp_avg_sq"].mul_(b3).add_((g + b2 * diff) ** 2, alpha=1 - b3)
                state["neg_pre_grad"] = -g
                root = (state["exp_avg_sq"] / (1 - b3**t)).sqrt() + group["eps"]
                update = (state["exp_avg"] / (1 - b1**t) + b2 * state["exp_avg_diff"] / (1 - b2**t)) / root
                p.copy_((1 - decay) * p - lr * update if group["no_prox"] else (p - lr * update) / (1 + decay))
