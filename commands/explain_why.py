"""One fusion looked at closely, as tables in a terminal."""

from __future__ import annotations

import click
from rich.table import Table

from fusewise.commands.output import microseconds, result_console, result_table, shortened
from fusewise.compiler.explaining.report import Side, Why

#: Features of each group that are shown, those that do most first.
_FEATURES = 6
_LIST = 40


def show_why(why: Why, rows: int) -> None:
    """Print what became of the fusion, what would become of its opposite, and what drives it."""
    fusion = why.fusion
    click.echo(f"{why.a} with {why.b}: {_verdict(why)}")
    if fusion is not None:
        score = "/".join(map(str, fusion.inductor_score or ()))
        asked = ", ".join(map(str, fusion.rounds))
        click.echo(f"  asked as {fusion.a} with {fusion.b} in round {asked}, score {score}")
    click.echo(f"  {_change(why)}")
    click.echo(f"  {_measured(why)}")
    console = result_console()
    console.print(_sides(why))
    if any(side.attribution.contributions for side in (*why.before, *why.after)):
        console.print(_features(why, min(rows, _FEATURES)))
    ours = "the greater of memory and arithmetic, plus the launch"
    if not _by_learned(why):
        click.echo(f"  the roofline predicts: {ours}")
    elif len(_by_learned(why)) < len((*why.before, *why.after)):
        click.echo(f"  where the roofline predicts, it is {ours}")


def _by_learned(why: Why) -> list[Side]:
    """Groups whose prediction is what was learned; of others that is too uncertain."""
    every = (*why.before, *why.after)
    return [s for s in every if s.attribution.contributions and s.predicted_by != "roofline"]


def _verdict(why: Why) -> str:
    fusion = why.fusion
    if why.change == "removed":
        how = "taken" if fusion is not None and fusion.taken else "together by way of others"
        return f"in one kernel ({how})"
    if fusion is None:
        return "apart"
    if fusion.taken:
        return "fused by Inductor, apart in the chosen schedule"
    words = f"{fusion.reason}: {fusion.detail}" if fusion.detail else fusion.reason
    return f"apart, legal but not taken; {words}" if fusion.legal else f"apart, refused; {words}"


def _change(why: Why) -> str:
    if not why.legal:
        ground = f"{why.reason} ({why.detail})"
        return (
            f"{_plan(why)} with it {why.change} cannot be built: {ground}; it would gain "
            f"{_gain(why)} by prediction"
        )
    return (
        f"{_plan(why)} with it {why.change} gains {_gain(why)} by prediction: "
        f"{microseconds(why.predicted_us)} to {microseconds(why.predicted_changed_us)}"
    )


def _plan(why: Why) -> str:
    return {
        "inductor": "Inductor's plan",
        "rules": "the plan under rules",
        "store": "the stored plan",
        "plan file": "the plan of the file",
        "predicted": "the plan predicted to be best",
    }[why.plan]


def _gain(why: Why) -> str:
    return (
        f"{why.predicted_gain_us:.2f} µs "
        f"({why.predicted_gain_low_us:.2f} to {why.predicted_gain_high_us:.2f})"
    )


def _measured(why: Why) -> str:
    if why.measured_us is None or why.measured_changed_us is None:
        return f"not measured: {why.not_measured}" if why.not_measured else "not measured"
    gain = why.measured_us - why.measured_changed_us
    now, then = why.measured_interval, why.measured_changed_interval
    assert now is not None and then is not None, "both come with an interval"
    sure = now[0] > then[1] or then[0] > now[1]
    return (
        f"measured in turns: {microseconds(why.measured_us)} to "
        f"{microseconds(why.measured_changed_us)}, a gain of {gain:.2f} µs"
        f"{'' if sure else ', within the noise'}"
    )


def _sides(why: Why) -> Table:
    rates = "launch", "memory", "arithmetic", "around"
    table = result_table("", "group", "predicted (90 %)", "by", *rates)
    for name, sides in (("before", why.before), ("after", why.after)):
        for side in sides:
            parts = side.attribution
            table.add_row(
                name,
                shortened("+".join(side.nodes), _LIST),
                f"{microseconds(side.predicted_us)} ({side.predicted_low_us:.2f} to "
                f"{side.predicted_high_us:.2f})",
                side.predicted_by,
                f"{parts.launch_us:.2f}",
                f"{parts.memory_us:.2f}",
                f"{parts.arithmetic_us:.2f}",
                f"{side.around_us:.2f}",
            )
    return table


def _features(why: Why, most: int) -> Table:
    """What the trees make of the features that do most, group by group."""
    sides = (*(("before", s) for s in why.before), *(("after", s) for s in why.after))
    drivers: dict[str, float] = {}
    for _, side in sides:
        for c in side.attribution.contributions:
            drivers[c.feature] = max(drivers.get(c.feature, 0.0), abs(c.shap))
    chosen = sorted(drivers, key=lambda name: (-drivers[name], name))[:most]
    headers = [f"{when} {shortened('+'.join(side.nodes), 24)}" for when, side in sides]
    drives = (
        "what drives the predictions: value, and the factor it puts on the time"
        if _by_learned(why)
        else "what the model says, too uncertain to count: value, and factor on the time"
    )
    table = result_table("feature", *headers, title=drives)
    for name in chosen:
        table.add_row(name, *(_cell(side, name) for _, side in sides))
    return table


def _cell(side: Side, feature: str) -> str:
    for c in side.attribution.contributions:
        if c.feature == feature:
            return f"{c.value:.2f} {c.unit.split()[0]}: x{c.factor:.2f}"
    return "-"
