from __future__ import annotations

from pagewire.engine_core.request import Child, ChildStatus, Request
from pagewire.engine_core.waiting_queue import WaitingQueue
from tests.support.builders import build_request
from tests.support.engine_driver import ALICE


def build_child(arrival, priority=0, adapter_id=0):
    message = build_request(arrival, [1], priority=priority)
    request = Request(
        ALICE, message, arrival=arrival, now=0.0, max_model_len=9, has_priority=True, adapter_id=adapter_id
    )
    return request.children[0]


def drain(queue):
    while queue.peek() is not None:
        yield queue.pop()


def test_earlier_arrival_comes_first_whenever_it_is_pushed():
    first, second, third = (build_child(arrival) for arrival in (1, 2, 3))
    queue = WaitingQueue()
    for child in (third, first, second):
        queue.push(child)
    assert list(drain(queue)) == [first, second, third]


def test_lower_priority_value_comes_first():
    low, high = build_child(1, priority=2), build_child(2, priority=-2)
    queue = WaitingQueue()
    queue.push(low)
    queue.push(high)
    assert list(drain(queue)) == [high, low]


def test_children_of_one_request_come_in_their_order():
    first = build_child(1)
    second = Child(first.request, 1, [1], (0, 1, 1))
    queue = WaitingQueue()
    queue.push(second)
    queue.push(first)
    assert list(drain(queue)) == [first, second]


def test_finished_child_is_dropped_wherever_it_waits():
    first, second = build_child(1), build_child(2)
    queue = WaitingQueue()
    queue.push(first)
    queue.push(second)
    first.move_to(ChildStatus.FINISHED)
    queue.discard(first)
    assert len(queue) == 1
    assert queue.children() == [second]
    assert queue.peek() is second


def test_adapters_are_counted_while_their_children_wait():
    first, second, third = build_child(1, adapter_id=7), build_child(2, adapter_id=7), build_child(3)
    queue = WaitingQueue()
    for child in (first, second, third):
        queue.push(child)
    assert dict(+queue.num_with_adapter) == {7: 2}
    assert queue.pop() is first
    second.move_to(ChildStatus.FINISHED)
    queue.discard(second)
    assert not +queue.num_with_adapter


def test_empty_queue_has_no_head():
    assert WaitingQueue().peek() is None


def test_requests_that_wait_for_their_first_step_are_counted_with_their_prompts():
    first, second, preempted = (build_child(arrival) for arrival in (1, 2, 3))
    preempted.request.first_scheduled_s = 0.0
    queue = WaitingQueue()
    for child in (first, second, preempted):
        queue.push(child)
    assert (len(queue), queue.num_new_requests, queue.num_new_tokens) == (3, 2, 2)
    second.move_to(ChildStatus.FINISHED)
    queue.discard(second)
    assert (len(queue), queue.num_new_requests, queue.num_new_tokens) == (2, 1, 1)
    assert queue.peek() is first
    queue.pop()
    assert (len(queue), queue.num_new_requests, queue.num_new_tokens) == (1, 0, 0)


def test_others_are_held_back_while_one_request_is_alone_and_keep_their_places():
    first, second, third, fourth = (build_child(arrival) for arrival in (1, 2, 3, 4))
    queue = WaitingQueue()
    for child in (third, first, second):
        queue.push(child)
    queue.isolate(second.request)
    queue.push(fourth)
    assert len(queue) == 4
    assert set(queue.children()) == {first, second, third, fourth}
    assert list(drain(queue)) == [second]
    third.move_to(ChildStatus.FINISHED)
    queue.discard(third)
    queue.isolate(None)
    assert len(queue) == 2
    assert list(drain(queue)) == [first, fourth]
