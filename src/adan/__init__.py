"""Adan, the adaptive Nesterov momentum optimizer, for PyTorch."""

from adan.gradient_release import GradientRelease, release_gradients
from adan.hyperparameters import Recipe, recipes, scaled_lr
from adan.memory_plan import MemoryPlan, plan_memory
from adan.optimizer import Adan
from adan.parameter_groups import NO_DECAY_NAMES, describe_groups, parameter_groups
from adan.resizing import resize_state
from adan.restart import Progress, Restart
from adan.suggestion import Suggestion, suggest_from_adamw

__version__ = "0.1.0"

__all__ = [
    "NO_DECAY_NAMES",
    "Adan",
    "GradientRelease",
    "MemoryPlan",
    "Progress",
    "Recipe",
    "Restart",
    "Suggestion",
    "__version__",
    "describe_groups",
    "parameter_groups",
    "plan_memory",
    "recipes",
    "release_gradients",
    "resize_state",
    "scaled_lr",
    "suggest_from_adamw",
]
