"""Errors of fusewise: each names what is wrong, the object it was found in and the next step."""

from __future__ import annotations


class FusewiseError(Exception):
    """Base of all errors that fusewise raises on purpose.

    Attributes:
        cause: what is wrong, with the offending value.
        subject: where the value came from (an option, a file, a group).
        remedy: what the user can do about it.
    """

    def __init__(self, cause: str, *, subject: str, remedy: str) -> None:
        self.cause = cause
        self.subject = subject
        self.remedy = remedy
        super().__init__(f"{subject}: {cause}; {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the three parts when an error crosses a process boundary."""
        return _rebuild, (type(self), self.cause, self.subject, self.remedy)


def _rebuild(kind: type[FusewiseError], cause: str, subject: str, remedy: str) -> FusewiseError:
    return kind(cause, subject=subject, remedy=remedy)


class OptionError(FusewiseError):
    """An option or argument that is unknown or has a value that cannot be."""


class PlanError(FusewiseError):
    """A plan or schedule that is malformed, of another graph, or illegal for this one."""


class StoreError(FusewiseError):
    """A store that cannot be opened, read or written."""


class DatasetError(FusewiseError):
    """A published dataset that is unknown, damaged or of a newer form, or cannot be made."""


class ModelError(FusewiseError):
    """A cost model that is missing, damaged, or made for other features or another device."""


class CorpusError(FusewiseError):
    """A corpus or target that cannot be loaded."""


class MeasureError(FusewiseError):
    """A measurement that could not be made."""


class UnsupportedError(FusewiseError):
    """An environment or a graph that fusewise does not handle."""


class RuleError(FusewiseError):
    """A rule, or a file of rules, that cannot be understood."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its type; with the next where that only leads to it.

    ``backend='inductor' raised:`` says nothing without what was raised.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return f"{type(error).__name__}: {told[:300]}"
