"""Generated programs: pieces of real programs with random sizes, dtypes and variants.

Each module holds the families of one kind; ``corpus.py`` draws from all of them. Nothing here
knows how its programs will be compiled, and nothing is measured here.
"""

from fusewise.datasets.generated.corpus import FAMILIES, GeneratedCorpus

__all__ = ["FAMILIES", "GeneratedCorpus"]
