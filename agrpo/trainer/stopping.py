"""How a trainer is asked to stop: at a safe point, never inside an optimizer step, a publication or a checkpoint."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequested(BaseException):
    """Raised inside work that may be thrown away: forward and backward passes."""


class StopSwitch:
    """Turned by SIGTERM or SIGINT. A second SIGINT is the usual KeyboardInterrupt."""

    def __init__(self) -> None:
        self._turned = threading.Event()
        self._interruptible = False
        self._signal: int | None = None

    @property
    def requested(self) -> bool:
        """Whether to stop at the next safe point."""
        return self._turned.is_set()

    def request(self) -> None:
        """Turn the switch from inside the program."""
        self._turned.set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but not beyond a request; whether there is one."""
        return self._turned.wait(seconds)

    def clear(self) -> None:
        """Turn it back: what was asked before is over."""
        self._turned.clear()
        self._signal = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to signals, where the interpreter allows it: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def interruptible(self, allowed: bool = True) -> Iterator[None]:
        """Within it a request raises StopRequested at once, if `allowed`."""
        if allowed and self.requested:
            raise StopRequested
        self._interruptible = allowed
        try:
            yield
        finally:
            self._interruptible = False

    def pass_on(self) -> None:
        """Do what the signal would have done, now that everything is saved."""
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self._signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested:
            raise KeyboardInterrupt
        self._signal = number
        self._turned.set()
        if self._interruptible:
            self._interruptible = False
            raise StopRequested
