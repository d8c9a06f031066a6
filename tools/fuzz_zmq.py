"""Send random frames to an engine while another client streams: `python -m tools.fuzz_zmq --count 5000 --seed 1`.

The rules: the engine lives, as the same process; what can't be read is refused; the other client's tokens are those of
an undisturbed run; nothing is left of the attacker's requests. Without --address, an engine of a tiny checkpoint is
started.
"""

from __future__ import annotations

import argparse
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from pagewire.frontend.client.sync_client import EngineClient
from pagewire.ipc.codec import core_messages, encode
from pagewire.ipc.endpoints import ipc_path
from pagewire.ipc.errors import EngineDead
from pagewire.ipc.outputs import StepOutputs, UtilityResult
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.sampling_params import SamplingParams
from tools.fuzz.frames import Frames
from tools.processes import processes_below
from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.spec import TinyModelSpec

_FRAMES_PER_CONNECTION = 20
_LAST_CALLS = (10**6, 10**6 + 1)  # ids that no frame brings
_START_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 30.0
_SETTLE_TIMEOUT_S = 30.0
_ENGINE_FLAGS = ("--max-model-len", "64", "--max-num-seqs", "8", "--kernels", "reference", "--dtype", "float32")
_READY = "ready: clients attach at"
_PROMPT = [5, 6, 7, 8]
_PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True)


class Attacker(threading.Thread):
    """Connects, sends some frames and leaves, again and again.

    Attributes:
        num_sent: messages so far.
        answers: what came back, by kind; of refused requests, too.
        failure: why it stopped early.
    """

    def __init__(self, address: str, count: int, seed: int) -> None:
        super().__init__(name="attacker")
        self.num_sent = 0
        self.answers: Counter[str] = Counter()
        self.failure: Exception | None = None
        self._address = address
        self._count = count
        self._frames = Frames(seed)

    def run(self) -> None:
        """Send `count` messages."""
        try:
            with zmq.Context() as context:
                connection = 0
                while self.num_sent < self._count:
                    self._attack_once(context, connection)
                    self._attack_beneath(connection)
                    connection += 1
        except Exception as exc:  # told by the main thread
            self.failure = exc

    def _attack_once(self, context: zmq.Context[zmq.Socket[bytes]], connection: int) -> None:
        dealer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        with dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.SNDTIMEO, int(_ANSWER_TIMEOUT_S * 1000))
            dealer.connect(self._address)
            if connection % 2:
                self._send_noise(dealer)
            else:
                self._send_oddities(dealer)

    def _send_noise(self, dealer: zmq.Socket[bytes]) -> None:
        for _ in range(_FRAMES_PER_CONNECTION):
            if self._frames.greets():
                dealer.send(self._frames.greeting())
            dealer.send_multipart(self._frames.noise())
            self.num_sent += 1
        dealer.send(self._frames.greeting())
        self._wait_until_read(dealer)

    def _send_oddities(self, dealer: zmq.Socket[bytes]) -> None:
        dealer.send(self._frames.greeting())
        for _ in range(_FRAMES_PER_CONNECTION):
            dealer.send(self._frames.odd_message())
            self.num_sent += 1
        self._wait_until_read(dealer)

    def _wait_until_read(self, dealer: zmq.Socket[bytes]) -> None:
        """Ask two questions, one after the other, and take all answers until theirs.

        When the first is answered, the core has read what was before it; when the second is, it has said what came of
        it.

        Raises:
            AssertionError: no answer comes.
        """
        for call_id in _LAST_CALLS:
            dealer.send(encode(CallUtility(call_id=call_id, method="stats")))
            while not self._take_answer(dealer, call_id):
                pass

    def _take_answer(self, dealer: zmq.Socket[bytes], awaited: int) -> bool:
        """Wait for a message, and return whether it answers the awaited call."""
        if not dealer.poll(int(_ANSWER_TIMEOUT_S * 1000)):
            raise AssertionError(f"the engine says nothing for {_ANSWER_TIMEOUT_S:g} s")
        match core_messages.decode(dealer.recv()):
            case UtilityResult(call_id=call_id) if call_id == awaited:
                return True
            case StepOutputs() as outputs:
                self.answers["accepted request"] += len(outputs.accepted)
                self.answers["refused request"] += sum(end.is_refused for end in outputs.ends)
                self.answers["ended request"] += sum(not end.is_refused for end in outputs.ends)
            case message:
                self.answers[type(message).__name__] += 1
        return False

    def _attack_beneath(self, connection: int) -> None:
        """Speak something else than ZeroMQ to the socket."""
        path = ipc_path(self._address)
        if path is None or connection % 10:
            return
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path))
            raw.sendall(self._frames.noise()[0])


