"""Tables in and out."""

from weft.frames.clock import Clock, Step
from weft.frames.reading import Combine, Contents, Roles, Table, read_table
from weft.frames.writing import Extra, column_names, write_grid, write_rows

__all__ = [
    "Clock",
    "Combine",
    "Contents",
    "Extra",
    "Roles",
    "Step",
    "Table",
    "column_names",
    "read_table",
    "write_grid",
    "write_rows",
]
