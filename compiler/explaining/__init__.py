"""Explaining a program's graphs: every fusion that was possible, the kernels, and why.

Looks and predicts; with ``measure`` it times as well. Changes neither the store nor the program.
"""
