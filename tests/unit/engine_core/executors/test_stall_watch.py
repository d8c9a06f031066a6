"""An executor that owes an answer may be silent for so long, and an idle one for ever."""

from __future__ import annotations

from pagewire.engine_core.executors.stall_watch import StallWatch


def looks(watch: StallWatch, *times: float) -> list[bool]:
    return [watch.is_overdue(now) for now in times]


def every_half(start: float, end: float) -> list[float]:
    return [start + 0.5 * i for i in range(int((end - start) * 2) + 1)]


def test_nothing_is_overdue_that_was_not_expected():
    watch = StallWatch(3.0)
    assert not watch.is_waiting
    assert looks(watch, 0.0, 100.0) == [False, False]


def test_silence_beyond_the_limit_is_a_stall():
    watch = StallWatch(3.0)
    watch.expect(10.0)
    assert watch.is_waiting
    assert not any(looks(watch, *every_half(10.0, 13.0)))
    assert watch.is_overdue(13.5)


def test_answer_begins_the_time_anew_and_idleness_ends_it():
    watch = StallWatch(3.0)
    watch.expect(0.0)
    assert not any(looks(watch, *every_half(0.0, 2.5)))
    watch.expect(2.5)
    assert not any(looks(watch, *every_half(2.5, 5.5)))
    watch.rest()
    assert not any(looks(watch, *every_half(5.5, 20.0)))


def test_announced_work_may_take_longer_but_never_less_than_the_limit():
    watch = StallWatch(3.0)
    watch.expect(0.0, 10.0)
    assert not any(looks(watch, *every_half(0.0, 10.0)))
    assert watch.is_overdue(10.5)
    assert (watch.allowed_s, watch.is_announced) == (10.0, True)
    watch.expect(20.0, 0.1)
    assert (watch.allowed_s, watch.is_announced) == (3.0, False), "the limit was the user's"
    assert not any(looks(watch, *every_half(20.0, 23.0)))


def test_work_between_steps_puts_the_answer_off_that_is_owed():
    watch = StallWatch(3.0)
    watch.expect(0.0)
    watch.announce(1.0, 5.0)
    assert not any(looks(watch, *every_half(1.0, 9.0)))
    assert watch.is_overdue(9.5)
    assert (watch.allowed_s, watch.is_announced) == (8.0, True)


def test_what_is_asked_for_while_executors_work_is_due_the_usual_time_after_that():
    watch = StallWatch(3.0)
    watch.announce(0.0, 5.0)
    assert not watch.is_waiting, "nobody waits for it to end"
    watch.expect(2.0)
    assert not any(looks(watch, *every_half(2.0, 8.0)))
    assert watch.is_overdue(8.5)


def test_answer_that_was_on_its_way_does_not_end_the_announced_work():
    watch = StallWatch(3.0)
    watch.expect(0.0)
    watch.announce(0.5, 5.0)
    watch.rest()  # the answer
    watch.expect(1.0)
    assert not any(looks(watch, *every_half(1.0, 8.5)))
    assert watch.is_overdue(9.0)


def test_work_that_is_told_to_be_over_puts_nothing_off_any_more():
    watch = StallWatch(3.0)
    watch.expect(0.0)
    watch.announce(1.0, 120.0)
    watch.announce(2.0, 0.0)
    assert (watch.allowed_s, watch.is_announced) == (3.0, False)
    assert not any(looks(watch, *every_half(2.0, 5.0)))
    assert watch.is_overdue(5.5)


def test_announced_work_counts_no_longer_once_its_time_is_over_or_its_executor_gone():
    watch = StallWatch(3.0)
    watch.announce(0.0, 5.0)
    watch.expect(6.0)
    assert (watch.allowed_s, watch.is_announced) == (3.0, False)
    watch.announce(7.0, 100.0)
    watch.start_over()
    assert not watch.is_waiting
    watch.expect(8.0)
    assert (watch.allowed_s, watch.is_announced) == (3.0, False)


def test_time_in_which_the_core_itself_was_stopped_does_not_count():
    watch = StallWatch(3.0)
    watch.expect(0.0)
    assert looks(watch, 0.5, 1.0, 60.0) == [False, False, False]
    assert not any(looks(watch, *every_half(60.0, 62.0)))
    assert watch.is_overdue(62.5)
