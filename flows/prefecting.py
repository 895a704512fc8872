"""Commands that set up a Prefect server for launching, watching and scheduling runs."""

from pathlib import Path

from flows.options import SilentS


def deploy() -> int:
    """Create or update the deployments of prefect.yaml; a schedule stays as a person left it, paused or active.

    Example: agrpo deploy
    """
    from flows.deploy import deploy

    print("\n".join(deploy(Path.cwd())))
    return 0


def automations(*, silent_s: SilentS = 120) -> int:
    """Create or update the automations that begin crashed or silent runs of deployments again.

    Example: agrpo automations --silent-s 180

    Parameters
    ----------
    silent_s
        Seconds without a heartbeat after which a run counts as dead; at least 90.
    """
    from flows.automations import put_automations

    print("\n".join(put_automations(silent_s)))
    return 0


PREFECTING = (deploy, automations)
