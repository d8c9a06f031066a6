"""The requests of one client whose end is still to come, and which of them the core has been told of.

A core learns of them in the order of their arrival; when it has ended, so does the next one, with the tokens that have
come since. A request that was in `MAX_DEATHS` cores at their end without a token between may be what ends them. Such
suspects go first and alone, each until it has a token or an end, while all others wait: a death then is theirs.

Where there are several cores, the requests of one that has ended go on in the others at once. Those that one more death
would make suspects stay, and wait for the next core at their place: a second core would be ended for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from pagewire.ipc.errors import DeadlineExceeded, ErrorInfo, Overloaded, PoisonRequest, describe_seconds
from pagewire.ipc.outputs import RequestEnd, StepOutputs
from pagewire.ipc.requests import AbortRequests, AddRequest, ClientMessage

from .core_link import LinkOptions
from .journal import MAX_DEATHS, JournalEntry
from .token_stream import Mailbox

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5  # a small model is back by then
DEADLINE_GRACE_S = 1.0  # the core ends late requests itself; one that has stopped does not


class Progress(Protocol):
    """Who wants to know how far requests are."""

    def started(self, request_id: int) -> None:
        """The prompt is computed."""
        ...

    def ended(self, request_id: int) -> None:
        """Nothing more comes."""
        ...


class LiveRequests:
    """See the module.

    Args:
        send: sends to the core that the client is attached to.
        options: bound the new requests that may wait for a core, and say whom to tell of a conviction.

    Attributes:
        progress: told of starts and ends; None if nobody wants to know.
    """

    def __init__(self, send: Callable[[ClientMessage], None], options: LinkOptions) -> None:
        self.progress: Progress | None = None
        self._send = send
        self._max_held_back = options.max_held_back
        self._on_conviction = options.on_conviction
        self._unheard: set[int] = set()  # ids of those held back that no core was ever told of
        self._clock = asyncio.get_running_loop().time
        self._mailboxes: dict[int, Mailbox] = {}  # in the order of arrival
        self._held_back: dict[int, Mailbox] = {}  # of those, the ones that the core has not been told of
        self._alone: Mailbox | None = None  # the suspect that the core has been told of, and no other since
        self._is_attached = True
        self._was_serving = True  # the last core, when it was lost
        self._changed: list[Mailbox] = []  # by the messages that are being taken; told once, after the last of them
        self._is_taking = False

    def __len__(self) -> int:
        return len(self._mailboxes)

    @property
    def is_isolating(self) -> bool:
        """Whether a suspect runs alone, and all others wait for it."""
        return self._alone is not None

    def add(self, request: AddRequest) -> Mailbox:
        """Take in a request, and send it as soon as a core may have it.

        Raises:
            Overloaded: too many wait for a core.
        """
        is_due = self._is_attached and self._alone is None
        if not is_due and 0 < self._max_held_back <= len(self._unheard):
            what = (
                "The engine finds out whether a request ends it"
                if self._is_attached
                else "The engine is being started again"
            )
            raise Overloaded(
                f"{what}, and {self._max_held_back} new requests wait for it already. Try again later.",
                retry_after_s=RETRY_AFTER_S,
            )
        mailbox = Mailbox(request, self._abort_at_core, self._forget, self._tell_of_change)
        self._mailboxes[request.request_id] = mailbox
        if is_due:
            mailbox.entry.is_sent = True
            self._send(request)
        else:
            self._held_back[request.request_id] = mailbox
            self._unheard.add(request.request_id)
        return mailbox

    def abort(self, request_ids: Iterable[int]) -> None:
        """End requests, those that no core knows at once; ids that are not live are passed over."""
        at_core = []
        for request_id in request_ids:
            mailbox = self._mailboxes.get(request_id)
            if mailbox is None:
                continue
            mailbox.entry.is_aborted = True
            if self._is_attached and mailbox.entry.is_sent:
                at_core.append(request_id)
            else:
                mailbox.put_end(RequestEnd(request_id=request_id))
        if at_core:
            self._send(AbortRequests(request_ids=at_core))

    def take(self, outputs: StepOutputs) -> None:
        """Hand over what a step brought; between `begin_taking` and `end_taking`."""
        # Requests that are not live here were closed by their reader; the core learns of it by the abort under way.
        live = self._mailboxes
        for request_id in outputs.accepted:
            if request_id in live:
                live[request_id].put_accepted()
        for request_id in outputs.scheduled:
            if request_id in live:
                live[request_id].entry.is_scheduled = True
        for start in outputs.starts:
            if start.request_id in live:
                live[start.request_id].put_start(start)
                if self.progress is not None:
                    self.progress.started(start.request_id)
        for delta in outputs.deltas:
            if delta.request_id in live:
                live[delta.request_id].put_delta(delta)
        for embedding in outputs.embeddings:
            if embedding.request_id in live:
                live[embedding.request_id].put_embedding(embedding)
        for end in outputs.ends:
            if end.request_id in live:
                live[end.request_id].put_end(end)
        if self._alone is not None:
            self._send_due()

    def begin_taking(self) -> None:
        """Put off telling readers, who hear once of what came together: steps that they missed cost them less."""
        self._is_taking = True

    def end_taking(self) -> None:
        """Tell readers what has changed since `begin_taking`."""
        self._is_taking = False
        changed, self._changed = self._changed, []
        for mailbox in changed:
            mailbox.notify()

    def core_lost(self, *, was_serving: bool) -> None:
        """Hold back everything: whatever the core knew is lost with the connection.

        Args:
            was_serving: whether the core had executors that take steps, as far as it had said.
        """
        self._is_attached = False
        self._was_serving = was_serving
        self._held_back = dict(self._mailboxes)
        for request_id, mailbox in list(self._mailboxes.items()):
            if mailbox.entry.is_aborted or not mailbox.entry.living_children:
                mailbox.put_end(RequestEnd(request_id=request_id))

    def release(self, *, is_final: bool) -> list[Mailbox]:
        """Give away what may go on in another core at once, now that this one is lost; in the order of arrival.

        Args:
            is_final: no core will come here any more, so that nothing can wait for it.
        """
        assert not self._is_attached
        involved, is_alone = self._involved() if self._was_serving else ([], False)
        involved_ids = {mailbox.entry.request.request_id for mailbox in involved}
        released = []
        for request_id, mailbox in list(self._mailboxes.items()):
            entry = mailbox.entry
            is_involved = request_id in involved_ids
            if not is_final and entry.num_deaths + is_involved >= MAX_DEATHS:
                continue
            if is_involved:
                entry.count_death(was_alone=is_alone)
            entry.is_sent = entry.is_scheduled = False
            del self._mailboxes[request_id]
            self._held_back.pop(request_id, None)
            self._unheard.discard(request_id)
            released.append(mailbox)
        return released

    def adopt(self, mailboxes: Iterable[Mailbox]) -> None:
        """Take in what another core's list has released, and send it as soon as the core here may have it."""
        for mailbox in mailboxes:
            mailbox.hand_over(self._abort_at_core, self._forget, self._tell_of_change)
            request_id = mailbox.entry.request.request_id
            self._mailboxes[request_id] = self._held_back[request_id] = mailbox
        # They keep their place among those that came later.
        self._mailboxes = dict(sorted(self._mailboxes.items()))
        self._held_back = dict(sorted(self._held_back.items()))
        self._send_due()

    def core_attached(self, *, is_another: bool) -> None:
        """Tell a core of the requests.

        Args:
            is_another: the core that they were sent to last has ended; else only the connection to it had.
        """
        if is_another:
            self._count_death()
        for mailbox in self._mailboxes.values():
            mailbox.entry.is_sent = mailbox.entry.is_scheduled = False
        self._alone = None
        self._is_attached = True
        self.fail_late()
        self._send_due()

    def fail_late(self) -> None:
        """End the requests whose time is over where no core does it."""
        now = self._clock()
        for request_id, mailbox in list(self._mailboxes.items()):
            if mailbox.deadline is None:
                continue
            is_at_core = self._is_attached and mailbox.entry.is_sent
            if now >= mailbox.deadline + (DEADLINE_GRACE_S if is_at_core else 0.0):
                if is_at_core:
                    self._send(AbortRequests(request_ids=[request_id]))
                given_s = mailbox.entry.request.timeout_s
                assert given_s is not None
                text = (
                    f"The request was not finished within its {describe_seconds(given_s)}. "
                    "Give it more, or ask for fewer tokens."
                )
                mailbox.fail(DeadlineExceeded(text, param="timeout").to_info())

    def fail_all(self, error: ErrorInfo) -> None:
        """End everything, as there will be no core any more."""
        self._is_attached = False
        for mailbox in list(self._mailboxes.values()):
            mailbox.fail(error)

    def _count_death(self) -> None:
        """Note the end of a core for those that may be why; end the one that is to blame."""
        if not self._was_serving:  # its executors loaded, and it had nothing in hand
            return
        involved, is_alone = self._involved()
        for mailbox in involved:
            entry = mailbox.entry
            entry.count_death(was_alone=is_alone)
            if entry.is_culprit:
                logger.error("%s ended the engine core each time that it ran alone: it fails", _name(entry))
                mailbox.fail(
                    PoisonRequest(
                        f"The request ended the engine core {entry.num_deaths} times in a row, "
                        f"{entry.num_deaths_alone} of them while it ran alone. It is not tried again; other requests "
                        "go on."
                    ).to_info()
                )
                self._on_conviction()

    def _involved(self) -> tuple[list[Mailbox], bool]:
        """Return those that may be why the core has ended, and whether that is one that ran alone."""
        sent = [mailbox for mailbox in self._mailboxes.values() if mailbox.entry.is_sent]
        # Those that only wait have done nothing. But one may end a core before it is in a step: then none of them was.
        involved = [mailbox for mailbox in sent if mailbox.entry.is_scheduled] or sent
        if self._alone is not None and self._alone in involved:
            return [self._alone], True
        return involved, False

    def _send_due(self) -> None:
        """Tell the core of all that it may know of now."""
        if not self._is_attached:
            return
        if self._alone is not None and self._alone.end is None and self._alone.entry.is_suspect:
            return
        self._alone = next((mailbox for mailbox in self._held_back.values() if mailbox.entry.is_suspect), None)
        due = list(self._held_back.values()) if self._alone is None else [self._alone]
        for mailbox in due:
            entry = mailbox.entry
            if entry.is_suspect:
                logger.warning("%s was there when %d cores ended: it runs alone", _name(entry), entry.num_deaths)
            del self._held_back[entry.request.request_id]
            self._unheard.discard(entry.request.request_id)
            entry.is_sent = True
            self._send(mailbox.addition())

    def _abort_at_core(self, message: AbortRequests) -> None:
        if self._is_attached:
            self._send(message)

    def _forget(self, request_id: int) -> None:
        mailbox = self._mailboxes.pop(request_id)
        self._held_back.pop(request_id, None)
        self._unheard.discard(request_id)
        if self.progress is not None:
            self.progress.ended(request_id)
        if mailbox is self._alone:
            self._send_due()

    def _tell_of_change(self, mailbox: Mailbox) -> None:
        if self._is_taking:
            self._changed.append(mailbox)
        else:
            mailbox.notify()


def _name(entry: JournalEntry) -> str:
    label = entry.request.label
    return f"request_id={entry.request.request_id}{f' ({label})' if label else ''}"
