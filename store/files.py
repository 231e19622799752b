"""The file store: bytes, arrays and folders under the digest of their content.

Everything is written under a temporary name and renamed when complete, and checked against its digest when read, so a
file is whole or not there. Layout below the root:

    objects/ab/cdef...   one object; its name is its SHA-256
    folders/<digest>/    a folder; its digest is that of its manifest {"files": {name: [size, sha256]}}, itself an object
    partial/             what is being written; left-overs of a killed process are cleared by `clear_partial`
"""

import errno
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from components.errors import StoreError

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class FileStore:
    """Content-addressed files below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put_bytes(self, data: bytes) -> str:
        """Store bytes; their digest."""
        digest = hashlib.sha256(data).hexdigest()
        target = self._object(digest)
        if not target.exists():
            with self._partial(target) as partial, partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        return digest

    def get_bytes(self, digest: str) -> bytes:
        """The bytes of this digest.

        Raises:
            StoreError: there is no such object, or it was damaged.
        """
        path = self._object(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise StoreError(
                f"no object {digest!r} in the file store {str(self.root)!r}: expected {str(path)!r}"
            ) from error
        except OSError as error:
            raise StoreError(f"object {str(path)!r} cannot be read: {error}") from error
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise StoreError(
                f"object {str(path)!r} is damaged: it has {len(data)} bytes of digest {found!r}. "
                "Delete it and run the stage that wrote it again, or restore it from a backup."
            )
        return data

    def put_arrays(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
        """Store named arrays of plain numbers; their digest. Equal arrays have equal digests."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **dict(arrays))
        return self.put_bytes(buffer.getvalue())

    def get_arrays(self, digest: str) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of this digest, bit for bit.

        Raises:
            StoreError: there is no such object, or it was damaged.
        """
        with np.load(io.BytesIO(self.get_bytes(digest)), allow_pickle=False) as arrays:
            return dict(arrays)

    def put_folder(self, folder: Path) -> str:
        """Store a copy of a folder of regular files; its digest depends on names and contents alone.

        Raises:
            StoreError: the folder is missing, empty, or holds a link; or the disk is full.
        """
        manifest = _manifest(folder)
        digest = self.put_bytes(manifest)
        target = self.root / "folders" / digest
        if not target.exists():
            with self._partial(target) as partial:
                for name in json.loads(manifest)["files"]:
                    copy = partial / name
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(
                        folder / name, copy
                    )  # not the mode: an engine of another user reads it
        return digest

    def folder(self, digest: str) -> Path:
        """The folder of this digest, every file of it checked.

        Raises:
            StoreError: there is no such folder, or a file in it is cut, changed or missing.
        """
        path = self.root / "folders" / digest
        expected = json.loads(self.get_bytes(digest))["files"]
        for name, (size, made) in expected.items():
            file = path / name
            found = file.stat().st_size if file.is_file() else None
            if found != size or _digest_of(file) != made:
                what = "is missing" if found is None else f"has {found} bytes"
                raise StoreError(
                    f"file {str(file)!r} of stored folder {digest[:12]!r} {what}, expected {size} bytes of "
                    f"digest {made[:12]!r}. Delete the folder and store it again, or restore a backup."
                )
        return path

    def clear_partial(self, before: datetime) -> int:
        """Remove what was left half-written before this time; how many pieces."""
        stale = [
            path
            for path in (self.root / "partial").glob("*")
            if path.stat().st_mtime < before.timestamp()
        ]
        for path in stale:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return len(stale)

    def _object(self, digest: str) -> Path:
        return self.root / "objects" / digest[:2] / digest[2:]

    @contextmanager
    def _partial(self, target: Path) -> Iterator[Path]:
        """A temporary path that becomes the target when the block ends well, and vanishes when it does not."""
        partial = self.root / "partial" / uuid.uuid4().hex
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            try:
                partial.rename(target)
            except OSError as error:
                # A folder of the same content that another process renamed first is as good as ours.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        except OSError as error:
            raise StoreError(_explain(target, error)) from error
        finally:
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)


def _explain(target: Path, error: OSError) -> str:
    if error.errno in NO_SPACE:
        return (
            f"no space left to write {str(target)!r}: {error.strerror}. Nothing was kept of it. "
            "Free space, then run the same command again."
        )
    return f"cannot write {str(target)!r}: {error}"


def _manifest(folder: Path) -> bytes:
    if not folder.is_dir():
        raise StoreError(f"cannot store folder {str(folder)!r}: there is no such folder")
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise StoreError(f"cannot store folder {str(folder)!r}: {path.name!r} is a link")
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            files[name] = (path.stat().st_size, _digest_of(path))
    if not files:
        raise StoreError(f"cannot store folder {str(folder)!r}: it holds no files")
    return json.dumps({"files": files}, sort_keys=True, separators=(",", ":")).encode()


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
