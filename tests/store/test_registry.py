"""The registry: complete checkpoints only, and aliases that are read from the model."""

import hashlib
import json
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from components.errors import ConfigError, PromotionRefused, StoreError
from store.db import Database
from store.registry import MARK, Registry, incomplete, is_complete
from store.runs import Tracking

pytestmark = pytest.mark.postgres


@pytest.fixture
def registry(tracking: Tracking) -> Registry:
    return Registry(tracking)


@pytest.fixture
def agent() -> str:
    """An agent that no other test uses: the registry is not rolled back."""
    return f"desk-{uuid4().hex[:8]}"


def checkpoint(folder: Path, content: str = "weights") -> Path:
    """A complete checkpoint of two files."""
    folder.mkdir(parents=True)
    files = {"adapter.safetensors": content.encode(), "config.json": b"{}"}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    listed = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()}
    (folder / MARK).write_text(json.dumps({"files": listed}))
    return folder


def register(registry: Registry, agent: str, folder: Path, night: str = "1") -> str:
    return registry.register(agent, checkpoint(folder, night), {"night": night}, None)


def test_completeness(tmp_path: Path) -> None:
    """Missing mark, cut file, changed file, missing file, unlisted file, unreadable mark, empty mark."""
    assert is_complete(checkpoint(tmp_path / "good"))
    assert not is_complete(tmp_path / "absent")
    (checkpoint(tmp_path / "unmarked") / MARK).unlink()
    assert "no 'COMPLETE' file" in str(incomplete(tmp_path / "unmarked"))
    (checkpoint(tmp_path / "cut") / "adapter.safetensors").write_text("wei")
    assert "has 3 bytes, expected 7" in str(incomplete(tmp_path / "cut"))
    (checkpoint(tmp_path / "changed") / "adapter.safetensors").write_text("weightS")
    assert "other content" in str(incomplete(tmp_path / "changed"))
    (checkpoint(tmp_path / "short") / "config.json").unlink()
    assert "has None bytes" in str(incomplete(tmp_path / "short"))
    (checkpoint(tmp_path / "more") / "optimizer.pt").touch()
    assert "does not list 'optimizer.pt'" in str(incomplete(tmp_path / "more"))
    (checkpoint(tmp_path / "torn") / MARK).write_text('{"files": {"a"')
    assert "cannot be read" in str(incomplete(tmp_path / "torn"))
    (checkpoint(tmp_path / "empty") / MARK).write_text("")
    assert "cannot be read" in str(incomplete(tmp_path / "empty"))


def test_half_written_checkpoint_never_reaches_the_registry(
    registry: Registry, agent: str, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "checkpoint-300")
    (folder / "adapter.safetensors").write_text("we")
    with pytest.raises(StoreError, match=r"'adapter\.safetensors' has 2 bytes, expected 7"):
        registry.register(agent, folder, {}, None)
    assert registry.versions(agent) == []


def test_same_checkpoint_and_lineage_is_one_version(
    registry: Registry, agent: str, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "a")
    assert registry.register(agent, folder, {"night": "1"}, None) == "1"
    assert registry.register(agent, folder, {"night": "1"}, None) == "1"
    assert registry.register(agent, folder, {"night": "2"}, None) == "2"
    newest, first = registry.versions(agent)
    assert (newest.version, first.version) == ("2", "1")
    assert first.folder == folder
    assert first.tags["night"] == "1"
    assert first.digest == hashlib.sha256((folder / MARK).read_bytes()).hexdigest()


