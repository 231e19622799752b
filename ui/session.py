"""What every page works with: the options of the command line, the open store, who is looking, and a word to say next.

Handles are opened once per process and shared by all sessions; nothing a person chose is kept in them.
"""

import argparse
import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal

import streamlit as st

from components.errors import Conflict, RecordError, StoreError
from store.db import Conn, Database, open_database
from ui import format as fmt

if TYPE_CHECKING:
    from store.registry import Registry

Tone = Literal["success", "warning", "error"]
_SAID = "said"


@dataclass(frozen=True, slots=True)
class Options:
    home: Path
    database_url: str | None
    """None is the embedded server in `home`."""
    agent: str
    tracking_uri: str | None
    """Where the registry is; None is the database `mlflow` on the same server."""


def options() -> Options:
    """The options that the app was started with."""
    parser = argparse.ArgumentParser(prog="ui/app.py", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="folder of the store")
    parser.add_argument("--database-url", help="PostgreSQL; default: the embedded one in --home")
    parser.add_argument("--agent", required=True, help="the workload to look at")
    parser.add_argument("--tracking-uri", help="MLflow; default: beside the store")
    given = parser.parse_args(sys.argv[1:])
    return Options(given.home, given.database_url, given.agent, given.tracking_uri)


def agent() -> str:
    return options().agent


def database() -> Database:
    given = options()
    return _open_database(given.home, given.database_url)


def registry() -> "Registry":
    """The registered models. The first call of a process imports MLflow, which takes seconds.

    Raises:
        StoreError: MLflow cannot be reached.
    """
    given = options()
    uri = given.tracking_uri or database().sqlalchemy_url("mlflow")
    return _open_registry(uri, given.home)


@st.cache_resource(show_spinner="Opening the store", on_release=Database.close)
def _open_database(home: Path, url: str | None) -> Database:
    return open_database(url, home)


@st.cache_resource(show_spinner="Opening the registry")
def _open_registry(uri: str, home: Path) -> "Registry":
    from store.registry import Registry
    from store.runs import open_tracking

    return Registry(open_tracking(uri, home / "artifacts"))


@st.cache_resource(show_spinner=False)
def load_registry_soon() -> None:
    """Import MLflow beside the first page, so that nobody waits for it later."""
    Thread(target=import_module, args=("store.registry",), daemon=True).start()


def ask_who() -> None:
    """The field for the name under which decisions are kept."""
    known = st.user.get("email")
    if known:
        st.session_state["actor"] = str(known)
        st.caption("Signed in as")
        st.text(str(known))
        return
    if "actor" not in st.session_state:
        st.session_state["actor"] = _own_name()
    st.text_input("Your name", key="actor", help="Kept with every decision you make.")


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def actor() -> str:
    """Who decides; empty when nobody said."""
    return str(st.session_state.get("actor", "")).strip()


def now() -> datetime:
    return datetime.now(UTC)


def say(tone: Tone, text: str) -> None:
    """Something to show once, at the top of what is drawn next. Plain text."""
    st.session_state[_SAID] = (tone, text)


def show_said() -> None:
    """Show what the last click has to say."""
    said = st.session_state.pop(_SAID, None)
    if said is None:
        return
    tone, text = said
    show = {"success": st.success, "warning": st.warning, "error": st.error}[tone]
    show(fmt.label(text))


def is_named() -> bool:
    """Whether somebody is there to decide; says so when not."""
    if actor():
        return True
    say("warning", "Nothing was written: enter your name in the sidebar first.")
    return False


@contextmanager
def writing() -> Iterator[Conn]:
    """A transaction for a person's click: what the store refuses is said to them instead of stopping the page."""
    try:
        with database().connect() as conn:
            yield conn
    except (Conflict, RecordError) as error:
        say("warning", str(error))
    except StoreError as error:
        say("error", str(error))
