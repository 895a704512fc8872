"""The stop switch: work that may be thrown away ends at once, other work at its own pace."""

import os
import signal

import pytest

from agrpo.trainer.stopping import StopRequested, StopSwitch


def test_a_signal_inside_interruptible_work_ends_it():
    switch = StopSwitch()
    with switch.installed(), pytest.raises(StopRequested), switch.interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the work went on")
    assert switch.requested


def test_a_signal_elsewhere_is_only_remembered():
    switch = StopSwitch()
    with switch.installed():
        os.kill(os.getpid(), signal.SIGTERM)
        with switch.interruptible(allowed=False):
            pass
        with pytest.raises(StopRequested), switch.interruptible():
            pass
    with pytest.raises(SystemExit):
        switch.pass_on()


def test_a_second_interrupt_is_the_usual_one():
    switch = StopSwitch()
    with switch.installed():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        switch.pass_on()


def test_what_was_asked_is_over_when_it_is_turned_back():
    switch = StopSwitch()
    with switch.installed():
        os.kill(os.getpid(), signal.SIGINT)
    switch.clear()
    with switch.installed():
        assert not switch.requested
    switch.pass_on()


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopSwitch().installed():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_waiting_ends_with_a_request():
    switch = StopSwitch()
    assert switch.wait(0.0) is False
    switch.request()
    assert switch.wait(60.0) is True
    switch.pass_on()
