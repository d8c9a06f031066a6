"""What is done becomes readable, in order, and a failure too."""

from __future__ import annotations

import select
import threading

from pagewire.gpu_executor.completion import CompletionNotice

DEADLINE_S = 30.0


class Work:
    def __init__(self, failure=None):
        self.is_done = threading.Event()
        self.failure = failure

    def wait(self):
        assert self.is_done.wait(DEADLINE_S)
        if self.failure is not None:
            raise self.failure


def is_readable(notice, timeout_s=0.0):
    return bool(select.select([notice.fd], [], [], timeout_s)[0])


def test_descriptor_is_readable_once_the_work_is_done():
    notice, work = CompletionNotice(), Work()
    notice.watch(work)
    assert not is_readable(notice)
    work.is_done.set()
    assert is_readable(notice, DEADLINE_S)
    notice.clear()
    assert not is_readable(notice)


def test_clearing_what_was_not_noticed_is_fine():
    CompletionNotice().clear()


def test_failed_work_is_noticed_and_does_not_end_the_watching():
    notice, failing, work = CompletionNotice(), Work(RuntimeError("the device failed")), Work()
    failing.is_done.set()
    notice.watch(failing)
    assert is_readable(notice, DEADLINE_S)
    notice.clear()
    notice.watch(work)
    work.is_done.set()
    assert is_readable(notice, DEADLINE_S)
