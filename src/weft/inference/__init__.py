"""Inference methods, one file each, behind one interface."""

from weft.inference.bfvi import BFVI
from weft.inference.method import Guide, Method
from weft.inference.recurrent import Recurrent
from weft.inference.recursions import Filtered, Smoothed, Trajectories
from weft.inference.registry import METHODS, build
from weft.inference.stream import Tracker

__all__ = [
    "BFVI",
    "METHODS",
    "Filtered",
    "Guide",
    "Method",
    "Recurrent",
    "Smoothed",
    "Tracker",
    "Trajectories",
    "build",
]
