"""Figures for MLflow: drawn without a display, one function per picture."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from components.records import ArmScore


def reward_curve(curve: Sequence[Mapping[str, float]]) -> Figure:
    """Success in practice and the share of groups without a signal, per round."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    rounds = range(1, len(curve) + 1)
    axes.plot(rounds, [each["success"] for each in curve], marker="o", label="success in practice")
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


def modes(counts: Mapping[str, int]) -> Figure:
    """Failures per mode."""
    figure = Figure(figsize=(7, 0.6 + 0.35 * max(1, len(counts))), layout="constrained")
    axes = figure.subplots()
    axes.barh(list(counts), list(counts.values()))
    axes.set(title="Failures per mode")
    return figure