def attack(address: str, count: int, seed: int) -> Attacker:
    """Attack the engine at an address while another client streams, and return the attacker.

    Raises:
        AssertionError: a rule was broken.
    """
    with EngineClient(address, name="neighbour", timeout_s=_START_TIMEOUT_S) as neighbour:
        expected = _stream(neighbour)
        attacker = Attacker(address, count, seed)
        attacker.start()
        num_streams = 0
        while attacker.is_alive():
            assert _stream(neighbour) == expected, "the neighbour's tokens changed"
            num_streams += 1
        attacker.join()
        if attacker.failure is not None:
            raise attacker.failure
        assert num_streams, "the attack was over before the neighbour had streamed once"
        _check_nothing_is_left(neighbour)
        assert neighbour.call_utility("check_invariants")
        assert _stream(neighbour) == expected
    return attacker


def _stream(client: EngineClient) -> list[int]:
    return [token for delta in client.generate(_PROMPT, _PARAMS) for token in delta.token_ids]


def _check_nothing_is_left(client: EngineClient) -> None:
    """Wait until the requests of those who left are aborted: that is found when they are sent their next token."""
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        stats, pool = client.call_utility("stats"), client.call_utility("pool")
        left = (stats["num_running"], stats["num_waiting"], pool["num_used_blocks"])
        if left == (0, 0, 0):
            return
        assert time.monotonic() < deadline, f"running, waiting, blocks in use: {left} after {_SETTLE_TIMEOUT_S:g} s"
        time.sleep(0.05)


@contextmanager
def tiny_engine() -> Iterator[str]:
    """Run an engine of a tiny checkpoint of random weights; yield its address, check that its processes stay."""
    with tempfile.TemporaryDirectory(prefix="pw-fuzz-") as directory:
        model, log = Path(directory) / "tiny", Path(directory) / "log"
        write_hugging_face(TinyModelSpec(), model)
        address = f"ipc://{directory}/engine.sock"
        command = [sys.executable, "-m", "pagewire", "engine", str(model), "--listen", address, *_ENGINE_FLAGS]
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stderr=stderr)
        try:
            _wait_until_ready(process, log)
            before = {(child.pid, child.started) for child in processes_below(process.pid)}
            yield address
            after = {(child.pid, child.started) for child in processes_below(process.pid)}
            assert before == after, f"a process was replaced:\n{log.read_text()[-3000:]}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, f"exit code {process.returncode}:\n{log.read_text()[-3000:]}"
            assert not re.search("Traceback", log.read_text()), log.read_text()[-3000:]
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while _READY not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise EngineDead(f"the engine did not start:\n{log.read_text()}")
        time.sleep(0.02)


def main() -> int:
    """Run the attack and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--address", help="an engine that runs already, like ipc:///tmp/pagewire.sock")
    args = parser.parse_args()
    if args.address:
        attacker = attack(args.address, args.count, args.seed)
    else:
        with tiny_engine() as address:
            attacker = attack(address, args.count, args.seed)
    print(f"{attacker.num_sent} messages sent; the engine lives, its other client got the same tokens throughout")
    for kind, count in sorted(attacker.answers.items()):
        print(f"  {kind}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
