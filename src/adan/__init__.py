"""Adan, the adaptive Nesterov momentum optimizer, for PyTorch."""

from adan.hyperparameters import Recipe, recipes, scaled_lr
from adan.optimizer import Adan
from adan.parameter_groups import parameter_groups
from adan.suggestion import Suggestion, suggest_from_adamw

__all__ = ["Adan", "Recipe", "Suggestion", "parameter_groups", "recipes", "scaled_lr", "suggest_from_adamw"]
