"""The offline study: which lowering and codegen choices to search under.

Optuna proposes choices, the caller's ``evaluate`` lowers, searches and measures under them. What
was tried is kept in Optuna's storage under a name, so a study goes on where it stopped, also after
its process was killed. Nothing here knows what a choice means.
"""

from __future__ import annotations

import itertools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from fusewise.schedule.errors import FusewiseError, OptionError, StoreError
from fusewise.schedule.schedule import Candidate
from fusewise.search.objective import Objective, figures

if TYPE_CHECKING:
    import optuna

ChoiceValue = bool | int | float | str
Choices = dict[str, ChoiceValue]

#: Keys under which a study keeps what Optuna has no field for.
_SPACE: Final = "fusewise.space"
_CANDIDATE: Final = "fusewise.candidate"
_FAILURE: Final = "fusewise.failure"
_BASELINE: Final = "fusewise.baseline_us"
_LEARNED: Final = "fusewise.learned"


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
        return math.inf if self.candidate is None else figures(self.candidate, "time")[0]

    @property
    def pruned(self) -> bool:
        """Whether it was given up on by prediction, with nothing measured."""
        return self.candidate is not None and self.candidate.measured_us is None


@dataclass(frozen=True, slots=True)
class StudyResult:
    """All trials of a study, earlier sittings included."""

    trials: tuple[Trial, ...]
    #: Trials run in this sitting.
    fresh: int
    #: Whether the user ended it.
    interrupted: bool
    objective: Objective = "time"

    @property
    def best(self) -> Trial | None:
        """The trial that the objective likes best; of equals the earliest. None where all failed.

        For two objectives the one with the least time.
        """
        done = [trial for trial in self.trials if trial.candidate is not None and not trial.pruned]
        done = done or [trial for trial in self.trials if trial.candidate is not None]
        return min(done, key=self._figures, default=None)

    def _figures(self, trial: Trial) -> tuple[tuple[float, ...], int]:
        assert trial.candidate is not None
        return figures(trial.candidate, self.objective), trial.number


