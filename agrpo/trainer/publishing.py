"""Which weights the servers have: version n is what step n made, every server confirms it or is sent it again."""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from agrpo import versions
from agrpo.errors import MalformedAnswer, Outage, ServerOutage, WeightSyncError
from agrpo.metrics import Window
from agrpo.store import Attempt, events, policies, processes, servers, steps
from agrpo.store.servers import ServerRecord
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.policy_weights import PolicyWeights
from agrpo.trainer.probing import Probe
from agrpo.trainer.stopping import StopSwitch
from agrpo.weights.publisher import SyncReport

RETRY_S = 1.0
REFUSALS_ALLOWED = 3
"""A server that refuses an update, rather than being away, gets this many tries."""


class WeightPublisher(Protocol):
    """Sends weights; agrpo.weights.publisher.Publisher."""

    def publish(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int, urls: list[str], backend: str
    ) -> SyncReport:
        """Send all weights to servers of one backend; failures are in the report."""
        ...


class PolicySync(Protocol):
    """What the training loop needs of publishing; called on rank 0 only, and never during replay, but `prepare`."""

    def prepare(self) -> None:
        """On every rank whenever the weights have changed: collect what rank 0 will need of the others."""
        ...

    def settle(self, step: int, digest: str) -> None:
        """Before anything new: make the servers serve what a fresh start or a replay arrived at."""
        ...

    def after_step(self, step: int, digest: str) -> None:
        """A step was made: publish if it is due."""
        ...

    def keep_current(self) -> None:
        """Send the weights again to servers that lost them."""
        ...


