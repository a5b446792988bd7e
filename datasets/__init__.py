"""The datasets room: where graphs come from, and the store of what was measured on them.

Holds the DuckDB store with its migrations and spool, the corpora, and the splits by family. Never
imports torch's compiler, never fits or evaluates a model, and never decides which schedule wins.
"""
