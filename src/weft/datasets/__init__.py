"""Data sets that are made in process or read from files the user has."""

from weft.datasets.spirals import Spirals, make_spirals

__all__ = ["Spirals", "make_spirals"]
