"""The app in a real browser: every page, a case decided in two clicks, no complaint in the console."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from store import cases
from store.cases import CaseFilter
from tests.ui.conftest import APP, Desk
from tests.ui.desk_logs import AGENT

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
TITLES = ("Failures", "Trajectories", "Data", "Memory", "Promotion")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.postgres,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs a browser at {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield made
        made.close()


@pytest.fixture
def address(desk: Desk) -> Iterator[str]:
    """A running app on the seeded desk."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "streamlit", "run", str(APP), f"--server.port={port}"),
        *("--server.address=127.0.0.1", "--server.headless=true", "--", *desk.arguments),
    ]
    folder = APP.parents[1]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(url)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def wait_for(url: str) -> None:
    for _ in range(150):
        try:
            if httpx.get(f"{url}/_stcore/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"the app did not start at {url}")


def at_rest(page: Page) -> None:
    """Wait for the app to have drawn all of a page: a key pressed while it still draws is meant for no button yet."""
    page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()


def test_a_morning_in_the_browser(browser: Browser, address: str, desk: Desk) -> None:
    """Open the app, go to the failures (first click), dismiss the open case (second click), look at every page."""
    with desk.db.connect() as conn:
        now, following = (
            item.case for item in cases.page(conn, CaseFilter(agent=AGENT, verdict="open"), 2)
        )
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)

    page.goto(address)
    page.get_by_role("heading", name="Night 2026-03-14").wait_for()
    page.get_by_role("button", name="Review failures").click()
    page.get_by_role("button", name="Dismiss", exact=False).first.wait_for()
    expect(page.get_by_role("heading", level=3)).to_have_text(now.summary)
    page.get_by_role("button", name="Dismiss", exact=False).first.click()
    page.get_by_text("Tonight's data will leave this trajectory out").wait_for()
    expect(page.get_by_role("heading", level=3)).to_have_text(following.summary)
    with desk.db.connect() as conn:
        review = cases.get(conn, [now.id])[0].case.review
    assert review is not None
    assert review.verdict == "dismissed"

    at_rest(page)
    page.keyboard.press("y")
    page.get_by_text("Tonight's data will keep this trajectory").or_(
        page.get_by_text("The data stays as it is")
    ).first.wait_for()

    for title in TITLES:
        page.get_by_role("link", name=title).click()
        page.get_by_role("heading", name=title, level=1).wait_for()
        at_rest(page)
        expect(page.get_by_test_id("stSpinner")).to_have_count(0)
        expect(page.get_by_test_id("stException")).to_have_count(0)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 1440, title
    assert complaints == []
    page.close()
