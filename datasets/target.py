"""The target: a user's own program, named as ``file.py:factory``, as a sample.

The file is run as it is, so only name files that you trust. Its own errors stay chained to the
CorpusError that says where they came from.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from torch import Tensor, nn

from fusewise.datasets.corpus import GraphSample
from fusewise.schedule.errors import CorpusError

_FORM = "write it as FILE.py:FACTORY"
_RETURNS = "return (callable, args) or (callable, args, kwargs)"


def load_target(target: str) -> GraphSample:
    """The sample that ``target`` makes.

    Args:
        target: ``file.py:factory``, where ``factory()`` takes nothing and returns a module or
            callable with its arguments (a tuple or list) and, if wanted, keyword arguments. A
            module in training mode with parameters to train makes a training sample.

    Raises:
        CorpusError: the file or the factory is not there, it raised, or returned something else.
    """
    file, colon, factory_name = target.rpartition(":")
    if not colon or not file or not factory_name.isidentifier():
        _refuse("does not name a file and a factory", target, _FORM)
    path = Path(file).expanduser()
    if not path.is_file():
        _refuse(f"there is no file {file!r}", target, _FORM)
    factory = getattr(_load(path, target), factory_name, None)
    if not callable(factory):
        _refuse(
            f"{path.name} has no function {factory_name!r}",
            target,
            f"define {factory_name}() there, or name another function",
        )
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise CorpusError(
            f"{factory_name}() raised {type(error).__name__}: {error}",
            subject=target,
            remedy="call it on its own to see why",
        ) from error
    module, args, kwargs = _unpack(made, factory_name, target)
    return GraphSample(
        name=target,
        family=f"target/{path.stem}:{factory_name}",
        module=module,
        args=args,
        kwargs=kwargs,
        training=trains(module),
    )


@dataclass(frozen=True)
class TargetCorpus:
    """A corpus of one program.

    Args:
        target: as :func:`load_target` takes it; also the program's name.
    """

    target: str
    name: str = "target"
    #: Unknown: it is the user's.
    licence: str = ""

    def names(self, seed: int) -> Iterator[str]:
        """The one name, whatever the seed."""
        del seed
        yield self.target

    def build(self, name: str) -> Iterator[GraphSample]:
        """The one program.

        Raises:
            CorpusError: it cannot be loaded.
        """
        yield load_target(name)


def _load(path: Path, target: str) -> object:
    """The file as a module, with its folder importable while it loads, as when it is run."""
    # The name is kept in sys.modules, where dataclasses and pickling look for their module.
    name = f"fusewise_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        _refuse(f"{path.name} is no Python file", target, _FORM)
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise CorpusError(
            f"{path.name} raised {type(error).__name__} when it was loaded: {error}",
            subject=target,
            remedy="run the file on its own to see why",
        ) from error
    finally:
        sys.path.remove(folder)
    return module


def _unpack(
    made: object, factory: str, target: str
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    match made:
        case (module, args):
            kwargs: object = {}
        case (module, args, kwargs):
            pass
        case _:
            _refuse(f"{factory}() returned {_told(made)}", target, _RETURNS)
    if not callable(module):
        _refuse(f"the first that {factory}() returned is {_told(module)}", target, _RETURNS)
    if not isinstance(args, tuple | list):
        hint = "; a single argument is written (x,)" if isinstance(args, Tensor) else ""
        _refuse(f"the args that {factory}() returned are {_told(args)}{hint}", target, _RETURNS)
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        _refuse(f"the kwargs that {factory}() returned are {_told(kwargs)}", target, _RETURNS)
    return module, tuple(args), kwargs


def trains(module: object) -> bool:
    """Whether a program is compiled with its backward: a module in training mode that learns."""
    return (
        isinstance(module, nn.Module)
        and module.training
        and any(parameter.requires_grad for parameter in module.parameters())
    )


def _told(value: object) -> str:
    kind = type(value).__name__
    return (
        f"a {kind} of {len(value)}"
        if isinstance(value, tuple | list)
        else f"a value of type {kind}"
    )


def _refuse(cause: str, target: str, remedy: str) -> Never:
    raise CorpusError(cause, subject=target or "target", remedy=remedy)
