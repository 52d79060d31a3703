"""Random shapes, options, missing gradients and restarts, held against the oracle."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import OPTIONS, unsupported_reason
from support.parity import Row

ENGINES = [options for name, options in OPTIONS.items() if name != "cuda" and unsupported_reason(name) is None]

beta = st.sampled_from([0.0, 0.3, 0.7, 0.9, 0.98, 0.999])
shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=4)
options = st.fixed_dictionaries(
    {
        "betas": st.tuples(beta, beta, beta.filter(bool)),
        "eps": st.sampled_from([1e-8, 1e-3, 1.0]),
        "weight_decay": st.sampled_from([0.0, 0.1, 2.0]),
        "max_grad_norm": st.sampled_from([0.0, 0.5, 3.0]),
        "no_prox": st.booleans(),
        "bias_correction": st.booleans(),
        "maximize": st.booleans(),
        "capturable": st.booleans(),
        "skip_nonfinite": st.booleans(),
    }
)
#: For every step: which parameters have a gradient, whether one is NaN, whether to restart first.
script = st.lists(
    st.tuples(st.integers(0, 15), st.sampled_from([False, False, False, True]), st.sampled_from([False] * 5 + [True])),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(shapes=shapes, options=options, script=script, engine=st.sampled_from(ENGINES), seed=st.integers(0, 9))
def test_any_run_is_the_oracles(shapes, options, script, engine, seed):
    rng = np.random.default_rng(seed)
    row = Row("random", options)
    start = [rng.standard_normal(shape) for shape in shapes]
    params = [torch.tensor(x).requires_grad_() for x in start]
    opt, oracle = row.optimizer(params, 0.05, **engine), row.oracle(start, 0.05)
    for present, poisoned, restart in script:
        if restart:
            opt.restart()
            oracle.restart()
        grads = [rng.standard_normal(shape) * 2 if present >> i & 1 else None for i, shape in enumerate(shapes)]
        if poisoned and options["skip_nonfinite"]:
            for grad in grads:
                if grad is not None and grad.size:
                    grad.flat[0] = np.nan
        for p, grad in zip(params, grads, strict=True):
            p.grad = None if grad is None else torch.tensor(grad)
        opt.step()
        oracle.step(grads)
    for p, theta in zip(params, oracle.theta, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), theta, rtol=0, atol=1e-9)
