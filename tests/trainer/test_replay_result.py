"""The verdict over steps that were made again."""

import dataclasses
import json

from agrpo.trainer.replay_result import EXIT_CODES, ReplayResult, StepCheck

SAME, OTHER = StepCheck(1, "a", "a"), StepCheck(2, "b", "c")


def result(*checks, start=None, same_environment=True):
    return ReplayResult("run", 0, 2, start, list(checks), same_environment)


def test_equal_digests_are_equal_wherever_they_were_made():
    assert result(SAME).verdict == result(SAME, same_environment=False).verdict == "equal"
    assert result(SAME).first_difference is None


def test_other_digests_are_different_only_where_they_can_be_compared():
    assert result(SAME, OTHER).verdict == "different"
    assert result(SAME, OTHER).first_difference == OTHER
    assert result(SAME, OTHER, same_environment=False).verdict == "not comparable"
    assert result(OTHER, start=StepCheck(0, "x", "y")).verdict == "not comparable"  # it began with another model
    assert result().verdict == "not comparable"


def test_exit_codes():
    assert EXIT_CODES == {"equal": 0, "different": 1, "not comparable": 3}


def test_it_survives_json():
    found = result(SAME, OTHER, start=SAME)
    assert ReplayResult.from_json(json.loads(json.dumps(dataclasses.asdict(found)))) == found


def test_two_parts_are_one():
    first, then = ReplayResult("old", 0, 1, SAME, [SAME], True), ReplayResult("new", 1, 2, None, [OTHER], False)
    both = first.followed_by(then)
    assert (both.run_id, both.from_step, both.to_step, both.checks) == ("new", 0, 2, [SAME, OTHER])
    assert (both.start, both.same_environment) == (SAME, False)
