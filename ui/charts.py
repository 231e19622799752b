"""The charts: the success curve, the paired difference, seconds per stage, cases per night.

A series differs by colour and by shape, never by colour alone; zero and the interval are drawn, not implied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

ARMS = ("champion", "SFT only", "challenger")
_COLOURS = ("#7a8699", "#b7791f", "#2f74c0")
_SHAPES = ("circle", "square", "triangle-up")
NIGHTS_IN_FIGURES = 6
"""With more nights the figures would overlap; the tooltip has them."""


@dataclass(frozen=True, slots=True)
class Score:
    """Success of one arm on one night's held-out tasks."""

    night: str
    arm: str
    mean: float
    low: float
    """Lower end of the 95% interval."""
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Challenger minus champion on one set of tasks."""

    name: str
    mean: float
    num_tasks: int
    low: float | None = None
    high: float | None = None


def success_curve(scores: Sequence[Score]) -> alt.LayerChart | alt.FacetChart:
    """Success by night with 95% intervals, one line per arm; few nights carry their figures."""
    frame = pd.DataFrame(
        [(s.night, s.arm, s.mean, s.low, s.high) for s in scores],
        columns=["night", "arm", "success", "low", "high"],
    )
    arm = alt.Color(
        "arm:N",
        scale=alt.Scale(domain=list(ARMS), range=list(_COLOURS)),
        legend=alt.Legend(title=None, orient="top", symbolSize=90, symbolOpacity=1),
    )
    shape = alt.Shape("arm:N", scale=alt.Scale(domain=list(ARMS), range=list(_SHAPES)))
    x = alt.X("night:O", title="night", axis=alt.Axis(labelAngle=0))
    shift = alt.XOffset("arm:N", scale=alt.Scale(domain=list(ARMS)))
    y = alt.Y(
        "success:Q",
        title="success on held-out tasks",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%", tickCount=5),
    )
    chart = alt.Chart(frame)
    told = [
        alt.Tooltip("night:N"),
        alt.Tooltip("arm:N"),
        alt.Tooltip("success:Q", format=".1%"),
        alt.Tooltip("low:Q", format=".1%", title="95% from"),
        alt.Tooltip("high:Q", format=".1%", title="95% to"),
    ]
    bars = chart.mark_rule(strokeWidth=2).encode(
        x=x, xOffset=shift, y=alt.Y("low:Q"), y2="high:Q", color=arm
    )
    dots = chart.mark_point(filled=True, size=95, opacity=1).encode(
        x=x, xOffset=shift, y=y, color=arm, shape=shape, tooltip=told
    )
    lines = chart.mark_line(strokeWidth=1.5, opacity=0.35).encode(
        x=x, xOffset=shift, y=y, color=arm
    )
    layers = [lines, bars, dots]
    if len({score.night for score in scores}) <= NIGHTS_IN_FIGURES:
        layers.append(
            chart.mark_text(dx=9, align="left", fontSize=11).encode(
                x=x, xOffset=shift, y=y, color=arm, text=alt.Text("success:Q", format=".0%")
            )
        )
    return alt.layer(*layers).properties(height=280)


def differences(rows: Sequence[Difference]) -> alt.LayerChart | alt.FacetChart:
    """Challenger minus champion in points: a diamond with its interval for all tasks, a circle per slice."""
    frame = pd.DataFrame(
        [(r.name, r.mean, r.low, r.high, r.num_tasks, r.low is not None) for r in rows],
        columns=["name", "difference", "low", "high", "tasks", "is_paired"],
    )
    order = [row.name for row in rows]
    y = alt.Y(
        "name:N",
        sort=order,
        title=None,
        axis=alt.Axis(labelLimit=220, labelOverlap=False, labelFlush=False),
    )
    x = alt.X(
        "difference:Q",
        title="challenger minus champion, same tasks and seeds",
        axis=alt.Axis(format="+.0%", tickCount=6),
    )
    shape = alt.Shape(
        "is_paired:N",
        scale=alt.Scale(domain=[True, False], range=["diamond", "circle"]),
        legend=None,
    )
    told: list[Any] = [
        alt.Tooltip("name:N", title="tasks"),
        alt.Tooltip("difference:Q", format="+.1%"),
        alt.Tooltip("tasks:Q", title="number of tasks"),
    ]
    zero = (
        alt.Chart(pd.DataFrame({"x": [0]}))
        .mark_rule(strokeDash=[4, 3], color=_COLOURS[0])
        .encode(x="x:Q")
    )
    chart = alt.Chart(frame)
    bars = chart.mark_rule(strokeWidth=2.5, color=_COLOURS[2]).encode(y=y, x="low:Q", x2="high:Q")
    dots = chart.mark_point(filled=True, size=110, opacity=1, color=_COLOURS[2]).encode(
        y=y, x=x, shape=shape, tooltip=told
    )
    return alt.layer(zero, bars, dots).properties(height=46 + 26 * len(rows))


def stage_seconds(seconds: Sequence[tuple[str, float]]) -> alt.LayerChart | alt.FacetChart:
    """Seconds per stage, in the order of the night."""
    frame = pd.DataFrame(list(seconds), columns=["stage", "seconds"])
    longest = max((length for _, length in seconds), default=0.0) or 1.0
    y = alt.Y("stage:N", sort=None, title=None, axis=alt.Axis(labelOverlap=False, labelFlush=False))
    x = alt.X(
        "seconds:Q",
        title="seconds",
        axis=alt.Axis(tickCount=5),
        scale=alt.Scale(domain=[0, 1.15 * longest]),
    )
    chart = alt.Chart(frame)
    bars = chart.mark_bar(color=_COLOURS[2], height=14).encode(y=y, x=x)
    names = chart.mark_text(align="left", dx=5, fontSize=11, color="#7a8699").encode(
        y=y, x=x, text=alt.Text("seconds:Q", format=",.1f")
    )
    return alt.layer(bars, names).properties(height=36 + 24 * len(seconds))
