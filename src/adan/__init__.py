"""Adan, the adaptive Nesterov momentum optimizer, for PyTorch."""

from adan.optimizer import Adan

__all__ = ["Adan"]
