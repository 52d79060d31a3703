"""A small Vision Transformer on scikit-learn's handwritten digits."""

from __future__ import annotations

from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.registry import workload


@workload("digits-vit", metric="accuracy", higher_is_better=True, smoke=Scale(target=0.85, steps=240, eval_every=20))
def digits_vit(context: Context) -> Task:
    """ViT (3 layers of width 48, patches of 2×2) on scikit-learn's digits."""
    import transformers

    from adan_bench.data.images import digits
    from adan_bench.data.settings import PLAIN
    from adan_bench.workloads.parts.classification import classification_task
    from adan_bench.workloads.parts.networks import without_mask

    config = transformers.ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=without_mask(),
    )
    return classification_task(transformers.ViTForImageClassification(config), digits(context), context, PLAIN)
