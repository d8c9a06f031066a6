"""Who was there again and again is run alone, and who ends executors alone is the culprit."""

from __future__ import annotations

from pagewire.engine_core.faults.blame import Blame, poison_error
from pagewire.engine_core.request import Request
from tests.support.builders import build_request
from tests.support.engine_driver import ALICE


def build(arrival: int) -> Request:
    return Request(ALICE, build_request(arrival, [1]), arrival=arrival, now=0.0, max_model_len=9, has_priority=False)


def test_one_death_makes_nobody_a_suspect():
    blame, request = Blame(), build(1)
    assert not blame
    assert blame.count_death([request]) is None
    assert blame
    assert blame.suspect() is None


def test_two_deaths_without_a_token_between_make_suspects_the_earliest_first():
    blame, first, second = Blame(), build(1), build(2)
    for _ in range(2):
        assert blame.count_death([second, first]) is None
    assert blame.suspect() is first
    blame.clear(first)
    assert blame.suspect() is second
    blame.clear(second)
    assert blame.suspect() is None
    assert not blame


def test_token_between_two_deaths_clears():
    blame, request = Blame(), build(1)
    blame.count_death([request])
    blame.clear(request)
    blame.count_death([request])
    assert blame.suspect() is None


def test_who_dies_alone_twice_is_the_culprit():
    blame, culprit, other = Blame(), build(1), build(2)
    for _ in range(2):
        blame.count_death([culprit, other])
    assert blame.count_death([culprit]) is None
    assert blame.count_death([culprit]) is culprit


def test_kills_from_outside_are_weaker_evidence():
    blame, culprit = Blame(), build(1)
    for _ in range(4):
        assert blame.count_death([culprit], was_killed=True) is None
    assert blame.count_death([culprit], was_killed=True) is culprit


def test_kill_and_a_death_of_its_own_making_are_not_yet_the_proof():
    blame, culprit = Blame(), build(1)
    for _ in range(2):
        blame.count_death([culprit])
    assert blame.count_death([culprit], was_killed=True) is None
    assert blame.count_death([culprit]) is None
    assert blame.count_death([culprit]) is culprit


def test_death_with_others_in_flight_proves_nothing_against_a_suspect():
    blame, suspect, other = Blame(), build(1), build(2)
    for _ in range(5):
        assert blame.count_death([suspect, other]) is None


def test_death_with_nothing_in_flight_blames_nobody():
    blame, suspect = Blame(), build(1)
    for _ in range(2):
        blame.count_death([suspect])
    for _ in range(5):
        assert blame.count_death([]) is None


def test_token_of_a_suspect_clears_its_deaths_alone_too():
    blame, suspect = Blame(), build(1)
    for _ in range(3):
        assert blame.count_death([suspect]) is None
    blame.clear(suspect)
    for _ in range(3):
        assert blame.count_death([suspect]) is None


def test_deaths_of_cores_count_alike():
    blame, once, twice = Blame(), build(1), build(2)
    blame.accept(once, 1)
    blame.accept(twice, 2)
    blame.accept(build(3), 0)
    assert blame.suspect() is twice
    blame.count_death([once])
    assert blame.suspect() is once


def test_ended_requests_are_forgotten():
    blame, ended, living = Blame(), build(1), build(2)
    for _ in range(2):
        blame.count_death([ended, living])
    blame.keep(lambda request: request is living)
    assert blame.suspect() is living
    blame.keep(lambda request: False)
    assert not blame


def test_failure_of_the_culprit_names_the_cause_and_the_remedy():
    error = poison_error("executor 0 was killed by signal 11")
    assert error.status == 500
    assert "signal 11" in error.message
    assert "change this one" in error.message
