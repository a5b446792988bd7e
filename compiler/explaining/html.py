"""An explanation as one HTML file that needs nothing beside it: no network, no server, no library.

The report's data go in as they are in the JSON; the files of ``page/`` draw them in the browser.
Needs the extra ``report`` (jinja2). Explains and times nothing.
"""

from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fusewise.compiler.inductor.refusals import MEANINGS
from fusewise.costmodel.feature_table import FEATURES
from fusewise.schedule.errors import OptionError, UnsupportedError
from fusewise.schedule.inlining import RULES

if TYPE_CHECKING:
    from fusewise.compiler.explaining.report import ExplainedProgram

#: In the order in which they need each other; together they are one script.
_SCRIPTS: Final = (
    "dom.js",
    "data.js",
    "layout.js",
    "inspect.js",
    "panes.js",
    "table.js",
    "lists.js",
    "charts.js",
    "sections.js",
    "lowering.js",
    "main.js",
)
#: What could end the element that the data stand in, or a line of a script; JSON may escape it.
_UNSAFE: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def check_page(path: Path) -> None:
    """Refuse early what would fail after everything was explained.

    Raises:
        OptionError: the folder does not exist, or the path is one.
        UnsupportedError: jinja2 is not installed.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        cause = "it is a folder" if path.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise OptionError(cause, subject=f"page {path}", remedy="name a file in an existing folder")
    _check_extra()


def write_page(explained: ExplainedProgram, path: Path) -> None:
    """Write the page of an explanation.

    Raises:
        OptionError: the file cannot be written.
        UnsupportedError: jinja2 is not installed.
    """
    text = page(explained)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"it cannot be written: {error.strerror}",
            subject=f"page {path}",
            remedy="name another file",
        ) from error


def page(explained: ExplainedProgram) -> str:
    """The page of an explanation.

    Raises:
        UnsupportedError: jinja2 is not installed.
    """
    _check_extra()
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    return environment.from_string(_asset("page.html")).render(
        program=explained.program,
        style=Markup(_asset("style.css")),
        script=Markup(f'"use strict";\n(() => {{\n{script}}})();'),
        data=Markup(_embedded(explained)),
        words=Markup(_embedded(_words())),
    )


def _check_extra() -> None:
    if importlib.util.find_spec("jinja2") is None:
        raise UnsupportedError(
            "jinja2 is not installed",
            subject="HTML report",
            remedy="pip install 'fusewise[report]'",
        )


def _asset(name: str) -> str:
    return resources.files("fusewise.compiler.explaining").joinpath("page", name).read_text("utf-8")


def _embedded(value: Any) -> str:
    """JSON that means the same and holds nothing that a browser takes for markup."""
    return msgspec.json.encode(value).decode().translate(_UNSAFE)


def _words() -> dict[str, Any]:
    """What the codes and features of a report mean."""
    return {
        "reasons": {str(refusal): meaning for refusal, meaning in MEANINGS.items()},
        "rules": RULES,
        "features": {feature.name: (feature.unit, feature.definition) for feature in FEATURES},
    }
