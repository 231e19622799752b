"""The file store: whole or not there."""

import os
import resource
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from components.errors import StoreError
from store.files import FileStore


def test_bytes_come_back(files: FileStore) -> None:
    """The SHA-256 of "abc" is the first example of FIPS 180-2."""
    digest = files.put_bytes(b"abc")
    assert digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.put_bytes(b"abc") == digest
    assert files.get_bytes(digest) == b"abc"
    assert files.get_bytes(files.put_bytes(b"")) == b""
    assert len([path for path in files.root.rglob("*") if path.is_file()]) == 2


def test_cut_file_is_named_and_not_returned(files: FileStore) -> None:
    digest = files.put_bytes(b"0123456789")
    path = files.root / "objects" / digest[:2] / digest[2:]
    path.write_bytes(b"01234")
    with pytest.raises(StoreError, match=f"{digest[2:]}' is damaged: it has 5 bytes"):
        files.get_bytes(digest)


def test_absent_object_is_named(files: FileStore) -> None:
    with pytest.raises(StoreError, match="no object 'abcd'"):
        files.get_bytes("abcd")


def test_arrays_come_back_bit_for_bit(files: FileStore) -> None:
    arrays = {
        "ids": np.array([1, 2**31 - 1], np.int32),
        "logprobs": np.array([-0.1, -0.0, np.nan, 5e-324]),
        "empty": np.zeros((0, 3), np.float32),
    }
    digest = files.put_arrays(arrays)
    assert files.put_arrays(arrays) == digest
    found = files.get_arrays(digest)
    assert {name: (value.dtype, value.tobytes()) for name, value in found.items()} == {
        name: (value.dtype, value.tobytes()) for name, value in arrays.items()
    }


def test_objects_that_need_pickle_are_refused(files: FileStore) -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        files.put_arrays({"bad": np.array([{}], object)})


def test_folder_comes_back(files: FileStore, tmp_path: Path) -> None:
    """The digest depends on names and contents, not on where the folder was or on file modes."""
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "deep" / "weights").write_bytes(b"w" * 1000)
    (tmp_path / "two" / "config.json").chmod(0o600)
    digest = files.put_folder(tmp_path / "one")
    assert files.put_folder(tmp_path / "two") == digest
    stored = files.folder(digest)
    assert (stored / "deep" / "weights").read_bytes() == b"w" * 1000
    (tmp_path / "one" / "config.json").write_text("[]")
    assert files.put_folder(tmp_path / "one") != digest


def test_damage_in_a_folder_is_named(files: FileStore, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"w" * 1000)
    digest = files.put_folder(tmp_path / "model")
    stored = files.folder(digest) / "weights"
    stored.write_bytes(b"w" * 400)
    with pytest.raises(StoreError, match="has 400 bytes, expected 1000 bytes"):
        files.folder(digest)
    stored.write_bytes(b"x" * 1000)
    with pytest.raises(StoreError, match="has 1000 bytes, expected 1000 bytes of digest"):
        files.folder(digest)
    stored.unlink()
    with pytest.raises(StoreError, match="is missing"):
        files.folder(digest)


def test_strange_folders_are_refused(files: FileStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        files.put_folder(tmp_path / "absent")
    (tmp_path / "model").mkdir()
    with pytest.raises(StoreError, match="holds no files"):
        files.put_folder(tmp_path / "model")
    (tmp_path / "model" / "weights").symlink_to("/etc/hostname")
    with pytest.raises(StoreError, match="'weights' is a link"):
        files.put_folder(tmp_path / "model")


def test_full_disk_keeps_nothing(files: FileStore, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: both end a write in the middle."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"w" * 3_000_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(StoreError, match=r"no space left to write.*Free space"):
            files.put_bytes(b"x" * 2_000_000)
        with pytest.raises(StoreError, match="no space left to write"):
            files.put_folder(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((files.root / "partial").iterdir()) == []
    assert not (files.root / "folders").exists() or list((files.root / "folders").iterdir()) == []
    assert len(files.put_bytes(b"x" * 2_000_000)) == 64


def test_left_overs_are_cleared_by_age(files: FileStore, now: datetime) -> None:
    partial = files.root / "partial"
    (partial / "folder").mkdir(parents=True)
    (partial / "old").touch()
    (partial / "young").touch()
    for name, age in (("folder", 2), ("old", 2), ("young", 0)):
        stamp = (now - timedelta(hours=age)).timestamp()
        os.utime(partial / name, (stamp, stamp))
    assert files.clear_partial(now - timedelta(hours=1)) == 2
    assert [path.name for path in partial.iterdir()] == ["young"]
