"""The command line: complaints before any work, exit statuses, and what the looking commands print."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from tests.flows.homes import Home
from tests.kill_night import NIGHT, TINY

ROOT = Path(__file__).parents[2]
COMPLAIN = """
import resource, sys
from flows.cli import main
status = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
heavy = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "transformers", "mlflow", "prefect"})
print(status, used < 1.0, heavy)
"""


def write(folder: Path, text: str) -> str:
    path = folder / "nightshift.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def home_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[trian]\nx = 1\n", "unknown setting 'trian'. Did you mean 'train'?"),
        ("[day]\ncustmers = 3\n", "unknown setting 'day.custmers'. Did you mean 'customers'?"),
        ("not toml", "is not TOML"),
    ],
)
def test_a_wrong_settings_file_stops_at_once(text: str, complaint: str, home_here: Path) -> None:
    """In a process of its own: exit status 2, and none of the heavy libraries was loaded to say it."""
    done = subprocess.run(
        [sys.executable, "-c", COMPLAIN, "--config", write(home_here, text), "night"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert complaint in done.stderr
    assert done.stdout.split("\n")[0] == "2 True []"
    assert not (home_here / "home" / "postgres").exists()


def test_a_missing_settings_file_and_a_wrong_profile(
    home_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(home_here / "none.toml"), "status"]) == 2
    assert "cannot read settings file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["--profile", "cpuu", "status"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit):
        main(["nihgt"])
    assert "invalid choice: 'nihgt'" in capsys.readouterr().err


def test_plugins_lists_without_loading_anything(
    home_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(home_here, "")
    assert main(["--config", config, "plugins"]) == 0
    printed = capsys.readouterr().out
    for name in ("credit/grpo", "evaluation/strict", "ingestion/tau_bench", "mining/rules"):
        assert any(
            line.startswith(name) and len(line.split(maxsplit=1)) == 2
            for line in printed.splitlines()
        )
    assert main(["--config", config, "plugins", "credit"]) == 0
    assert {line.split("/")[0] for line in capsys.readouterr().out.splitlines()} == {"credit"}


def test_plugins_of_an_unknown_stage_names_the_nearest(
    home_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", write(home_here, ""), "plugins", "cerdit"]) == 2
    assert "Did you mean 'credit'?" in capsys.readouterr().err


# --- on a finished night ----------------------------------------------------------------------------------------------


def run(home: Home, *arguments: str) -> int:
    told = [
        part for option in home.options(f"home={str(home.folder)!r}") for part in ("--set", option)
    ]
    return main(["--config", str(TINY), *told, *arguments])


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIGHTSHIFT_HOME", "NIGHTSHIFT_DATABASE_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


on_a_night = pytest.mark.usefixtures("no_environment")


@pytest.mark.postgres
@on_a_night
def test_status(one_night: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(one_night, "status") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"agent help-desk, home {one_night.folder}"
    assert lines[1:6] == [
        "champion version 1",
        "challenger none",
        "previous none",
        "new logs no",
        "10 failure cases wait for review",
    ]
    assert lines[6] == f"night {NIGHT}: done"
    stages = ["ingest", "mine", "curate", "remember", "train", "evaluate", "offer"]
    assert [line.split()[:2] for line in lines[7:]] == [[stage, "done"] for stage in stages]


@pytest.mark.postgres
@on_a_night
def test_report(one_night: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(one_night, "report") == 0
    newest = capsys.readouterr().out
    assert run(one_night, "report", "--night", NIGHT) == 0
    assert capsys.readouterr().out == newest
    assert newest.startswith(f"Night {NIGHT} of help-desk")
    for part in ("champion (served the day)", "Gate: refused", "Memory: ", "Seconds per stage"):
        assert part in newest
    assert run(one_night, "report", "--night", "2020-01-01") == 1
    assert "No such night has finished" in capsys.readouterr().out
    assert run(one_night, "report", "--night", "yesterday") == 2
    assert "expected YYYY-MM-DD" in capsys.readouterr().err


@pytest.mark.postgres
@on_a_night
def test_doctor(one_night: Home, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(one_night, "doctor")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {words[1]: words[0] for words in lines}
    assert found.keys() == {"disk", "model", "plug-ins", "store", "tracking", "logs", "sandbox"}
    assert {found[name] for name in ("plug-ins", "store", "tracking", "logs")} == {"ok"}
    assert status == (0 if set(found.values()) == {"ok"} else 1)

    assert run(one_night, "--set", "train.rl.credit=[{name = 'gpro'}]", "doctor") == 1
    assert "no credit plug-in named 'gpro'. Did you mean" in capsys.readouterr().out


@pytest.mark.postgres
@on_a_night
def test_what_does_not_work_out_ends_with_one(
    one_night: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(one_night, "promote", "--reason", "because") == 1
    assert "PromotionRefused: no challenger waits" in capsys.readouterr().err
    unreachable = "store.database_url='postgresql://nobody@127.0.0.1:9/none'"
    assert run(one_night, "--set", unreachable, "status") == 1
    assert (
        "Unavailable: the database at 'postgresql://nobody@127.0.0.1:9/none'"
        in capsys.readouterr().err
    )


def test_a_reader_that_leaves_early_gets_no_traceback(home_here: Path) -> None:
    """As `nightshift plugins | head -1` does."""
    command = [sys.executable, "-m", "flows.cli", "plugins"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdout.close()
        said = done.stderr.read().decode()
    assert "Traceback" not in said
    assert done.returncode == 0
