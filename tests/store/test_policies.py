import pytest

from agrpo.errors import StatusConflict
from agrpo.store import policies, runs


def test_versions_follow_one_another(store, attempt):
    assert policies.current_version(store, "small") == -1
    policies.publish(attempt, 0, 0, "aa")
    policies.publish(attempt, 1, 4, "bb")
    assert policies.current_version(store, "small") == runs.get_run(store, "small").policy_version == 1
    assert [(row.version, row.step, row.digest) for row in policies.policies(store, "small")] == [
        (0, 0, "aa"),
        (1, 4, "bb"),
    ]


@pytest.mark.parametrize("version", [-1, 0, 2])
def test_a_version_neither_goes_back_nor_jumps(store, attempt, version):
    policies.publish(attempt, 0, 0, "aa")
    with pytest.raises(StatusConflict, match=f"publish policy version {version}"):
        policies.publish(attempt, version, 1, "bb")
    assert policies.current_version(store, "small") == 0
