"""fusewise: a ``torch.compile`` backend that decides fusion by search, a cost model and measurement."""

__version__ = "0.1.0"
