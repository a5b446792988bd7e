"""The measuring process of a collection: the one of a compile, but that it dies with its parent.

There it is started by whatever thread compiles, which may end before its process does.
"""

from __future__ import annotations

from fusewise.compiler.collecting.child import die_with_parent
from fusewise.compiler.measuring.worker import main

if __name__ == "__main__":
    die_with_parent()
    main()
