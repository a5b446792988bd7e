"""The command line: reads options, shows progress and results, turns errors into one line.

Puts the rooms below to work and computes nothing of its own. Never imports Inductor, and imports
torch only once a command is at work, so that help comes at once.
"""
