"""Models that come with the package: one ``*.fusewise.json`` file per device key.

Only data lives here; ``fusewise.costmodel.registry`` finds and reads it.
"""
