"""The first lines of every run: find it or make it, refuse other settings, take the lease."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agrpo.errors import AgrpoError, BadInput, LeaseHeld, StatusConflict
from agrpo.launch.spawned import leave_reimported_script
from agrpo.store import Attempt, Store, events, leases, renewal, runs
from agrpo.store.host import same_boot

Reading = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""The settings that decide, of a configuration that any version stored, as this version understands it."""

_MISSING = "absent"
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Attached:
    """Either the attempt that may work on the run now, or the summary of a run that is finished."""

    attempt: Attempt | None
    finished: runs.RunSummary | None


def attach(
    store: Store,
    run_id: str,
    config: dict[str, Any],
    config_hash: str,
    run_dir: Path,
    flow_run_id: str | None = None,
    lease_ttl_s: float = 30.0,
    wait_s: float = 35.0,
    max_attempts: int | None = None,
    reading: Reading = dict,
) -> Attached:
    """Attach this process to a run; the caller's Launcher then keeps the lease.

    `wait_s` bounds the wait for a holder on another host that may be dead; `max_attempts` renews the run's limit;
    `reading` finds the settings that must be the same.
    A run that has fixed no step takes other settings, one that has raises BadInput. Raises LeaseHeld while somebody
    runs it, AttemptsExhausted when it died too often.
    """
    leave_reimported_script()
    run = _find_or_create(store, run_id, config, config_hash, run_dir)
    refuse_other_settings(store, run, config, config_hash, reading)
    if run.status == "finished":
        return Attached(None, runs.summary(store, run_id))
    if max_attempts is not None:
        runs.allow_attempts(store, run_id, max_attempts)
    attempt = _acquire(store, run_id, lease_ttl_s, flow_run_id, wait_s)
    try:
        return _begin(attempt, config, config_hash, run_dir, reading)
    except BaseException:
        with contextlib.suppress(AgrpoError):  # the error in hand says more
            leases.release(attempt, "stopped")
        raise


def _begin(attempt: Attempt, config: dict[str, Any], config_hash: str, run_dir: Path, reading: Reading) -> Attached:
    """With the lease in hand: the holder that we waited for may have done anything."""
    store, run_id = attempt.store, attempt.run_id
    before = runs.get_run(store, run_id)
    if before.status == "finished":
        leases.release(attempt, "finished")
        return Attached(None, runs.summary(store, run_id))
    changed = refuse_other_settings(store, before, config, config_hash, reading)
    if changed:
        renewal.renew_settings(attempt, config, config_hash, str(run_dir.absolute()), changed)
    elif before.config != config:  # limits and evaluations may change at any time; the processes read them here
        runs.set_config(attempt, config, config_hash)
    events.add(attempt, "attached", _why_it_begins(attempt, before.error), step=before.step)
    runs.set_status(attempt, "running")
    return Attached(attempt, None)


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, each with the old and the new value."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    pairs = {key: (before.get(key, _MISSING), after.get(key, _MISSING)) for key in sorted(before | after)}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def refuse_other_settings(
    store: Store, run: runs.Run, config: Mapping[str, Any], config_hash: str, reading: Reading = dict
) -> str:
    """The keys that differ from those the run was started with, in words; a run without a step may take others.

    Raises BadInput with them when it has trained with the old ones.
    """
    keys = {} if run.config_hash == config_hash else differing_keys(reading(run.config), reading(config))
    told = _in_words(keys)
    if told and not renewal.is_renewable(store, run):
        raise BadInput(
            f"run {run.run_id!r} was started with other settings: {told}. Take those, or choose another name"
        )
    return told


def _in_words(keys: Mapping[str, tuple[Any, Any]]) -> str:
    """Empty without a difference, as when an earlier version lacked a setting that has its default."""
    shown = [f"{key}: {old!r} then, {new!r} now" for key, (old, new) in keys.items()][:_MOST_SHOWN]
    if len(keys) > _MOST_SHOWN:
        shown.append(f"and {len(keys) - _MOST_SHOWN} more")
    return "; ".join(shown)


def _why_it_begins(attempt: Attempt, error: str | None) -> str:
    """How the attempt before this one ended: that is why there is another."""
    begins = f"attempt {attempt.token} begins"
    earlier = [one for one in leases.attempts(attempt.store, attempt.run_id) if one.token < attempt.token]
    if not earlier:
        return begins
    last = earlier[-1]
    how = f"died (process {last.holder.pid} on {last.holder.host})"
    if last.outcome == "failed":
        how = f"failed: {(error or 'no reason').splitlines()[0]}"
    elif last.outcome is not None:
        how = f"was {last.outcome}"
    return f"attempt {last.token} {how}; {begins}"


def _find_or_create(store: Store, run_id: str, config: dict[str, Any], config_hash: str, run_dir: Path) -> runs.Run:
    run = runs.find_run(store, run_id)
    if run is None:
        with contextlib.suppress(StatusConflict):  # somebody else has just made it; the lease decides between us
            runs.create_run(store, run_id, config, config_hash, str(run_dir.absolute()))
        run = runs.get_run(store, run_id)
    return run


def _acquire(store: Store, run_id: str, ttl_s: float, flow_run_id: str | None, wait_s: float) -> Attempt:
    """Take the lease. A holder elsewhere that does not renew may be dead, and is waited for; any other is not."""
    begun = time.monotonic()
    silent: leases.AttemptRecord | None = None
    while True:
        waited_s = time.monotonic() - begun
        # Silence is counted here: a wall clock that was set back would keep a dead holder's lease for as long.
        is_dead = silent is not None and waited_s > silent.expires_at - silent.renewed_at
        try:
            return leases.acquire(
                store, run_id, leases.this_process(), ttl_s, flow_run_id, silent=silent if is_dead else None
            )
        except LeaseHeld:
            last = leases.attempts(store, run_id)[-1]
            if same_boot(last.holder) or (silent is not None and last != silent) or waited_s >= wait_s:
                raise
            silent = last
            time.sleep(0.5)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
