"""Search over complete schedules: beam, study, shortlist, interleaved timing and acceptance.

Knows the data types of the schedule room and abstract costs, legality and timers. It never touches
the compiler, a device or a store: whoever calls it hands those in as protocols and callables.
"""
