"""Every error that a person can meet, as one tree.

AgrpoError                  the message is one line: the value, what was expected, what to do next
|-- BadInput                the user's settings, files or callables; exit 2
|   |-- BadSetting          a training argument
|   `-- RewardError         a reward function returned something that is no reward
|-- LeaseLost               another attempt has taken over this run: stop at once, touch nothing
|-- LeaseHeld               somebody else is running this run right now
|-- AttemptsExhausted       the run died too often
|-- StatusConflict          a row is not in the status this write started from: a bug, or a second writer
|-- StoreError              the database cannot be used (schema, place, version)
|   `-- OldSchema           it has an older schema, or none yet: a run migrates it
|-- ChildFailed             a process of the run failed beyond its limit, or with a bug
|-- Outage                  something outside us is away; worth a retry
|   |-- ServerOutage        a vLLM server did not answer, or answered 5xx
|   `-- StoreOutage         the database did not answer, or was busy for too long
|-- PromptTooLong           a prompt leaves no room for a generated token; it is skipped and counted
|-- RequestRefused          a server (4xx) or the chat template refused one request: it would be refused again
|-- MalformedAnswer         a server's answer lacks what was asked for
|-- WeightSyncError         a phase of a weight update failed; the version did not advance
|-- ProbeFailed             server and trainer disagree about the same weights
`-- RunStopped              somebody asked the run to stop; it can be resumed
"""


class AgrpoError(Exception):
    """Base of everything this package raises on purpose."""


class BadInput(AgrpoError):
    """A setting, file or callable that the user gave cannot be used."""


class LeaseLost(AgrpoError):
    """The run's fencing token has moved on: this process no longer owns the run."""


class LeaseHeld(AgrpoError):
    """Another live process holds the run's lease."""


class AttemptsExhausted(AgrpoError):
    """The run has used up its attempts."""


class StatusConflict(AgrpoError):
    """A row was not in the status that the write expected."""


class StoreError(AgrpoError):
    """The database cannot be used as it is."""


class ChildFailed(AgrpoError):
    """A process of the run failed with a bug, or more often than its restart limit."""


class Outage(AgrpoError):
    """Something outside this process is away for now."""


class ServerOutage(Outage):
    """A server did not answer in time, refused the connection or answered 5xx."""


class RequestRefused(AgrpoError):
    """A server (4xx), or the chat template, refused a request for a reason that a retry cannot mend."""


class MalformedAnswer(AgrpoError):
    """A server's answer lacks fields, or its lists have the wrong lengths."""


class WeightSyncError(AgrpoError):
    """A weight update failed in the named phase."""

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(f"weight update failed in phase {phase!r}: {message}")
        self.phase = phase


class ProbeFailed(AgrpoError):
    """The server's log-probabilities of a probe text differ from the trainer's."""


class RewardError(BadInput):
    """A reward function returned a wrong number of values, NaN or infinity."""


class BadSetting(BadInput, ValueError):
    """A training argument cannot be used; also the ValueError that users of TrainingArguments expect."""


class StoreOutage(Outage):
    """The database did not answer, or was busy for too long."""


class PromptTooLong(AgrpoError):
    """A prompt leaves no room for a single generated token under the server's max_model_len."""


class RunStopped(AgrpoError):
    """Somebody asked the run to stop; it can be resumed."""


class OldSchema(StoreError):
    """The database has an older schema, or none yet; a run brings it up to date."""
