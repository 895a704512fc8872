"""What a command does before Prefect, or anything of the user's, is imported."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agrpo.runfile import RunFile
from flows.telemetry import NO_TELEMETRY

# What a person should see, the commands print; what else happens is in the logs of the run's folder and in Prefect's
# history.
_QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL", **NO_TELEMETRY}


def quieten() -> None:
    """Keep Prefect, which reads this when it is imported, from talking."""
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)


def load_secrets(run: RunFile) -> None:
    """Put the run's secrets into the environment: the user's modules may want them when they are imported."""
    if not run.secrets:
        return
    quieten()
    from flows.embedded import prefect_api  # Prefect takes two seconds to import
    from tasks import timeline

    staged: Any = timeline.load_secrets
    with TemporaryDirectory() as folder, prefect_api(Path(folder) / "prefect.log"):
        staged.fn(run)
