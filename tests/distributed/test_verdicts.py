"""Who is to blame, from what is known of each process."""

from jaxpar.distributed import verdicts
from jaxpar.distributed.verdicts import Mark, Sign

STEP = "distributed.step_timeout_s"


def sign(
    process: int, *, count: int = 7, at: str = "in step 12", age: float = 1.0, silent: float = 0.5, limit: float = 600.0
) -> Sign:
    return Sign(process, f"node-{process}", Mark(count, at, limit, STEP, 600.0), age, silent)


def test_one_that_died_is_named_with_what_it_did_last():
    message = verdicts.died(sign(3))
    parts = ("process 3 on node-3 died", "in step 12", "500 ms ago", "the same command", "newest checkpoint")
    assert all(part in message for part in parts), message


def test_those_that_are_silent_for_longer_are_named():
    assert verdicts.silent([sign(1, silent=30.0), sign(2)], 30) is None
    message = verdicts.silent([sign(1, silent=30.1), sign(2), sign(3, silent=31)], 30)
    assert (message or "").startswith(
        "process 1 on node-1 and process 3 on node-3 gave no sign of life for 30 s (distributed.heartbeat_timeout_s; "
        "they were in step 12): stopped, or "
    )


def test_of_many_only_the_first_are_named():
    message = verdicts.silent([sign(number, silent=31) for number in range(1, 9)], 30)
    assert message and "process 4 on node-4 and 4 more gave no sign" in message and "node-5" not in message


def test_nobody_is_late_within_the_limit():
    assert verdicts.stalled([sign(0, age=600), sign(1, age=0)]) is None


def test_the_one_that_the_others_wait_for_is_named_and_not_those_that_wait():
    waiting = [sign(number, count=9, at="waiting for step 12", age=601) for number in (0, 1, 3)]
    message = verdicts.stalled([*waiting[:2], sign(2, count=8, age=602), waiting[2]])
    assert (message or "").startswith(
        "process 2 on node-2 made no progress for 600 s (distributed.step_timeout_s), and the others wait for it "
        "(it was in step 12); "
    )


def test_the_one_behind_is_named_also_when_it_has_more_time_itself():
    """It evaluates, say, while the others wait for it in a step."""
    behind = Sign(1, "node-1", Mark(3, "evaluating after step 10", 7200.0, "distributed.pause_timeout_s"), 700.0, 0.1)
    message = verdicts.stalled([sign(0, age=601), behind])
    assert (message or "").startswith("process 1 on node-1 made no progress for 600 s")


def test_one_that_is_behind_in_the_step_has_no_longer_than_a_step():
    message = verdicts.stalled([sign(0, count=9, age=44, limit=45), sign(1, age=46, limit=45)])
    assert (message or "").startswith(f"process 1 on node-1 made no progress for 45 s ({STEP}), and ")


def test_those_in_a_step_wait_longer_for_one_that_saves():
    saving = Sign(0, "node-0", Mark(3, "saving step 10", 7200.0, "distributed.pause_timeout_s"), 599.0, 0.1)
    assert verdicts.stalled([saving, sign(1, age=599, limit=45), sign(2, age=599, limit=45)]) is None
    message = verdicts.stalled([saving, sign(1, age=601, limit=45), sign(2, age=598, limit=45)])
    assert (message or "").startswith("process 0 on node-0 made no progress for 600 s")


def test_time_in_which_they_waited_for_one_that_saved_does_not_count_afterwards():
    signs = [sign(0, count=9, age=0.5, limit=45), sign(1, count=8, age=300, limit=45)]
    assert verdicts.stalled(signs, since_pause_s=44) is None
    message = verdicts.stalled(signs, since_pause_s=46)
    assert (message or "").startswith(f"process 1 on node-1 made no progress for 45 s ({STEP}), and ")


def opening(*, idle: float, age: float = 50.0) -> Sign:
    mark = Mark(3, "opening its data", 7200.0, "distributed.pause_timeout_s", busy=True)
    return Sign(1, "node-1", mark, age, 0.1, idle)


def test_one_that_does_nothing_where_there_is_much_to_do_is_named_soon():
    ahead = Sign(0, "node-0", Mark(5, "looking into its folder", 7200.0, "distributed.pause_timeout_s"), 47.0, 0.1)
    message = verdicts.stalled([ahead, opening(idle=46)]) or ""
    parts = ("process 1 on node-1 did nothing for 45 s", "opening its data", "the same command", "newest checkpoint")
    assert all(part in message for part in parts), message
    assert verdicts.stalled([ahead, opening(idle=3, age=4000)]) is None, "it reads"
    assert verdicts.stalled([ahead, opening(idle=46, age=30)]) is None, (
        "it did nothing before, which was something else"
    )
    assert verdicts.stalled([opening(idle=46), opening(idle=46)]) is None, "nobody waits for them"


def test_when_nobody_is_behind_all_are_where_they_are():
    message = verdicts.stalled([sign(number, at="waiting for step 12", age=601) for number in range(3)])
    assert (message or "").startswith(
        "no process made progress for 600 s (distributed.step_timeout_s), all of them waiting for step 12: a "
    )