class Study:
    """Trials under a name, kept in Optuna's storage."""

    def __init__(
        self,
        space: ChoiceSpace,
        *,
        name: str,
        storage: str | optuna.storages.BaseStorage | None = None,
        seed: int = 0,
        objective: Objective = "time",
    ) -> None:
        """Begin a study, or take up the one of that name.

        Args:
            space: what to choose from. A study that was begun with fewer or more choices goes on;
                a choice that it had not counts as left at its default.
            name: under which it is stored.
            storage: Optuna's storage or its URL, such as ``sqlite:///study.db``; None keeps it in
                memory.
            seed: of the sampler. The same seed, space and times give the same proposals.
            objective: what is made small.

        Raises:
            OptionError: the stored study of this name has other values of a choice, or another
                objective.
            StoreError: the storage cannot be used.
        """
        self._space = space
        self._objective = objective
        self._study, self._default = _open(space, name, storage, objective)
        self._known: dict[str, Trial] = {}
        self._numbers = 0
        for trial in _trials(self._study):
            self._learn(trial)
        self._study.sampler = _sampler(seed + self._numbers)
        attrs = [t.user_attrs for t in self._study.get_trials(deepcopy=False)]
        baselines = [found[_BASELINE] for found in attrs if _BASELINE in found]
        #: Microseconds of the default by which the times of earlier sittings are told; None where
        #: there are none.
        self.baseline_us: float | None = baselines[0] if baselines else None
        #: What was learned in the trials of earlier sittings, as it was handed over.
        self.learned: tuple[str, ...] = tuple(f[_LEARNED] for f in attrs if _LEARNED in f)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those that came to an end, earlier sittings included, each configuration once."""
        return tuple(self._known.values())

    def run(
        self,
        evaluate: Callable[[Choices], Sequence[Candidate]],
        *,
        n_trials: int,
        seconds: float | None = None,
        first: Sequence[Choices] = (),
        on_trial: Callable[[Trial], None] | None = None,
        again: Callable[[Choices], bool] = lambda _: False,
        baseline: Callable[[], float | None] = lambda: None,
        learned: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> StudyResult:
        """Try configurations and keep track of the best.

        The default is trial 0, then come those of ``first``, then, where ``n_trials`` are enough
        for all configurations, the others from the nearest to the default on; else what Optuna's
        TPE sampler proposes, which takes choices to depend on each other. None is evaluated twice,
        but for those of which ``again`` says that more may be found.

        Args:
            evaluate: candidates under the given choices that may be used as they are (those that
                failed are passed over). Measured figures count; predicted ones where none is
                measured, and the trial then counts as pruned. A :class:`FusewiseError` makes the
                trial a failed one; any other error ends the study.
            n_trials: trials in all, earlier sittings included.
            seconds: for this sitting. No trial is begun that would not be half done by then, to
                judge by the others.
            first: configurations to try after the default.
            on_trial: called after each trial of this sitting.
            again: whether a configuration that was tried may give something new.
            baseline: microseconds of the default, to be kept with each trial.
            learned: anything else that is to be kept with the last trial; "" for nothing.
            clock: seconds; for tests.
        """
        space, known = self._space, self._known
        began = clock()
        took: list[float] = []
        fresh, interrupted = 0, False
        asked_for: list[Choices] = [dict(space.default), *(dict(c) for c in first)]
        if space.size <= n_trials:
            asked_for += space.grid()
        pending = list({self._key(c): c for c in asked_for}.values())
        pending = [c for c in pending if self._key(c) not in known]
        # TPE may propose what was tried before; such proposals are told their time and not counted,
        # but a sampler that proposes nothing else has to end.
        repeats = 0
        try:
            while self._numbers < n_trials and repeats < 10 * n_trials:
                if seconds is not None:
                    typical = sorted(took)[len(took) // 2] if took else 0.0
                    # Whatever is begun is finished, so the half that is late is made up for.
                    if clock() + typical / 2 > began + seconds:
                        break
                if pending:
                    self._study.enqueue_trial(pending.pop(0))
                asked, choices = self._ask()
                key = self._key(choices)
                if key in known and not again(choices):
                    repeats += 1
                    self._tell(asked, known[key])
                    if len(known) >= space.size and not any(again(t.choices) for t in self.trials):
                        break
                    continue
                start = clock()
                try:
                    trial = _evaluated(self._numbers, choices, evaluate, self._objective)
                except BaseException:
                    self._fail(asked)
                    raise
                took.append(clock() - start)
                # First here: an interrupt may come while it is written down.
                self._learn(trial)
                fresh += 1
                self._keep(asked, trial, baseline(), learned())
                self._tell(asked, trial)
                if on_trial is not None:
                    on_trial(trial)
        except KeyboardInterrupt:
            interrupted = True
        return StudyResult(self.trials, fresh, interrupted, self._objective)

    def _ask(self) -> tuple[optuna.Trial, Choices]:
        asked = self._study.ask()
        return asked, {
            choice: cast(ChoiceValue, asked.suggest_categorical(choice, values))
            for choice, values in self._space.values.items()
        }

    def _fail(self, asked: optuna.Trial) -> None:
        import optuna

        self._study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def _keep(
        self, asked: optuna.Trial, trial: Trial, baseline_us: float | None, learned: str
    ) -> None:
        """Write down what Optuna has no field for."""
        if learned:
            asked.set_user_attr(_LEARNED, learned)
        if baseline_us is not None:
            asked.set_user_attr(_BASELINE, baseline_us)
        if trial.candidate is None:
            asked.set_user_attr(_FAILURE, trial.failure)
        else:
            asked.set_user_attr(_CANDIDATE, msgspec.json.encode(trial.candidate).decode())

    def _tell(self, asked: optuna.Trial, trial: Trial) -> None:
        if trial.candidate is None:
            self._fail(asked)
        else:
            self._study.tell(asked, list(figures(trial.candidate, self._objective)))

    def _learn(self, trial: Trial) -> None:
        """Take in a trial; of those of one configuration the best stands for all."""
        key, self._numbers = self._key(trial.choices), self._numbers + 1
        known = self._known.get(key)
        if known is None or _better(trial, known, self._objective):
            self._known[key] = replace(
                trial, number=trial.number if known is None else known.number
            )

    def _key(self, choices: Mapping[str, ChoiceValue]) -> str:
        """Equal for configurations that choose the same; what is at its default has no say."""
        default = self._default
        return json.dumps(
            {n: v for n, v in sorted(choices.items()) if n not in default or v != default[n]}
        )


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    with warnings.catch_warnings():
        # Both options are years old and still called experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)


def _open(
    space: ChoiceSpace,
    name: str,
    storage: str | optuna.storages.BaseStorage | None,
    objective: Objective,
) -> tuple[optuna.Study, dict[str, ChoiceValue]]:
    """The study, and the default of every choice that it has or had."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    values = {n: list(v) for n, v in space.values.items()}
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            directions=["minimize"] * (2 if objective == "pareto" else 1),
            load_if_exists=True,
        )
        stored: dict[str, Any] = study.user_attrs.get(_SPACE) or {"objective": objective}
        before: dict[str, list[ChoiceValue]] = stored.get("values", {})
        default: dict[str, ChoiceValue] = stored.get("default", {}) | dict(space.default)
        told = {
            "objective": stored.get("objective"),
            "values": before | values,
            "default": default,
        }
        if told != stored:
            study.set_user_attr(_SPACE, told)
    except (optuna.exceptions.OptunaError, SQLAlchemyError) as error:
        raise StoreError(
            str(error), subject=f"study {name!r}", remedy="check the storage's URL and access"
        ) from error
    if stored.get("objective") != objective:
        raise OptionError(
            f"it was begun for {stored.get('objective')}, not {objective}",
            subject=f"study {name!r}",
            remedy="use another name for another objective",
        )
    for choice in sorted(before.keys() & values.keys()):
        if before[choice] != values[choice]:
            raise OptionError(
                f"it was begun with the values {before[choice]} of {choice}, not {values[choice]}",
                subject=f"study {name!r}",
                remedy="use another name for another space",
            )
    return study, default


