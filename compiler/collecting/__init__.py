"""Collecting timings: programs of corpora are lowered, varied, compiled and timed.

A station is one device with a process that times on it and a pool of processes that compile; a
fleet is one or more stations that fill one store. Chooses no schedule for anybody.
"""
