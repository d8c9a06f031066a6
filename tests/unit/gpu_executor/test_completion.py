"""What is done becomes readable, in order, and a failure too."""

from __future__ import annotations

import select
import subprocess
import sys
import threading

import pytest

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


def end_of(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S)


ENDING = """
import atexit, logging, sys, threading
from pagewire.gpu_executor.completion import CompletionNotice, end_process
atexit.register(print, "shut down", flush=True)
class Endless:
    def wait(self):
        is_waiting.set()
        threading.Event().wait()
is_waiting = threading.Event()
logging.basicConfig(stream=sys.stderr, format="%(message)s")
logging.warning("last words")
"""


def test_process_with_a_waiting_thread_ends_without_it_and_loses_no_words():
    watching = 'CompletionNotice().watch(Endless()); is_waiting.wait(); sys.stdout.write("written"); end_process(3)'
    ended = end_of(ENDING + watching)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "written", "last words\n")


def test_process_without_one_ends_as_any_other():
    ended = end_of(ENDING + "CompletionNotice(); end_process(3)")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "shut down\n", "last words\n")


@pytest.mark.slow  # a process that imports torch
def test_thread_within_torch_does_not_abort_the_process():
    ended = end_of(
        """
import threading, torch
from pagewire.gpu_executor.completion import CompletionNotice, end_process
torch.set_num_threads(1)
matrix = torch.ones(1200, 1200)
is_computing = threading.Event()
class Product:
    def wait(self):  # as an event of a device does: without the interpreter, and then back into it
        while True:
            torch.mm(matrix, matrix)
            is_computing.set()
notice = CompletionNotice()
notice.watch(Product())
is_computing.wait()
end_process(0)
"""
    )
    assert (ended.returncode, ended.stderr) == (0, "")
