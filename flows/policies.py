"""Policies as the flows handle them: a base model, an adapter by digest, an engine that samples from both.

A checkpoint is a folder of the file store: an adapter in peft form with its completeness mark, or `base.json` alone for
the untrained model, whose adapter is None.
"""

import hashlib
import importlib
import json
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

from components import plugins
from components.errors import ConfigError, StoreError
from components.protocols import Engine, Renderer, World
from components.tokens import ChatRenderer
from flows.resources import Resources
from flows.settings import Settings
from store import nights
from store.registry import MARK, Registry, Version

ABOUT = "nightshift.json"
"""File of a checkpoint that says what it was trained on."""
ADAPTER = "adapter"
"""Tag of a registered version: digest of its adapter folder, empty for the base model."""


class Champion(NamedTuple):
    version: str
    adapter: str | None
    """Digest of the adapter's folder; None is the base model."""


def versions(settings: Settings) -> dict[str, str]:
    """What decides which tokens are sampled."""
    return {
        "model": settings.model.name,
        "engine": settings.engine.name,
        "harness": plugins.version_of(plugins.make("harnesses", settings.harness.name)),
        "environment": environment_version(settings),
    }


def environment_version(settings: Settings) -> str:
    return plugins.version_of(world_of(settings)) if settings.environment else "none"


def world_of(settings: Settings) -> World:
    """The environment plug-in.

    Raises:
        ConfigError: the settings name none.
    """
    if settings.environment is None:
        raise ConfigError("this needs an environment: set [environment] name in nightshift.toml")
    return plugins.make("environments", settings.environment.name, settings.environment.options)


def base_folder(r: Resources) -> Path:
    """The base model's weights, made ready on first use."""
    from components.learner.policy import materialise

    return materialise(r.settings.model.name, r.home / "models")


def load(r: Resources, adapter: str | None, seed: int | None = None) -> Any:
    """A policy with this adapter, or with a fresh one when it is None."""
    from components.learner.policy import ModelSettings, load_policy, use_threads

    use_threads(r.threads)
    section = r.settings.model
    settings = ModelSettings(section.lora_rank, section.lora_alpha, section.dtype)
    folder = r.files.folder(adapter) if adapter else None
    chosen = r.settings.seed if seed is None else seed
    return load_policy(base_folder(r), folder, settings, chosen)


def renderer_of(r: Resources, policy: Any) -> Renderer:
    """How messages become this model's tokens."""
    return cast("Renderer", ChatRenderer(policy.tokenizer, r.settings.model.call_format))


def _engine(r: Resources, policy: Any, version: str, earlier: Any) -> Engine:
    """An engine that samples from this policy; stop tokens are the renderer's.

    `earlier`: one of these settings that nobody needs any more; in this process it gives its memory, whose first touch
    is slow.
    """
    settings = r.settings
    stop_ids = renderer_of(r, policy).stop_ids
    if settings.engine.name == "vllm":
        options = {"url": settings.engine.url, "stop_ids": stop_ids}
        return plugins.make("rollout", "vllm", options).connect(version)
    from components.rollout.packed import pack_linears

    rollout = importlib.import_module(f"components.rollout.{settings.engine.name}")
    model = policy.merged()
    pack_linears(model)
    if isinstance(earlier, rollout.TransformersEngine):
        earlier.reset(version, model)
        return earlier
    options = rollout.EngineSettings(
        num_slots=settings.engine.slots,
        slot_tokens=settings.model.max_context,
        stop_ids=stop_ids,
    )
    return rollout.TransformersEngine(model, version, options)


class Actor(NamedTuple):
    """A policy as it plays."""

    engine: Engine
    renderer: Renderer
    version: str


def actor_of(r: Resources, policy: Any, version: str, earlier: Actor | None = None) -> Actor:
    """The policy with an engine; `earlier`: one that does not play any more, whose engine is taken over."""
    engine = _engine(r, policy, version, earlier.engine if earlier else None)
    return Actor(engine, renderer_of(r, policy), version)


def tokens_per_s(engine: Any) -> float:
    """Sampled tokens per second of an engine in this process; 0 for one elsewhere."""
    stats = getattr(engine, "stats", None)
    return (stats.tokens_per_s or 0.0) if stats else 0.0


def version_name(adapter: str | None) -> str:
    """The policy version that trajectories carry."""
    return f"adapter-{adapter[:16]}" if adapter else "base"


def keep(r: Resources, policy: Any, about: Mapping[str, Any]) -> str:
    """Store a policy's adapter with its completeness mark; the digest of its folder."""
    with tempfile.TemporaryDirectory(dir=_scratch(r)) as scratch:
        folder = Path(scratch)
        policy.save_adapter(folder)
        (folder / ABOUT).write_text(json.dumps(dict(about), indent=1, sort_keys=True))
        mark_complete(folder)
        return r.files.put_folder(folder)


def mark_complete(folder: Path) -> None:
    """Write the mark that lists every file with size and digest; written last."""
    files = {
        path.relative_to(folder).as_posix(): [
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        ]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / MARK).write_text(json.dumps({"files": files}, sort_keys=True))


def _scratch(r: Resources) -> Path:
    r.work.mkdir(parents=True, exist_ok=True)
    return r.work


# --- champions --------------------------------------------------------------------------------------------------------


def registry_of(r: Resources) -> Registry:
    return Registry(r.tracking)


def ensure_champion(r: Resources) -> Champion:
    """The version that serves; the untrained base model before anything was trained.

    Raises:
        StoreError: there are trained versions, but none is the champion; none is taken in its place.
    """
    registry = registry_of(r)
    found = registry.resolve(r.settings.agent, "champion")
    if found is None:
        trained = [each for each in registry.versions(r.settings.agent) if each.tags.get(ADAPTER)]
        if trained:
            raise StoreError(
                f"agent {r.settings.agent!r} has no champion, though versions up to {trained[0].version} "
                "were trained: its version or its alias was deleted. What serves now may go on; choose one "
                "by 'nightshift promote --version N --reason \"...\"'"
            )
        number = registry.register(r.settings.agent, _base_checkpoint(r), {ADAPTER: ""}, None)
        found = registry.promote(
            r.settings.agent,
            number,
            "nightshift",
            "the base model before any night",
            datetime.now(UTC),
        )
    return champion_of(found)


def champion_of(version: Version) -> Champion:
    return Champion(version.version, version.tags.get(ADAPTER) or None)


def champion_of_night(r: Resources, night: str) -> Champion:
    """The champion when the night began: what a promotion in between does not change."""
    with r.db.connect() as conn:
        row = nights.get(conn, r.settings.agent, night)
    version = row.champion_version if row else None
    found = registry_of(r).version(r.settings.agent, version) if version else None
    return champion_of(found) if found else ensure_champion(r)


def _base_checkpoint(r: Resources) -> Path:
    with tempfile.TemporaryDirectory(dir=_scratch(r)) as scratch:
        folder = Path(scratch)
        (folder / "base.json").write_text(json.dumps({"model": r.settings.model.name}))
        mark_complete(folder)
        digest = r.files.put_folder(folder)
    return r.files.folder(digest)
