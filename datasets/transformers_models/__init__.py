"""Models of the transformers library, built from small random configurations.

Nothing is downloaded: weights are drawn, sizes are small. The library is optional and only
imported when a model is built.
"""
