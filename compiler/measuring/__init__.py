"""Timing candidates on the real device, in a process of its own.

Knows programs, inputs and outputs; knows nothing of plans, of how a candidate came about or of
which one is taken in the end.
"""
