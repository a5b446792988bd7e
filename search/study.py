"""The offline study: which lowering and codegen choices to search under.

Optuna proposes choices, the caller's ``evaluate`` lowers, searches and measures under them. What
was tried is kept in Optuna's storage under a name, so a study goes on where it stopped. Nothing
here knows what a choice means.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from fusewise.schedule.errors import FusewiseError, OptionError, StoreError
from fusewise.schedule.schedule import Candidate

if TYPE_CHECKING:
    import optuna

ChoiceValue = bool | int | float | str
Choices = dict[str, ChoiceValue]

#: Keys under which a study keeps what Optuna has no field for.
_SPACE: Final = "fusewise.space"
_CANDIDATE: Final = "fusewise.candidate"
_FAILURE: Final = "fusewise.failure"


@dataclass(frozen=True)
class ChoiceSpace:
    """Names of choices with their values, and the compiler's own value of each."""

    values: Mapping[str, tuple[ChoiceValue, ...]]
    default: Mapping[str, ChoiceValue]

    def __post_init__(self) -> None:
        for name in {**self.values, **self.default}:
            if name not in self.default or self.default[name] not in self.values.get(name, ()):
                raise OptionError(
                    f"the default {self.default.get(name)!r} of {name} is none of its values "
                    f"{list(self.values.get(name, ()))}",
                    subject="choice space",
                    remedy="give each choice values that include its default",
                )

    @property
    def size(self) -> int:
        """Number of configurations."""
        return math.prod(len(values) for values in self.values.values())

    def grid(self) -> Iterator[Choices]:
        """All configurations, those with the fewest departures from the default first."""
        names = list(self.values)
        for departing in range(len(names) + 1):
            for changed in itertools.combinations(names, departing):
                others = [[v for v in self.values[n] if v != self.default[n]] for n in changed]
                for picked in itertools.product(*others):
                    yield {**self.default, **dict(zip(changed, picked, strict=True))}


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration that was tried."""

    number: int
    choices: Choices
    #: Its best candidate; None where it failed.
    candidate: Candidate | None
    #: Why it failed, in words; "" where it did not.
    failure: str

    @property
    def us(self) -> float:
        """Time of the best candidate in microseconds; infinite where it failed."""
        return math.inf if self.candidate is None else _us(self.candidate)


@dataclass(frozen=True, slots=True)
class StudyResult:
    """All trials of a study, earlier sittings included."""

    trials: tuple[Trial, ...]
    #: Trials run in this sitting.
    fresh: int
    #: Whether the user ended it.
    interrupted: bool

    @property
    def best(self) -> Trial | None:
        """The trial with the least time; of equals the earliest. None where all failed."""
        done = [trial for trial in self.trials if trial.candidate is not None]
        return min(done, key=lambda trial: (trial.us, trial.number), default=None)


def run_study(
    space: ChoiceSpace,
    evaluate: Callable[[Choices], Sequence[Candidate]],
    *,
    name: str,
    storage: str | optuna.storages.BaseStorage | None = None,
    n_trials: int,
    seconds: float | None = None,
    seed: int = 0,
    first: Sequence[Choices] = (),
    on_trial: Callable[[Trial], None] | None = None,
) -> StudyResult:
    """Try configurations of ``space`` and keep track of the best.

    The default is trial 0. A space of no more than ``n_trials`` configurations is tried in full,
    those nearest to the default first; of a larger one ``first``, then what Optuna's TPE sampler
    proposes. None is evaluated twice.

    Args:
        space: what to choose from.
        evaluate: candidates under the given choices that may be used as they are (those that
            failed are passed over). Measured times count, predicted ones where none is measured.
            A :class:`FusewiseError` makes the trial a failed one; any other error ends the study.
        name: under which the study is stored.
        storage: Optuna's storage or its URL, such as ``sqlite:///study.db``; None keeps it in
            memory.
        n_trials: trials in all, earlier sittings included.
        seconds: after which no further trial is begun in this sitting.
        seed: of the sampler.
        first: configurations to try after the default, before any is proposed.
        on_trial: called after each trial of this sitting.

    Raises:
        OptionError: the stored study of this name has another space.
        StoreError: the storage cannot be used.
    """
    import optuna

    study = _open(space, name, storage, seed)
    known = {_key(t.choices): t for t in _trials(study)}
    deadline = None if seconds is None else time.monotonic() + seconds
    fresh, interrupted = 0, False
    in_full = space.size <= n_trials
    asked_for = space.grid() if in_full else (space.default, *first)
    pending = [dict(c) for c in asked_for if _key(c) not in known]
    # TPE may propose what was tried before; such proposals are told their time and not counted,
    # but a sampler that proposes nothing else has to end.
    repeats = 0
    while len(known) < min(n_trials, space.size) and repeats < 10 * n_trials:
        if deadline is not None and time.monotonic() > deadline:
            break
        if pending:
            study.enqueue_trial(pending.pop(0))
        asked = study.ask()
        choices: Choices = {
            choice: cast(ChoiceValue, asked.suggest_categorical(choice, values))
            for choice, values in space.values.items()
        }
        key = _key(choices)
        if key in known:
            repeats += 1
            _tell(study, asked, known[key])
            continue
        try:
            trial = _evaluated(len(known), choices, evaluate)
        except KeyboardInterrupt:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            interrupted = True
            break
        except BaseException:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            raise
        _tell(study, asked, trial)
        known[key] = trial
        fresh += 1
        if on_trial is not None:
            on_trial(trial)
    return StudyResult(tuple(known.values()), fresh, interrupted)


def _open(
    space: ChoiceSpace, name: str, storage: str | optuna.storages.BaseStorage | None, seed: int
) -> optuna.Study:
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    text = json.dumps({n: list(v) for n, v in space.values.items()})
    try:
        study = optuna.create_study(
            storage=storage,
            sampler=optuna.samplers.TPESampler(seed=seed),
            study_name=name,
            direction="minimize",
            load_if_exists=True,
        )
        stored = study.user_attrs.get(_SPACE)
        if stored is None:
            study.set_user_attr(_SPACE, text)
    except (optuna.exceptions.OptunaError, SQLAlchemyError) as error:
        raise StoreError(
            str(error), subject=f"study {name!r}", remedy="check the storage's URL and access"
        ) from error
    if stored is not None and stored != text:
        raise OptionError(
            f"it was begun with the space {stored}, not {text}",
            subject=f"study {name!r}",
            remedy="use another name for another space",
        )
    return study


def _trials(study: optuna.Study) -> list[Trial]:
    """Trials of earlier sittings that came to an end, each configuration once."""
    found: dict[str, Trial] = {}
    for frozen in study.get_trials(deepcopy=False):
        attrs: dict[str, Any] = frozen.user_attrs
        if _CANDIDATE not in attrs and _FAILURE not in attrs:
            continue
        stored = attrs.get(_CANDIDATE)
        candidate = None if stored is None else msgspec.json.decode(stored, type=Candidate)
        trial = Trial(len(found), dict(frozen.params), candidate, attrs.get(_FAILURE, ""))
        found.setdefault(_key(trial.choices), trial)
    return list(found.values())


def _evaluated(
    number: int, choices: Choices, evaluate: Callable[[Choices], Sequence[Candidate]]
) -> Trial:
    try:
        candidates = evaluate(dict(choices))
    except FusewiseError as error:
        return Trial(number, choices, None, str(error))
    measured = [c for c in candidates if c.status == "measured" and c.measured_us is not None]
    usable = measured or [c for c in candidates if c.status != "failed" and _us(c) < math.inf]
    if not usable:
        reasons = "; ".join(dict.fromkeys(c.reason for c in candidates if c.reason))
        return Trial(number, choices, None, reasons or "no candidate has a time")
    return Trial(number, choices, min(usable, key=lambda c: (_us(c), c.schedule.id)), "")


def _tell(study: optuna.Study, asked: optuna.Trial, trial: Trial) -> None:
    import optuna

    if trial.candidate is None:
        asked.set_user_attr(_FAILURE, trial.failure)
        study.tell(asked, state=optuna.trial.TrialState.FAIL)
    else:
        asked.set_user_attr(_CANDIDATE, msgspec.json.encode(trial.candidate).decode())
        study.tell(asked, trial.us)


def _us(candidate: Candidate) -> float:
    us = candidate.measured_us if candidate.measured_us is not None else candidate.predicted_us
    return math.inf if us is None else us


def _key(choices: Mapping[str, ChoiceValue]) -> str:
    return json.dumps(dict(sorted(choices.items())))
