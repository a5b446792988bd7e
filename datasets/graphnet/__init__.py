"""Pieces of real models: the GraphNet corpus, read from a checkout that the user has.

A sample of GraphNet is a whole model as straight-line code. It is parsed, never imported or
executed as Python: only the torch operations that it names are called. Models are cut into pieces
of a few blocks, since a whole one takes minutes to compile. Nothing of GraphNet is shipped, and
nothing here compiles or measures a piece.
"""

from fusewise.datasets.graphnet.corpus import GraphNetCorpus
from fusewise.datasets.graphnet.families import is_test_collection

__all__ = ["GraphNetCorpus", "is_test_collection"]
