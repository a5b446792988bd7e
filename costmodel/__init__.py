"""The cost model room: what a group of nodes will cost on a device, and how sure that is.

Holds the device profile, the feature table, the analytic model (roofline), the learned model and
the sum over a plan. Knows the data types of ``fusewise.schedule`` and nothing of search, storage
or compilation; it never measures a generated kernel and never touches Inductor.
"""