def test_promotion_and_rollback(
    registry: Registry, agent: str, tmp_path: Path, now: datetime
) -> None:
    """1, 2, 3 promoted in turn; two rollbacks lead back to 1, a third has nowhere to go."""
    for number in "123":
        assert register(registry, agent, tmp_path / number, number) == number
    assert registry.resolve(agent, "champion") is None
    registry.offer(agent, "1")
    assert number_of(registry, agent) == [None, "1", None]
    registry.promote(agent, "1", "ann", "first", now)
    assert number_of(registry, agent) == ["1", None, None]
    registry.offer(agent, "2")
    registry.promote(agent, "2", "ann", "better", now)
    registry.offer(agent, "3")
    registry.promote(agent, "3", "ann", "best", now)
    registry.promote(agent, "3", "ann", "twice", now)
    assert number_of(registry, agent) == ["3", None, "2"]
    champion = registry.resolve(agent, "champion")
    assert champion is not None
    assert champion.tags["promoted_by"] == "ann"
    assert champion.tags["promoted_because"] == "best"
    assert champion.tags["promoted_at"] == now.isoformat()
    assert registry.rollback(agent, "bob", "complaints", now).version == "2"
    assert number_of(registry, agent) == ["2", None, "1"]
    third = registry.version(agent, "3")
    assert third is not None
    assert third.tags["rolled_back_because"] == "complaints"
    registry.rollback(agent, "bob", "more complaints", now)
    assert number_of(registry, agent) == ["1", None, None]
    with pytest.raises(PromotionRefused, match="no previous champion"):
        registry.rollback(agent, "bob", "again", now)


def number_of(registry: Registry, agent: str) -> list[str | None]:
    found = [registry.resolve(agent, alias) for alias in ("champion", "challenger", "previous")]
    return [item.version if item else None for item in found]


def test_rollback_that_was_cut_off_is_completed(
    registry: Registry, agent: str, tmp_path: Path, now: datetime
) -> None:
    """The champion went back to 1 and then the process died: the next rollback clears `previous` and stays at 1."""
    for number in "12":
        register(registry, agent, tmp_path / number, number)
        registry.promote(agent, number, "ann", "", now)
    registry.tracking.client.set_registered_model_alias(f"nightshift-{agent}", "champion", "1")
    assert registry.rollback(agent, "bob", "complaints", now).version == "1"
    assert number_of(registry, agent) == ["1", None, None]


def test_dangling_alias_is_an_error_and_nothing_else_serves(
    registry: Registry, agent: str, tmp_path: Path, now: datetime, database: Database
) -> None:
    """The version row is taken away below the registry, so the alias stays; a promotion repairs it."""
    for number in "12":
        register(registry, agent, tmp_path / number, number)
    registry.promote(agent, "1", "ann", "", now)
    url = database.sqlalchemy_url("mlflow")
    remove_version(url, f"nightshift-{agent}", 1)
    with pytest.raises(
        StoreError,
        match=r"alias 'champion' of .* points to version '1', a version that does not",
    ):
        registry.resolve(agent, "champion")
    registry.promote(agent, "2", "ann", "repair", now)
    assert number_of(registry, agent) == ["2", None, None]


def test_version_that_is_not_ready_is_refused(
    registry: Registry, agent: str, tmp_path: Path, now: datetime, database: Database
) -> None:
    register(registry, agent, tmp_path / "1")
    with psycopg.connect(database.sqlalchemy_url("mlflow").replace("+psycopg", "")) as conn:
        conn.execute(
            "update model_versions set status = 'PENDING_REGISTRATION' where name = %s",
            (f"nightshift-{agent}",),
        )
    with pytest.raises(PromotionRefused, match="'PENDING_REGISTRATION', expected 'READY'"):
        registry.promote(agent, "1", "ann", "", now)
    with pytest.raises(PromotionRefused, match="expected 'READY'"):
        registry.offer(agent, "1")
    with pytest.raises(PromotionRefused, match="has no version '7'"):
        registry.offer(agent, "7")


def test_version_whose_checkpoint_was_damaged_is_refused(
    registry: Registry, agent: str, tmp_path: Path, now: datetime
) -> None:
    register(registry, agent, tmp_path / "1")
    (tmp_path / "1" / "config.json").write_text("")
    with pytest.raises(PromotionRefused, match=r"cannot serve.*'config\.json' has 0 bytes"):
        registry.promote(agent, "1", "ann", "", now)
    assert number_of(registry, agent) == [None, None, None]


def test_odd_agent_names_are_refused(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="must be 1 to 100 letters"):
        registry.resolve("o'brien", "champion")


def remove_version(url: str, name: str, number: int) -> None:
    with psycopg.connect(url.replace("+psycopg", "")) as conn:
        values = (name, number)
        conn.execute("delete from model_version_tags where name = %s and version = %s", values)
        conn.execute("delete from model_versions where name = %s and version = %s", values)
