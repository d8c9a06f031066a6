"""The door for new requests: open, then closed for good, and somebody who waits for the last one inside."""

from __future__ import annotations

import asyncio

import pytest

from pagewire.frontend.http.access.admission import Admission


async def test_waiting_ends_with_the_last_request_inside():
    admission = Admission()
    await admission.wait_idle()
    with admission.answering():
        with admission.answering():
            waiting = asyncio.create_task(admission.wait_idle())
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_request_that_fails_is_counted_out():
    admission = Admission()
    with pytest.raises(ValueError), admission.answering():
        raise ValueError
    await admission.wait_idle()


def test_closed_door_stays_closed_and_says_when_to_come_back():
    admission = Admission()
    assert not admission.is_closed
    admission.close()
    admission.close()
    assert admission.is_closed
    assert admission.refusal().retry_after_s >= 1
