"""The model registry: versions of `nightshift-<agent>` in MLflow, and the aliases that say which one serves.

    champion     the version that serves
    challenger   the version offered tonight
    previous     the champion before this one

A version is registered only from a complete checkpoint: its folder holds a file `COMPLETE`, written last, with
{"files": {name: [size, sha256]}} for every other file. An alias is read from the model itself, never from a search, and
one that points nowhere is an error: nobody serves "the newest instead".
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from components.errors import ConfigError, PromotionRefused, StoreError
from store.runs import Tracking, translated

Alias = Literal["champion", "challenger", "previous"]

MARK = "COMPLETE"
DIGEST = "checkpoint_digest"
PREDECESSOR = "predecessor"
READY = "READY"


@dataclass(frozen=True, slots=True)
class Version:
    """A registered model version."""

    agent: str
    version: str
    folder: Path
    run_id: str | None
    status: str
    """`READY`, or what the registry says instead."""
    tags: dict[str, str]
    """Lineage: night, dataset digests, strategy id, parent version; and who promoted it, when and why."""

    @property
    def digest(self) -> str:
        """Digest of the checkpoint's content."""
        return self.tags[DIGEST]


def incomplete(folder: Path) -> str | None:
    """Why a checkpoint is not complete, or None when every file is whole."""
    mark = folder / MARK
    if not mark.is_file():
        return f"it has no {MARK!r} file, so writing it was interrupted"
    try:
        expected = json.loads(mark.read_text())["files"]
        items = [(str(name), int(size), str(made)) for name, (size, made) in expected.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MARK!r} file cannot be read: {error!r}"
    present = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    } - {MARK}
    unlisted = sorted(present - {name for name, _, _ in items})
    if unlisted or not items:
        return f"its {MARK!r} file does not list {unlisted[0] if unlisted else 'any file'!r}"
    for name, size, made in items:
        found = (folder / name).stat().st_size if name in present else None
        if found != size:
            return f"file {name!r} has {found} bytes, expected {size}"
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != made:
                return f"file {name!r} has other content than was written"
    return None


def is_complete(folder: Path) -> bool:
    """Whether every file that the completeness mark lists is there, whole and unchanged."""
    return incomplete(folder) is None