def _trials(study: optuna.Study) -> list[Trial]:
    """Trials of earlier sittings that came to an end, in their order."""
    found: list[Trial] = []
    for frozen in study.get_trials(deepcopy=False):
        attrs: dict[str, Any] = frozen.user_attrs
        if _CANDIDATE not in attrs and _FAILURE not in attrs:
            continue
        stored = attrs.get(_CANDIDATE)
        candidate = None if stored is None else msgspec.json.decode(stored, type=Candidate)
        found.append(Trial(len(found), dict(frozen.params), candidate, attrs.get(_FAILURE, "")))
    return found


def _evaluated(
    number: int,
    choices: Choices,
    evaluate: Callable[[Choices], Sequence[Candidate]],
    objective: Objective,
) -> Trial:
    try:
        candidates = evaluate(dict(choices))
    except FusewiseError as error:
        return Trial(number, choices, None, str(error))
    measured = [c for c in candidates if c.status == "measured" and c.measured_us is not None]
    usable = measured or [c for c in candidates if c.status != "failed"]
    usable = [c for c in usable if all(map(math.isfinite, figures(c, objective)))]
    if not usable:
        reasons = "; ".join(dict.fromkeys(c.reason for c in candidates if c.reason))
        return Trial(number, choices, None, reasons or "no candidate has a time")
    best = min(usable, key=lambda c: (figures(c, objective), c.schedule.id))
    return Trial(number, choices, best, "")


def _better(trial: Trial, known: Trial, objective: Objective) -> bool:
    """Whether what was found when a configuration was tried again is better than before."""
    if trial.candidate is None or known.candidate is None:
        return known.candidate is None
    if trial.pruned != known.pruned:
        return known.pruned
    return figures(trial.candidate, objective) < figures(known.candidate, objective)
