"""Process-wide switches of the libraries a night uses; set before any of them is imported.

No telemetry, no hub, Prefect's own files under the project's home, one line of log instead of twenty.
"""

import os
from pathlib import Path

SWITCHES = {
    "DO_NOT_TRACK": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Its own 20 s are too few on a busy machine, and a night that does not start is a night lost.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


def hush(home: Path) -> None:
    """Set every switch that the user has not set."""
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    # Prefect makes only the last folder of this path, and goes without when that fails.
    Path(os.environ["PREFECT_HOME"]).mkdir(mode=0o700, parents=True, exist_ok=True)
