"""The short report of a night, as plain text: what a person reads in the morning before opening the app."""

from components.records import ArmScore, NightSummary, PairedStats

ARMS = {
    "champion": "champion (served the day)",
    "sft_only": "SFT alone",
    "challenger": "challenger (SFT + RL)",
    "challenger_without_memory": "challenger, no memory",
}
RULE = "-" * 78


def render(night: str, agent: str, summary: NightSummary) -> str:
    """The whole report."""
    parts = [
        f"Night {night} of {agent}",
        RULE,
        *_success(summary),
        *_gate(summary),
        *_modes(summary),
        *_memory(summary),
        *_stages(summary),
        *_rates(summary),
        *([summary.note, ""] if summary.note else []),
        "Look further:",
        "  nightshift ui          review failures, data, memory and the promotion",
        "  nightshift mlflow      runs, curves, artifacts and the registry",
        "  " + _next_command(summary),
    ]
    return "\n".join(parts)


def _next_command(summary: NightSummary) -> str:
    if summary.accepted:
        return 'nightshift promote --reason "..."   then: nightshift day && nightshift night'
    return "nightshift report      this report again"


def _success(summary: NightSummary) -> list[str]:
    if not summary.arms:
        return ["No policy was evaluated.", ""]
    lines = ["Held-out success, 95% interval over tasks"]
    lines += [_arm(ARMS.get(name, name), score) for name, score in summary.arms.items()]
    lines += [_pair(name, stats) for name, stats in summary.paired.items()]
    return [*lines, ""]


def _arm(label: str, score: ArmScore) -> str:
    size = f"{score.num_tasks} tasks x {score.num_seeds} seed{'s' if score.num_seeds > 1 else ''}"
    return f"  {label:<28}{score.mean:7.1%}   [{score.low:.1%}, {score.high:.1%}]   {size}"


def _pair(name: str, stats: PairedStats) -> str:
    first, _, second = name.partition("-")
    label = f"{first} - {second}".replace("_", " ")
    return (
        f"  {label:<28}{100 * stats.difference:+6.1f} points [{100 * stats.low:+.1f}, {100 * stats.high:+.1f}], "
        f"p = {stats.p_value:.2g}, {stats.wins} better, {stats.losses} worse"
    )


def _gate(summary: NightSummary) -> list[str]:
    if summary.accepted is None:
        return ["Gate: nothing was offered.", ""]
    answer = "accepted, waits for a person" if summary.accepted else "refused"
    marks = {True: "+", False: "-", None: "?"}
    lines = [f"Gate: {answer}"]
    lines += [f"  {marks[item.passed]} {item.name}: {item.reason}" for item in summary.criteria]
    return [*lines, ""]


def _modes(summary: NightSummary) -> list[str]:
    if not summary.modes:
        return ["Failure modes: none tonight.", ""]
    top = sorted(summary.modes, key=lambda mode: (-mode.count, mode.name))[:6]
    lines = [f"  {mode.count:4d}  {mode.name} ({mode.status})" for mode in top]
    return [f"Top failure modes, {len(summary.modes)} in all", *lines, ""]


def _memory(summary: NightSummary) -> list[str]:
    if not summary.lessons:
        return ["Memory: nothing written.", ""]
    lines = [f"  {lesson}" for lesson in summary.lessons[:5]]
    more = len(summary.lessons) - len(lines)
    return [
        f"Memory: {len(summary.lessons)} lessons written (revision {summary.memory_revision})",
        *lines,
        *([f"  ... and {more} more"] if more > 0 else []),
        "",
    ]


def _stages(summary: NightSummary) -> list[str]:
    lines = [f"  {stage.name:<10}{stage.seconds:8.1f}   {stage.line}" for stage in summary.stages]
    total = sum(stage.seconds for stage in summary.stages)
    return ["Seconds per stage", *lines, f"  {'all':<10}{total:8.1f}", ""]


def _rates(summary: NightSummary) -> list[str]:
    named = {
        "sampled_tokens_per_s": "sampled tokens per second",
        "trained_tokens_per_s": "trained tokens per second",
    }
    lines = [
        f"  {label:<28}{summary.rates[name]:8.0f}"
        for name, label in named.items()
        if name in summary.rates
    ]
    return [*lines, ""] if lines else []
