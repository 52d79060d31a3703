"""What workloads look for in the data folder, and sizes that follow from it; nothing is imported for it."""

from __future__ import annotations

SPLITS = ("train", "valid", "test")
CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR = tuple(f"cifar10/{split}.parquet or {CIFAR_FOLDER}" for split in ("train", "test"))
IMAGENET = ("imagenet/train", "imagenet/val")
IMAGENET_SIZE = 1_281_167  # images to train
COCO = ("coco/annotations/instances_train2017.json", "coco/annotations/instances_val2017.json")
COCO_SIZE, COCO_ANNOTATED = 118_287, 117_266  # images of train2017, and those of them with annotations
BCCD = ("bccd/annotations/instances_train.json", "bccd/annotations/instances_val.json")
PENN_TREEBANK = tuple(f"ptb/ptb.{split}.txt" for split in SPLITS)
WIKITEXT = tuple(f"wikitext-103/wiki.{split}.tokens" for split in SPLITS)
CITATIONS = tuple(f"graphs/cora/{name}" for name in ("edges.csv", "nodes.csv", "features.npz"))
PROTEINS = "ogbn_proteins"
PROTEINS_RAW = ("edge", "edge-feat", "num-edge-list", "node_species", "node-label")
PROTEINS_FILES = (
    *(f"{PROTEINS}/raw/{name}.csv.gz" for name in PROTEINS_RAW),
    *(f"{PROTEINS}/split/species/{split}.csv.gz" for split in SPLITS),
)
