from agrpo.rollout.cap import ConcurrencyCap, ServerLoad


def load(kv_cache_frac: float, num_queued: float = 0.0) -> ServerLoad:
    return ServerLoad(kv_cache_frac, 100_000, num_running=1.0, num_queued=num_queued, num_preemptions=0.0)


def after(cap: ConcurrencyCap, reading: ServerLoad, num_completed: int = 0) -> int:
    for _ in range(num_completed):
        cap.completed()
    cap.observe(reading)
    return cap.value


def test_the_cap_is_the_maximum_until_the_servers_say_how_much_they_hold() -> None:
    cap = ConcurrencyCap(512)
    assert cap.value == 512
    cap.start(kv_cache_tokens=100_000, max_model_len=1000)
    assert cap.value == 100
    cap.start(kv_cache_tokens=10, max_model_len=1000)
    assert cap.value == 1


def test_it_rises_by_a_quarter_once_per_batch_of_completed_rollouts() -> None:
    cap = ConcurrencyCap(120)
    cap.start(100_000, 1000)
    assert after(cap, load(0.1), num_completed=99) == 100
    assert after(cap, load(0.1), num_completed=1) == 120
    assert after(cap, load(0.1)) == 120


def test_it_rises_only_while_nothing_waits() -> None:
    cap = ConcurrencyCap(512)
    cap.start(8000, 1000)
    assert after(cap, load(0.1, num_queued=1), num_completed=8) == 8
    assert after(cap, load(0.7)) == 8
    assert after(cap, load(0.1)) == 10


def test_it_falls_by_a_third_when_the_cache_is_nearly_full_and_never_to_zero() -> None:
    cap = ConcurrencyCap(512)
    cap.start(100_000, 1000)
    assert after(cap, load(0.81)) == 70
    for _ in range(20):
        cap.observe(load(0.95))
    assert cap.value == 1
    assert after(cap, load(0.1), num_completed=1) == 2
