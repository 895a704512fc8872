from agrpo.rollout.beats import LoopBeats


def test_a_loop_that_did_not_go_round_says_nothing() -> None:
    beats = LoopBeats(scoring_limit_s=60.0)
    assert beats.take().keys() == {"scoring", "store"}
    beats.generation("3 groups in flight")
    assert beats.take() == {"generation": "3 groups in flight", "scoring": "0 groups", "store": "keeping the books"}
    assert "generation" not in beats.take()


def test_groups_that_wait_for_their_rewards_are_no_hang_until_they_took_too_long() -> None:
    patient, impatient = LoopBeats(scoring_limit_s=60.0), LoopBeats(scoring_limit_s=0.0)
    for beats, said in ((patient, "2 groups"), (impatient, None)):
        with beats.scoring(1), beats.scoring(2):
            assert beats.take().get("scoring") == said
    assert patient.take()["scoring"] == "0 groups"
