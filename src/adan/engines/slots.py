"""Layout of the tables that `cuda.py` fills and the kernels read: each slot is named here, once."""

from adan.columns import Columns
from adan.scalars import Displacement, Options, Scalars

#: 64-bit words, a row for each tensor, that stay the same while a plan holds: addresses, 0 where a tensor has no such
#: state, then numbers. `start` is the first chunk of a tensor, counted over all launches, and `norm_start` the first in
#: chunks of `sum_of_squares`, counted from the first tensor of its launch. The rows of all chunks follow, in 32 bits.
ADDRESSED = tuple(name for name in Columns._fields[Columns._fields.index("param") :] if name != "grad")
STATIC = (*ADDRESSED, "rng_offset", "numel", "group", "start", "norm_start")

#: The options of a parameter group, fp64. In the table that may change with every step they follow the addresses of all
#: gradients, 0 where there is none. Which weights are rounded stochastically is another kernel.
OPTIONS = (
    *(name for name in Options._fields if name not in ("betas", "stochastic_rounding")),
    "b1", "b2", "b3", "log_b1", "log_b2", "log_b3",
)  # fmt: skip

#: The coefficients of a tensor, all tensors' in fp64, then all in fp32: an even number, so that both are aligned.
COEFS = (
    *Scalars._fields, "run", "rng_moved", "averaging", "per_averaging", *(f"y_{name}" for name in Displacement._fields)
)  # fmt: skip
