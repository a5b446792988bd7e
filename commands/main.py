"""``fusewise``: the group of all commands. It only finds them and tells their errors."""

from __future__ import annotations

from importlib import import_module

import click

import fusewise
from fusewise.schedule.errors import FusewiseError

#: Commands by name, each with the module that it is in; loaded when asked for.
_COMMANDS = {
    "ablate": "fusewise.commands.ablate",
    "collect": "fusewise.commands.collect",
    "dataset": "fusewise.commands.dataset",
    "explain": "fusewise.commands.explain",
    "plan": "fusewise.commands.plan",
    "search": "fusewise.commands.search",
    "store": "fusewise.commands.store",
}

_EXAMPLE = """\b
Examples:
  fusewise collect --corpus generated --seconds 600
  train-costmodel
  fusewise search model.py:factory --budget 10m --out plan.json
  fusewise explain model.py:factory
  fusewise plan show plan.json
  fusewise store info
  fusewise dataset info h200
"""


class _Commands(click.Group):
    """Loads a command when it is asked for, and turns our errors into one line and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See :class:`click.Group`."""
        del ctx
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See :class:`click.Group`."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """See :class:`click.Group`."""
        try:
            result: object = super().invoke(ctx)
        except FusewiseError as error:
            tell(error)
            ctx.exit(2)
        return result


def tell(error: FusewiseError) -> None:
    """Print an error as one line, whatever the texts of the libraries below look like."""
    click.echo(f"error: {' '.join(str(error).split())}", err=True)


@click.group(cls=_Commands, epilog=_EXAMPLE)
@click.version_option(fusewise.__version__, package_name="fusewise")
def main() -> None:
    """Fusion decided by search, a cost model and measurement."""


if __name__ == "__main__":
    main()
