import os
import subprocess
import sys

from agrpo.store import host


def test_this_process_is_alive_and_of_this_boot():
    this = host.this_process()
    assert this.pid == os.getpid()
    assert host.same_boot(this)
    assert host.is_alive(this)


def test_a_process_may_have_any_name():
    rename = "import sys; open('/proc/self/comm', 'w').write(') Z 1 ('); print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", rename], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    assert host.process_started(child.pid) >= host.process_started(os.getpid())
    child.communicate()
    assert host.process_started(child.pid) is None


def test_the_boot_clock_and_start_times_agree():
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert 0 <= host.boot_clock_s() - host.process_started(os.getpid()) / ticks_per_s < 3600
