"""What settings name, checked before a night starts: every plug-in exists and takes its options.

A wrong option of the last stage is said in the first seconds, not after hours of training.
"""

from collections.abc import Iterator
from dataclasses import fields

from pydantic import TypeAdapter, ValidationError

from components import plugins
from components.credit.order import in_order
from components.errors import ConfigError
from flows.settings import Plugin, Settings


def named(settings: Settings) -> Iterator[tuple[str, Plugin]]:
    """Kind and plug-in of everything that the settings name."""
    practice = settings.train.rl
    yield "mining", settings.mining.miner
    yield "mining", settings.mining.modes
    yield "curation", settings.curation.rewriter
    yield "memory", settings.memory.writer
    yield "harnesses", settings.harness
    yield "curriculum", practice.curriculum
    yield "synthesis", practice.proposer
    yield "evaluation", Plugin(name=settings.gate.name, options=settings.gate.options)
    yield from (("rewards", part) for part in practice.rewards)
    yield from (("credit", part) for part in practice.credit)
    if settings.environment is not None:
        yield "environments", settings.environment
    if settings.ingestion.format != "auto":
        yield "ingestion", Plugin(name=settings.ingestion.format)


def check_plugins(settings: Settings) -> None:
    """Make every plug-in once.

    Raises:
        UnknownPlugin: a name that nobody has.
        ConfigError: an option that a plug-in does not take, or parts that do not go together.
    """
    made = [(kind, plugins.make(kind, part.name, part.options)) for kind, part in named(settings)]
    in_order([plug_in for kind, plug_in in made if kind == "credit"])
    _check_loss(settings)


def _check_loss(settings: Settings) -> None:
    from components.learner.loss import LossSettings

    given, accepted = settings.train.rl.loss, [field.name for field in fields(LossSettings)]
    unknown = sorted(set(given) - set(accepted))
    if unknown:
        raise ConfigError(
            f"unknown setting 'train.rl.loss.{unknown[0]}'. Accepted here: {', '.join(accepted)}"
        )
    try:
        TypeAdapter(LossSettings).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(("train", "rl", "loss", *map(str, first["loc"])))
        raise ConfigError(f"setting {place!r}: {first['msg']}, got {first['input']!r}") from error
