"""The training room: from measured samples in the store to a cost model, and how good it is.

Fits, evaluates, tunes and saves models; ``train-costmodel`` is its command. It measures no kernel
and compiles nothing.
"""
