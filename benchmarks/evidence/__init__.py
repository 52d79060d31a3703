"""Evidence: whole training runs, tuned by one rule for every optimizer, as many at a time as a GPU can hold.

    PYTHONPATH=src:benchmarks python -m evidence prepare --data DIR --cache CACHE
    PYTHONPATH=src:benchmarks python -m evidence smoke --cache CACHE --out smoke.jsonl
    PYTHONPATH=src:benchmarks python -m evidence gradients --cache CACHE --out gradients.jsonl
    PYTHONPATH=src:benchmarks python -m evidence run vit-25 vit-50 gpt --cache CACHE --out runs.jsonl --deadline 900
    PYTHONPATH=src:benchmarks python -m evidence store runs.jsonl   # into results/evidence/runs.jsonl

Data lives on the device; batch selection, augmentation, forward, backward, clipping and the optimizer's step are one
CUDA graph. Every finished run is one line of the output file, and a run that has its line is not made again. Weights
that other runs start from lie in CACHE/weights: fine-tune on the machine that pre-trained, or copy them.

`prepare` takes from DIR what is there: cifar10.npz (by `pack`), debian.txt.xz (by `pack-english`), ptb/, graphs/cora/,
bccd/; where glue/ is, it gathers English.
"""
