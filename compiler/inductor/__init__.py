"""All that touches TorchInductor: hooks, extraction, legality, applying plans, code, caches.

The rest of fusewise sees problems, plans and schedules; what they are inside Inductor is known
here alone.
"""
