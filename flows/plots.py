"""Figures for MLflow: drawn without a display, one function per picture."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from components.records import ArmScore


def reward_curve(curve: Sequence[Mapping[str, float]]) -> Figure:
    """Success in practice and the share of groups without a signal, per round."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    rounds = range(1, len(curve) + 1)
    success = [each.get("success", math.nan) for each in curve]
    axes.plot(rounds, success, marker="o", label="success in practice")
    axes.plot(
        rounds,
        [each["zero_variance_rate"] for each in curve],
        marker="s",
        linestyle="--",
        label="groups without signal",
    )
    axes.set(xlabel="round", ylim=(0, 1), title="Practice on aimed tasks")
    axes.legend(loc="best")
    return figure


def arms(scores: Mapping[str, ArmScore]) -> Figure:
    """Held-out success of every arm with its 95% interval."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    names = list(scores)
    means = [scores[name].mean for name in names]
    below = [scores[name].mean - scores[name].low for name in names]
    above = [scores[name].high - scores[name].mean for name in names]
    axes.barh(names, means, xerr=[below, above], capsize=4)
    axes.set(xlim=(0, 1), title="Held-out success, 95% intervals")
    return figure


def confusion(counts: Mapping[str, Mapping[str, int]], columns: Sequence[str]) -> Figure:
    """Endings of the champion's rollouts (rows) against the challenger's on the same tasks and seeds (columns)."""
    rows = list(counts)
    table = [[counts[row].get(column, 0) for column in columns] for row in rows]
    figure = Figure(
        figsize=(2.6 + 0.8 * len(columns), 1.8 + 0.45 * len(rows)), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(table, cmap="Blues", aspect="auto")
    top = max((max(line) for line in table), default=0)
    for y, line in enumerate(table):
        for x, count in enumerate(line):
            shade = "white" if count > top / 2 else "black"
            axes.text(x, y, str(count or ""), ha="center", va="center", color=shade)
    axes.set_xticks(range(len(columns)), [name.replace("_", " ") for name in columns], rotation=30)
    axes.set_yticks(range(len(rows)), [name.replace("_", " ") for name in rows])
    axes.set(xlabel="challenger", ylabel="champion", title="How the same tasks ended")
    return figure
