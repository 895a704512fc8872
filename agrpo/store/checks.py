"""What must hold in a run's ledger, as SQL that finds the rows for which it does not; the same on both databases."""

STEPS = {
    "step_members": (
        "a sample stands in a step that is not the one it was trained in",
        """SELECT m.step, m.sample_id, s.status, s.step AS trained_in FROM step_samples m
        JOIN samples s ON s.id = m.sample_id
        WHERE m.run_id = :run AND (s.status <> 'trained' OR s.step <> m.step)""",
    ),
    "trained_once": (
        "a trained sample stands in no step, or in several",
        """SELECT s.id AS sample_id, s.step, count(m.sample_id) AS num_steps FROM samples s
        LEFT JOIN step_samples m ON m.sample_id = s.id AND m.run_id = s.run_id
        WHERE s.run_id = :run AND s.status = 'trained' GROUP BY s.id, s.step HAVING count(m.sample_id) <> 1""",
    ),
    "row_gap": (
        "a sample is missing in a row of a step",
        """SELECT step, micro_batch, rank, count(*) AS num_samples, max(position) AS last_position FROM step_samples
        WHERE run_id = :run GROUP BY step, micro_batch, rank HAVING count(*) <> max(position) + 1""",
    ),
    "shared_step": (
        "a sample of a step that this run shares with another one stands in the other one's step only",
        """SELECT theirs.step, theirs.sample_id FROM runs r
        JOIN step_samples theirs ON theirs.run_id = r.forked_from AND theirs.step <= r.forked_step
        LEFT JOIN step_samples ours ON ours.run_id = r.run_id AND ours.step = theirs.step
        AND ours.micro_batch = theirs.micro_batch AND ours.rank = theirs.rank AND ours.position = theirs.position
        AND ours.sample_id = theirs.sample_id WHERE r.run_id = :run AND ours.step IS NULL""",
    ),
    "foreign_sample": (
        "a step that is this run's own holds a sample of another one",
        """SELECT m.step, m.sample_id, s.run_id AS sample_of FROM step_samples m JOIN samples s ON s.id = m.sample_id
        JOIN runs r ON r.run_id = m.run_id
        WHERE m.run_id = :run AND s.run_id <> m.run_id AND m.step > coalesce(r.forked_step, 0)""",
    ),
    "step_gap": (
        "a step is missing before this one",
        """SELECT step, before_it FROM
        (SELECT step, lag(step, 1, 0) OVER (ORDER BY step) AS before_it FROM steps WHERE run_id = :run) AS follows
        WHERE step <> before_it + 1""",
    ),
    "unfinished_step": (
        "a step was never finished although a later one was recorded, or the run is finished",
        """SELECT step FROM steps WHERE run_id = :run AND (finished_at IS NULL OR weight_digest IS NULL)
        AND (step < (SELECT max(step) FROM steps WHERE run_id = :run)
        OR (SELECT status FROM runs WHERE run_id = :run) = 'finished')""",
    ),
    "version_gap": (
        "a policy version is missing before this one, or is older than the step before",
        """SELECT version, step, before_it FROM
        (SELECT version, step, lag(version, 1, -1) OVER (ORDER BY version) AS before_it,
        lag(step, 1, 0) OVER (ORDER BY version) AS step_before FROM policies WHERE run_id = :run) AS follows
        WHERE version <> before_it + 1 OR step < step_before""",
    ),
    "policy_step": (
        "a policy version was made by a step that is not there",
        """SELECT p.version, p.step FROM policies p LEFT JOIN steps s ON s.run_id = p.run_id AND s.step = p.step
        WHERE p.run_id = :run AND p.step > 0 AND s.step IS NULL""",
    ),
    "published_weights": (
        "a policy version is not the weights that its step made, and no replay has made others",
        """SELECT p.version, p.step, p.digest, s.weight_digest FROM policies p
        JOIN steps s ON s.run_id = p.run_id AND s.step = p.step
        WHERE p.run_id = :run AND p.digest <> s.weight_digest AND NOT EXISTS (SELECT 1 FROM run_events e
        WHERE e.run_id = p.run_id AND e.kind = 'replay_differs'
        AND e.message = 'step ' || p.step || ' made other weights when it was replayed')""",
    ),
    "current_version": (
        "the run's policy version is not the last one published",
        """SELECT policy_version, last_one FROM runs CROSS JOIN
        (SELECT coalesce(max(version), -1) AS last_one FROM policies WHERE run_id = :run) AS published
        WHERE run_id = :run AND policy_version <> last_one""",
    ),
    "cursor": (
        "the cursor names no checkpoint, or one of a step that was not finished",
        """SELECT r.checkpoint_step, c.path, s.finished_at FROM runs r
        LEFT JOIN checkpoints c ON c.run_id = r.run_id AND c.step = r.checkpoint_step
        LEFT JOIN steps s ON s.run_id = r.run_id AND s.step = r.checkpoint_step
        WHERE r.run_id = :run AND r.checkpoint_step IS NOT NULL
        AND (c.path IS NULL OR (s.finished_at IS NULL AND r.checkpoint_step > 0))""",
    ),
}

