"""The paper's evaluation as a tool: Adan beside the optimizers it is compared with."""
