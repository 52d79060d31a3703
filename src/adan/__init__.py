"""Adan, the adaptive Nesterov momentum optimizer, for PyTorch."""

from adan.hyperparameters import Recipe, Suggestion, recipes, scaled_lr, suggest_from_adamw
from adan.optimizer import Adan
from adan.parameter_groups import parameter_groups

__all__ = ["Adan", "Recipe", "Suggestion", "parameter_groups", "recipes", "scaled_lr", "suggest_from_adamw"]
