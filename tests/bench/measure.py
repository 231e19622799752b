"""What a benchmark part returns and how it is printed: values over repeats, ratios to an anchor, aims.

A ratio is of medians. `x times faster` always means anchor / ours for times and ours / anchor for rates, so that above 1
is good; a share of memory or time is ours / anchor, so that below 1 is good. `limit` names a bound that cannot be
beaten fairly, `peer` another product, `ours` what is measured.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True)
class Figure:
    """One measured quantity."""

    name: str
    unit: str
    values: tuple[float, ...]
    role: Literal["ours", "peer", "limit"] = "ours"

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass(frozen=True)
class Ratio:
    """How a figure of ours stands to an anchor."""

    ours: str
    to: str
    """Name of the anchor's figure."""
    meaning: str
    """What the number says: `times faster`, `of the memory`, ..."""
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def aim(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else ""

    @property
    def met(self) -> bool | None:
        """None without an aim."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.value <= self.at_most if self.at_most is not None else None


@dataclass(frozen=True)
class Part:
    """All that one part of the benchmark found."""

    name: str
    setup: str
    """What was run, on what, how often."""
    figures: tuple[Figure, ...]
    ratios: tuple[Ratio, ...]
    facts: dict[str, Any]
    """What the sides did, so that a reader can check that they did the same."""


def faster(ours: Figure, anchor: Figure, at_least: float | None = None) -> Ratio:
    """Seconds against seconds."""
    value = anchor.median / ours.median
    return Ratio(ours.name, anchor.name, "times as fast", value, at_least=at_least)


def speed(ours: Figure, anchor: Figure, at_least: float | None = None) -> Ratio:
    """A rate against a rate."""
    value = ours.median / anchor.median
    return Ratio(ours.name, anchor.name, "times as fast", value, at_least=at_least)


def share(ours: Figure, anchor: Figure, meaning: str, at_most: float | None = None) -> Ratio:
    """Ours as a part of the anchor's, where less is better."""
    value = ours.median / anchor.median
    return Ratio(ours.name, anchor.name, meaning, value, at_most=at_most)


def render(part: Part) -> str:
    """The part as text: each figure with minimum, median and maximum, its ratios below it."""
    lines = [f"{part.name}: {part.setup}"]
    lines.append(f"  {'':<52}{'min':>9}{'median':>9}{'max':>9}")
    for figure in part.figures:
        numbers = (min(figure.values), figure.median, max(figure.values))
        name = f"{figure.name}, {figure.unit}"
        mark = {"ours": "", "peer": " (peer)", "limit": " (limit)"}[figure.role]
        lines.append(f"  {name + mark:<52}" + "".join(f"{short(number):>9}" for number in numbers))
        lines += [_ratio_line(ratio) for ratio in part.ratios if ratio.ours == figure.name]
    lines += [f"  {key}: {value}" for key, value in part.facts.items()]
    return "\n".join(lines)


def _ratio_line(ratio: Ratio) -> str:
    verdict = {None: "", True: ", met", False: ", NOT MET"}[ratio.met]
    aim = f"   aim {ratio.aim}{verdict}" if ratio.aim else ""
    return f"      {short(ratio.value)} {ratio.meaning}: {ratio.to}{aim}"


def short(number: float) -> str:
    """Three significant digits, never in powers of ten."""
    if number == 0 or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}" if abs(number) >= 0.001 else f"{number:.5f}"


def as_data(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The parts as plain JSON data, medians and verdicts included."""
    made = []
    for part in parts:
        data = asdict(part)
        for figure, plain in zip(part.figures, data["figures"], strict=True):
            plain |= {"min": min(figure.values), "median": figure.median, "max": max(figure.values)}
        for ratio, plain in zip(part.ratios, data["ratios"], strict=True):
            plain["met"] = ratio.met
        made.append(data)
    return made
