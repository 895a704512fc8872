"""From a run in the store to the settings that it was begun with."""

from agrpo import runfile
from agrpo.errors import BadInput
from agrpo.runfile import RunFile
from agrpo.store.runs import Run


def settings_of(stored: Run) -> RunFile:
    """The run file of a run. Raises BadInput for the run of a script, which has none."""
    if not isinstance(stored.config.get("model"), dict):
        raise BadInput(
            f"run {stored.run_id!r} was started by a script, which alone knows its functions, and this works on runs "
            "of run files only; to go on with it, let the script call train(resume_from_checkpoint=True)"
        )
    return runfile.parse(stored.config, f"run {stored.run_id}")
