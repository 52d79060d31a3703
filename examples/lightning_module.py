"""A LightningModule with Adan in bf16-mixed precision; training resumed from a checkpoint ends on the same numbers.

$ python examples/lightning_module.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adan import Adan, parameter_groups

try:
    import lightning
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install '.[examples]'") from None


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        output = self.model(batch[0])
        self.log("accuracy", (output.argmax(1) == batch[1]).float().mean(), on_epoch=True)
        return nn.functional.cross_entropy(output, batch[1])

    def configure_optimizers(self) -> dict[str, object]:
        # Adan clips, since in mixed precision Lightning rejects gradient_clip_val with optimizers that unscale.
        groups = parameter_groups(self, weight_decay=0.02)
        optimizer = Adan(groups, lr=1e-2, betas=(0.9, 0.92, 0.99), max_grad_norm=1.0)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(epochs: int, folder: str, resume: str | None = None) -> lightning.Trainer:
    lightning.seed_everything(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    keep = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1, enable_version_counter=False)
    trainer = lightning.Trainer(max_epochs=epochs, precision="bf16-mixed", callbacks=[keep], logger=False, devices=1)
    trainer.fit(Digits(), DataLoader(data, batch_size=32), ckpt_path=resume)
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", default="runs/lightning")
    args = parser.parse_args()
    first = fit(args.epochs, args.out)
    resumed = fit(args.epochs, args.out, f"{args.out}/epoch={args.epochs // 2 - 1}.ckpt")
    a, b = (nn.utils.parameters_to_vector(trainer.model.parameters()) for trainer in (first, resumed))
    name, accuracy = type(first.optimizers[0]).__name__, first.callback_metrics["accuracy_epoch"]
    print(f"{name}, {first.precision}: accuracy {accuracy:.3f}, resumed differs by {(a - b).abs().max()}")
