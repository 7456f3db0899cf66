"""Inference methods, one file each, over shared recursions."""

from weft.inference.bfvi import BFVI
from weft.inference.recursions import Filtered, Smoothed, Trajectories

__all__ = ["BFVI", "Filtered", "Smoothed", "Trajectories"]