class ServerSync:
    """Publishes to the servers in the store."""

    def __init__(
        self,
        attempt: Attempt,
        weights: PolicyWeights,
        publisher: WeightPublisher,
        probe: Probe,
        greet: Callable[[str], str],
        args: AsyncGRPOConfig,
        stop: StopSwitch,
        window: Window,
    ) -> None:
        self._attempt = attempt
        self._weights = weights
        self._publisher = publisher
        self._probe = probe
        self._greet = greet
        self._backends: dict[str, str] = {}
        self._args = args
        self._stop = stop
        self._window = window
        self._step = 0
        self._away_since: float | None = None
        self._digest = ""

    def prepare(self) -> None:
        """Make sharded weights whole, and have all ranks compute what the probe compares."""
        self._weights.gather()
        if self._weights.is_sharded:
            self._probe.read()

    def settle(self, step: int, digest: str) -> None:
        """Publish unless the current version is these weights, or these weights were never to be published.

        The current version's step may have made other weights when it was replayed, perhaps by an attempt that was
        killed before it came here: what the servers have is then no part of the run any more.
        """
        self._step, self._digest = step, digest
        known = policies.policies(self._attempt.store, self._attempt.run_id)
        if not known:
            return self._publish()
        current = known[-1]
        if current.digest == digest:
            return self.keep_current()
        made = steps.digests(self._attempt.store, self._attempt.run_id).get(current.step, current.digest)
        if made != current.digest or current.step == step:
            message = f"replay to step {step} made other weights than version {current.version}: they are a new version"
            events.add(self._attempt, "replay_diverged", message, step=step, was=current.digest, now=digest)
            return self._publish()
        if versions.publishes_after(step, self._args.weight_sync_steps):
            self._publish()

    def after_step(self, step: int, digest: str) -> None:
        """Publish every weight_sync_steps."""
        self._step, self._digest = step, digest
        if versions.publishes_after(step, self._args.weight_sync_steps):
            self._publish()

    def keep_current(self) -> None:
        """Servers that lost the current version get it again; when the weights have moved on, all get a new version."""
        current = policies.policies(self._attempt.store, self._attempt.run_id)[-1]
        healthy = self._healthy()
        self._miss(healthy)
        have = {server.id for server in healthy if server.weight_version == current.version}
        if len(have) == len(healthy):
            return
        if current.digest == self._digest:
            self._send(current.version, have)
        else:
            self._publish()

    def _miss(self, healthy: list[ServerRecord]) -> None:
        """Raise ServerOutage when no server has been healthy for vllm_server_timeout; else nobody would ever say so."""
        if healthy:
            self._away_since = None
            return
        self._away_since = self._away_since or time.monotonic()
        limit_s = self._args.vllm_server_timeout
        if time.monotonic() - self._away_since > limit_s:
            raise ServerOutage(
                f"no vLLM server has been healthy for vllm_server_timeout={limit_s:g} s: start one again"
            )

    def _publish(self) -> None:
        version = policies.current_version(self._attempt.store, self._attempt.run_id) + 1
        # Whatever the rows say: a killed attempt may have confirmed this number for other weights.
        if self._send(version, set()):
            policies.publish(self._attempt, version, self._step, self._digest)

    def _send(self, version: int, have: set[int]) -> bool:
        """Try until every healthy server, and at least one, has confirmed the version; False when asked to stop before.

        `have`: ids of the servers that confirmed it earlier.

        Raises ServerOutage after vllm_server_timeout, WeightSyncError when a server keeps refusing.
        """
        deadline = time.monotonic() + self._args.vllm_server_timeout
        refusals: dict[str, int] = {}
        reason = "no server is healthy"
        while True:
            for url, error in self._send_once(version, have).items():
                reason = f"{url}: {error}"
                events.add(self._attempt, "weight_sync_failed", reason, version=version, phase=error.phase)
                if not isinstance(error.__cause__, Outage | MalformedAnswer):
                    refusals[url] = refusals.get(url, 0) + 1
                    if refusals[url] >= REFUSALS_ALLOWED:
                        raise error
            if (healthy := self._healthy()) and not _lacking(healthy, version, have):
                return True
            if time.monotonic() > deadline:
                limit = f"vllm_server_timeout={self._args.vllm_server_timeout:g} s"
                raise ServerOutage(f"version {version} reached no server within {limit}: {reason}")
            processes.beat(self._attempt, "trainer", 0, "train", f"publishing version {version}: {reason}")
            if self._stop.wait(RETRY_S):
                return False

    def _send_once(self, version: int, have: set[int]) -> dict[str, WeightSyncError]:
        self._attempt.check()  # no server would notice that another attempt has taken over
        lacking = {server.url: server for server in _lacking(self._healthy(), version, have)}
        for url in lacking.keys() - self._backends.keys():
            self._backends[url] = self._greet(url)
        failed: dict[str, WeightSyncError] = {}
        for backend in sorted({self._backends[url] for url in lacking}):
            urls = [url for url in lacking if self._backends[url] == backend]
            report = self._publisher.publish(self._weights.named(), version, urls, backend)
            self._note(report, version, lacking, have)
            failed |= report.failed
        return failed

    def _note(self, report: SyncReport, version: int, lacking: dict[str, ServerRecord], have: set[int]) -> None:
        """Probe and record the servers that took the weights."""
        for url in report.confirmed:
            if self._probe_is_due(version) and not self._answers_right(url):
                continue
            server = lacking[url]
            if servers.confirm_version(self._attempt, server.id, version, server.process_id):
                have.add(server.id)
        for url in report.failed:
            servers.doubt(self._attempt, lacking[url].id)
        if report.confirmed:
            for phase, seconds in report.times.items():
                self._window.add(f"perf/weight_sync_{phase}_s", seconds)
            self._window.add("perf/weight_sync_s", sum(report.times.values()))

    def _probe_is_due(self, version: int) -> bool:
        every = self._args.probe_steps
        return version == 0 or (every > 0 and version % every == 0)

    def _answers_right(self, url: str) -> bool:
        """False for a server that went away between update and probe: it is sent everything again."""
        try:
            self._probe.check(url)
        except Outage as error:
            events.add(self._attempt, "probe_skipped", f"{url}: {error}")
            return False
        return True

    def _healthy(self) -> list[ServerRecord]:
        return servers.healthy(self._attempt.store, self._attempt.run_id)


def _lacking(rows: list[ServerRecord], version: int, have: set[int]) -> list[ServerRecord]:
    """Servers that are still to be sent the version; one that restarted has forgotten it."""
    return [row for row in rows if row.id not in have or row.weight_version != version]