# A rollout of several samples may be begun in one step and finished in a later one: only its first step counts.
STALENESS = (
    "a rollout was older than max_staleness when its first sample was trained, or newer than the trainer",
    """SELECT s.group_id, s.member, min(s.step) AS step, min(t.policy_version) - min(g.version) AS staleness
    FROM samples s JOIN groups g ON g.id = s.group_id JOIN steps t ON t.run_id = s.run_id AND t.step = s.step
    WHERE s.run_id = :run AND s.status = 'trained' GROUP BY s.group_id, s.member
    HAVING min(t.policy_version) - min(g.version) > :max_staleness OR min(t.policy_version) < min(g.version)""",
)

GROUPS = {
    "sample_status": (
        "a sample is not exactly one of pending, trained in a step, dropped for a reason",
        """SELECT id AS sample_id, status, step, drop_reason FROM samples WHERE run_id = :run AND NOT (
        (status = 'pending' AND step IS NULL AND drop_reason IS NULL) OR
        (status = 'trained' AND step IS NOT NULL AND drop_reason IS NULL) OR
        (status = 'dropped' AND step IS NULL AND drop_reason IS NOT NULL))""",
    ),
    "one_fate": (
        "a rollout has dropped samples beside others",
        """SELECT group_id, member, count(*) AS num_samples FROM samples WHERE run_id = :run GROUP BY group_id, member
        HAVING sum(CASE WHEN status = 'dropped' THEN 1 ELSE 0 END) NOT IN (0, count(*))""",
    ),
    "group_status": (
        "a group's status does not follow from its samples",
        """SELECT g.id AS group_id, g.status, coalesce(n.pending, 0) AS pending, coalesce(n.trained, 0) AS trained
        FROM groups g LEFT JOIN (SELECT group_id, sum(CASE WHEN status = 'pending' THEN 1 ELSE 0 END) AS pending,
        sum(CASE WHEN status = 'trained' THEN 1 ELSE 0 END) AS trained FROM samples WHERE run_id = :run
        GROUP BY group_id) AS n ON n.group_id = g.id
        WHERE g.run_id = :run AND g.shared_group_id IS NULL AND (g.status <> 'claimed' OR n.group_id IS NOT NULL)
        AND g.status <> CASE WHEN coalesce(n.pending, 0) > 0 THEN 'ready'
        WHEN coalesce(n.trained, 0) > 0 THEN 'trained' ELSE 'dropped' END""",
    ),
    "drop_reason": (
        "a group without samples was dropped without a reason",
        """SELECT g.id AS group_id, g.prompt_index FROM groups g WHERE g.run_id = :run AND g.status = 'dropped'
        AND g.drop_reason IS NULL AND NOT EXISTS (SELECT 1 FROM samples s WHERE s.group_id = g.id)""",
    ),
    "sample_gap": (
        "a sample of a group is missing before the last one",
        """SELECT group_id, count(*) AS num_samples, max(position) AS last_position FROM samples WHERE run_id = :run
        GROUP BY group_id HAVING count(*) <> max(position) + 1""",
    ),
    "pruned": (
        "the tokens of a sample that is still to be trained, or trained again, were pruned",
        """SELECT s.group_id, s.id AS sample_id, s.status, s.step FROM samples s JOIN groups g ON g.id = s.group_id
        JOIN runs r ON r.run_id = s.run_id WHERE s.run_id = :run AND g.pruned_at IS NOT NULL
        AND (s.status = 'pending' OR s.step > coalesce(r.checkpoint_step, 0))""",
    ),
    "prompt_gap": (
        "no group stands for the prompt before this one",
        """SELECT prompt_index, before_it FROM (SELECT prompt_index,
        lag(prompt_index, 1, -1) OVER (ORDER BY prompt_index) AS before_it FROM groups WHERE run_id = :run) AS follows
        WHERE prompt_index <> before_it + 1""",
    ),
    "prompt_end": (
        "the number of groups is not the number of claimed prompts",
        """SELECT next_prompt_index, num_groups FROM runs CROSS JOIN
        (SELECT count(*) AS num_groups FROM groups WHERE run_id = :run) AS made
        WHERE run_id = :run AND next_prompt_index <> num_groups""",
    ),
    "ready_order": (
        "two groups have the same place in the order, or one has a place never given out",
        """SELECT ready_order, count(*) AS num_groups FROM groups WHERE run_id = :run AND ready_order IS NOT NULL
        GROUP BY ready_order HAVING count(*) > 1
        OR ready_order > (SELECT last_ready_order FROM runs WHERE run_id = :run)""",
    ),
    "ready_order_gap": (
        "a place in the order was given out and no group has it",
        """SELECT last_ready_order, num_groups FROM runs CROSS JOIN (SELECT count(ready_order) AS num_groups FROM groups
        WHERE run_id = :run) AS made WHERE run_id = :run AND last_ready_order <> num_groups""",
    ),
    "unscored_rollout": (
        "a group has left its worker and one of its rollouts is unfinished",
        """SELECT g.id AS group_id, r.member, r.status FROM groups g JOIN rollouts r ON r.group_id = g.id
        WHERE g.run_id = :run AND g.status <> 'claimed' AND r.status <> 'scored'""",
    ),
    "trained_tokens": (
        "the samples of a rollout train more tokens than were generated",
        """SELECT s.group_id, s.member, sum(s.num_trained) AS num_trained, min(r.num_generated) AS num_generated
        FROM samples s JOIN rollouts r ON r.group_id = s.group_id AND r.member = s.member
        WHERE s.run_id = :run GROUP BY s.group_id, s.member HAVING sum(s.num_trained) > min(r.num_generated)""",
    ),
}
