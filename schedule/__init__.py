"""The data types that every room speaks: problem, plan, schedule, candidate, and the errors.

Knows nothing of torch, Inductor, cost models or storage; imports nothing of the other rooms.
"""
