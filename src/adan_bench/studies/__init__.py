"""Which runs answer a question: comparisons, the tables of the paper, measurements of speed, HumanEval."""
