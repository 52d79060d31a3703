"""A wrong coefficient must not survive: each is seeded into an engine's own text, and the parity check must fail."""

import pytest
from support.mistakes import seed_mistake
from support.parity import ROW, assert_parity, count_as_on_a_device

#: (module, what stands there, the mistake, a row that must notice it)
MUTATIONS = [
    ("scalars", "lookahead=b2", "lookahead=1 - b2", "fast betas"),
    ("scalars", "step_v=lr * run * b2 / debias_v", "step_v=lr * run * (1 - b2) / debias_v", "fast betas"),
    ("scalars", "step_v=lr * run * b2 / debias_v", "step_v=lr * run * b2", "fast betas"),
    ("scalars", "step_m=lr * run / debias_m", "step_m=lr * run", "defaults"),
    ("scalars", "root_n=debias_n**-0.5", "root_n=1.0", "defaults"),
    ("scalars", "1 - b1, 1 - b2, 1 - b3", "1 - b1, 1 - b3, 1 - b2", "fast betas"),
    ("scalars", "1 - b1 * has_prev, 1 - b2 * _is_after(t, 2)", "1 - b1 * has_prev, 1 - b2 * has_prev",
     "Algorithm 1 to the letter"),
    ("scalars", "1 - b3 * has_prev", "1 - b3", "Algorithm 1 to the letter"),
    ("scalars", "1 - b1 * has_prev,", "1 - b1,", "Algorithm 1 to the letter"),
    ("scalars", "shrink=1.0 if options.no_prox else 1 / (1 + decay)", "shrink=1.0 if options.no_prox else 1 - decay",
     "proximal decay"),
    ("scalars", "1 - decay if options.no_prox", "1 / (1 + decay) if options.no_prox", "AdamW's decay"),
    ("scalars", "options.weight_decay * run", "options.weight_decay", "skipping, captured"),
    ("scalars", "return -c if options.maximize else c", "return c", "maximized"),
    ("scalars", "c = c * clip.clamp(max=1.0)", "c = c * clip", "clipped now and then"),
    ("scalars", "w_n=w_n * run", "w_n=w_n", "skipping, captured"),
    ("engines.loop", "s.root_n * n.sqrt() + s.eps", "(s.root_n**2 * n + s.eps).sqrt()", "large eps"),
    ("engines.loop", "g_prev.copy_(g)", "g_prev.copy_(grad)", "clipped now and then"),
    ("engines.loop", "s.has_prev * (g - g_prev)", "g - g_prev", "fast betas"),
    ("engines.loop", "(g + s.lookahead * d) ** 2", "g**2", "fast betas"),
    ("engines.loop", "torch.where(signals.skip > 0, g_prev, g)", "g", "skipping, captured"),
    ("engines.loop", "columns.grad[i], columns.step[i]", "columns.grad[i], columns.step[0]", "fast betas"),
    ("engines.loop", "1 if signals.skip is None else 1 - signals.skip", "1", "skipping, captured"),
    ("engines.foreach", "torch._foreach_add_(denom, s.eps)", "torch._foreach_add_(denom, s.eps**2)", "large eps"),
    ("engines.foreach", "torch._foreach_copy_(prev_grads, g)", "torch._foreach_copy_(prev_grads, grads)",
     "clipped now and then"),
    ("engines.foreach", "if not _is_one(s.has_prev)", "if False", "fast betas"),
    ("engines.foreach", "torch._foreach_add_(d, g)\n", "pass\n", "fast betas"),
    ("engines.foreach", "next_count(step, compute_dtype(p.dtype))",
     "next_count(columns.step[0], compute_dtype(p.dtype))", "fast betas"),
    ("engines.foreach", "1 if signals.skip is None else [1 - signals.skip] * len(columns.step)",
     "1", "skipping, captured"),
    ("engines.foreach", "if not _is_one(s.grad_scale)", "if False", "clipped"),
    ("engines.loop", "m = m + s.lookahead * s.w_v * d", "m = m + s.w_v * d", "coupled"),
    ("engines.foreach", "torch._foreach_mul(d, s.w_v)", "d", "coupled"),
    ("grad_norm", "torch._foreach_norm(tensors,", "torch._foreach_norm(tensors[:1],", "clipped now and then"),
    ("grad_norm", "torch._foreach_norm(tensors, order", "torch._foreach_norm(tensors, 1", "clipped now and then"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "right", "wrong", "row"), MUTATIONS, ids=lambda text: text[:40])
def test_a_seeded_mistake_is_noticed(module, right, wrong, row, monkeypatch):
    if "captured" in row:
        count_as_on_a_device(monkeypatch)
    seed_mistake(f"adan.{module}", right, wrong, monkeypatch)
    with pytest.raises(AssertionError, match=r"off by|nan"):
        assert_parity(ROW[row], foreach=module != "engines.loop", fused=False)
