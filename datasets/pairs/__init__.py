"""Pairs of programs that do the same and are written differently: data for whoever compares them.

Nothing here compiles anything, and nothing here is collected from.
"""
