"""The paper's theory as something one can run: small, fp64, in the paper's symbols (its β is 1 − `betas`).

Nothing here uses the optimizer in `adan`; where the two can be compared, they are.
"""
