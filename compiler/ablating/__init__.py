"""What each stage of the compiler is worth, measured by leaving it out.

Puts together what the rest of the compiler room has; decides nothing about anybody's program.
"""