@dataclass(frozen=True, slots=True)
class Registry:
    """The registered models."""

    tracking: Tracking

    def register(
        self, agent: str, checkpoint: Path, lineage: Mapping[str, str], run_id: str | None
    ) -> str:
        """Make a version of a complete checkpoint; the version. The same checkpoint and lineage make one version.

        Raises:
            StoreError: the checkpoint is not complete; the registry was not touched.
        """
        why = incomplete(checkpoint)
        if why is not None:
            raise StoreError(
                f"checkpoint {str(checkpoint)!r} is not complete and was not registered: {why}. "
                "Resume training from the last complete checkpoint."
            )
        name = _name(agent)
        made = hashlib.sha256((checkpoint / MARK).read_bytes()).hexdigest()
        tags = {**lineage, DIGEST: made}
        client = self.tracking.client
        with translated():
            if self._aliases(agent) is None:
                client.create_registered_model(name)
            for found in client.search_model_versions(f"name = '{name}'"):
                if {key: found.tags.get(key) for key in tags} == tags:
                    return str(found.version)
            source = checkpoint.resolve().as_uri()
            version = client.create_model_version(name, source, run_id, tags=tags)
        return str(version.version)

    def resolve(self, agent: str, alias: Alias) -> Version | None:
        """The version that an alias points to, or None when the alias was never set.

        Raises:
            StoreError: the alias points to a version that does not exist.
        """
        number = (self._aliases(agent) or {}).get(alias)
        if number is None:
            return None
        version = self.version(agent, number)
        if version is None:
            raise StoreError(
                f"alias {alias!r} of {_name(agent)!r} points to version {number!r}, a version that does not exist. "
                "Go on serving the last good version, and set the alias by 'nightshift promote' or "
                "'nightshift rollback'."
            )
        return version

    def version(self, agent: str, number: str) -> Version | None:
        """A version by its number, or None when there is no such version."""
        try:
            found = self.tracking.client.get_model_version(_name(agent), str(number))
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise StoreError(f"MLflow refused: {error}") from error
        return _version(agent, found)

    def versions(self, agent: str) -> list[Version]:
        """All versions, newest first."""
        with translated():
            found = self.tracking.client.search_model_versions(f"name = '{_name(agent)}'")
        return sorted(
            (_version(agent, item) for item in found), key=lambda item: -int(item.version)
        )

    def offer(self, agent: str, number: str) -> None:
        """Make a version the challenger.

        Raises:
            PromotionRefused: it does not exist, is not ready, or its checkpoint is not complete.
        """
        self._fit(agent, number)
        self._set(agent, "challenger", number)

    def promote(self, agent: str, number: str, actor: str, reason: str, now: datetime) -> Version:
        """Make a version the champion, and the champion so far the previous one; idempotent.

        Raises:
            PromotionRefused: it does not exist, is not ready, or its checkpoint is not complete.
        """
        version = self._fit(agent, number)
        aliases = self._aliases(agent) or {}
        before = aliases.get("champion")
        if before != version.version:
            if before is not None and self.version(agent, before) is not None:
                self._tag(agent, version.version, {PREDECESSOR: before})
                self._set(agent, "previous", before)
            self._set(agent, "champion", version.version)
            self._tag(agent, version.version, _who("promoted", actor, reason, now))
        if aliases.get("challenger") == version.version:
            self._unset(agent, "challenger")
        return version

    def rollback(self, agent: str, actor: str, reason: str, now: datetime) -> Version:
        """Make the previous champion the champion again, and its predecessor the previous one.

        Raises:
            PromotionRefused: there is no previous champion, or it cannot serve.
        """
        aliases = self._aliases(agent) or {}
        number = aliases.get("previous")
        if number is None:
            raise PromotionRefused(
                f"{_name(agent)!r} has no previous champion to go back to; promote a version by number instead"
            )
        version = self._fit(agent, number)
        champion = aliases.get("champion")
        if champion is not None and champion != number and self.version(agent, champion):
            self._tag(agent, champion, _who("rolled_back", actor, reason, now))
        self._set(agent, "champion", number)
        # Last, so that a rollback cut off here is completed by the next one instead of going back twice.
        earlier = version.tags.get(PREDECESSOR)
        if earlier is None or self.version(agent, earlier) is None:
            self._unset(agent, "previous")
        else:
            self._set(agent, "previous", earlier)
        return version

    def _aliases(self, agent: str) -> dict[str, str] | None:
        """Alias -> version, read from the model; None when there is no such model."""
        try:
            found = self.tracking.client.get_registered_model(_name(agent)).aliases
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise StoreError(f"MLflow refused: {error}") from error
        # PostgreSQL gives versions as numbers, a server as text.
        return {alias: str(number) for alias, number in found.items()}

    def _fit(self, agent: str, number: str) -> Version:
        """The version, provided that it can serve."""
        version = self.version(agent, number)
        if version is None:
            raise PromotionRefused(f"{_name(agent)!r} has no version {number!r}")
        if version.status != READY:
            raise PromotionRefused(
                f"version {number!r} of {_name(agent)!r} is {version.status!r}, expected {READY!r}; "
                "wait until it is registered"
            )
        why = incomplete(version.folder)
        if why is not None:
            raise PromotionRefused(
                f"version {number!r} of {_name(agent)!r} cannot serve, its checkpoint "
                f"{str(version.folder)!r} is not complete: {why}"
            )
        return version

    def _set(self, agent: str, alias: Alias, number: str) -> None:
        with translated():
            self.tracking.client.set_registered_model_alias(_name(agent), alias, number)

    def _unset(self, agent: str, alias: Alias) -> None:
        with translated():
            self.tracking.client.delete_registered_model_alias(_name(agent), alias)

    def _tag(self, agent: str, number: str, tags: Mapping[str, str]) -> None:
        with translated():
            for key, value in tags.items():
                self.tracking.client.set_model_version_tag(_name(agent), number, key, value)


def _who(action: str, actor: str, reason: str, now: datetime) -> dict[str, str]:
    return {
        f"{action}_by": actor,
        f"{action}_at": now.isoformat(),
        f"{action}_because": reason,
    }


def _name(agent: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", agent):
        raise ConfigError(
            f"agent name {agent!r} must be 1 to 100 letters, digits, dots, dashes or underscores"
        )
    return f"nightshift-{agent}"


def _version(agent: str, found: ModelVersion) -> Version:
    return Version(
        agent=agent,
        version=str(found.version),
        folder=Path(unquote(urlsplit(found.source or "").path)),
        run_id=found.run_id or None,
        status=str(found.status),
        tags=dict(found.tags),
    )
