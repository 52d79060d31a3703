"""Files of studies of the tiny workload: searches by rates and over ranges, a follow-up, a second search."""

FIRST = """
summary = "A regression"
workload = "tiny"
seeds = 4

[run]
steps = 20
eval_every = 10

[search]
trials = 7
steps = 10

[optimizers.adan]
settings = { lr = 0.01, betas = [0.9, 0.92, 0.99], weight_decay = 0.02 }
alternatives = [{ betas = [0.98, 0.92, 0.99] }, { weight_decay = 0.1 }]

[optimizers.adamw]
settings = { lr = 0.01, weight_decay = 0.02 }
alternatives = [{ betas = [0.9, 0.99] }, { weight_decay = 0.1 }]
"""
SECOND = """
summary = "The same, longer, with other settings"
follows = "first"
seeds = [0, 7]

[run]
steps = 30

[[runs]]
optimizer = "adan"
change = { no_prox = true }
lr_factor = 0.5

[[runs]]
optimizer = "adamw"
grid = { lr = [0.1, 0.2], batch_size = [8, 32] }
"""
FIELD = """
summary = "A regression"
workload = "tiny"
seeds = 2

[run]
steps = 20
eval_every = 10

[search]
trials = 12
confirm = 2
steps = 10

[search.ranges]
b1 = { one_minus = [0.02, 0.2] }
decay = [0.01, 1.0]
warmup = { choice = [0.02, 0.05, 0.1] }

[optimizers.adan]
settings = { lr = [0.001, 0.064], betas = ["b1", 0.92, 0.99], weight_decay = "decay" }

[optimizers.adamw]
settings = { lr = [0.0001, 0.0064], betas = ["b1", 0.99], weight_decay = "decay" }
"""
AGAIN = """
summary = "Searched again"
repeats = "field"
seeds = [5, 6]

[search]
seed = 2000
"""
#: As `conftest.folder` has them, by their names.
STUDIES = {"first": FIRST, "second": SECOND, "field": FIELD, "again": AGAIN}
