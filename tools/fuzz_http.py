"""Send malformed requests to a server: `python -m tools.fuzz_http --count 5000 --seed 1 [--url URL]`.

They are made from the server's own /openapi.json, by hypothesis, which shortens one that breaks a rule to its core.
The rules: no 5xx (but the 504 of a short `timeout`), no closed connection without an answer, no status that the
description lacks, every error in OpenAI's shape, no traceback or path in it, within a second. Without --url, a server
of a tiny checkpoint is started.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.dev_extra import dev_extra
from tools.fuzz.bodies import JSON_VALUES, Bodies, corrupted, damaged, spelled
from tools.serving import serving
from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.spec import TinyModelSpec

with dev_extra():
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

REFUSAL_LIMIT_S = 1.0
_TIMEOUT_S = 60.0
_PROGRESS_EVERY = 5000
_LATE = re.compile(rb"deadline_exceeded|timeout_error")
_LAST_EVENTS = ("response.completed", "response.incomplete", "message_stop")
_LEAK = re.compile(r'Traceback|File "|site-packages|ipc://|(?<![\w/:.~])(?:/[\w.+@%-]+){2,}')  # the last: any path
# A request that happens to be served shall not take long.
_SERVER_FLAGS = ("--max-model-len", "32", "--max-num-seqs", "8", "--kernels", "reference", "--dtype", "float32")

_CONTENT_TYPES = st.sampled_from(
    ["application/json"] * 40
    + [
        "application/json; charset=utf-8",
        "Application/JSON",
        "text/plain",
        "application/xml",
        "",
        "\xff/\xfe",
        "a" * 300,
    ]
)
_MORE_HEADERS = st.sampled_from(
    [{}] * 40
    + [
        {"X-Request-Id": "a\tb"}, {"X-Request-Id": "x" * 5000}, {"Content-Encoding": "gzip"},
        {"Content-Encoding": "deflate"}, {"Content-Encoding": "made-up"}, {"Accept": "nothing/at-all"},
        {"Authorization": "Bearer"}, {"Expect": "100-continue"}, {"Expect": "miracles"}, {"Host": "a/b?c"},
        {"Origin": "http://evil.example"}, {"Cookie": "a=" + "b" * 4000}, {"X-Long": "h" * 9000},
    ]
)  # fmt: skip


@dataclass(frozen=True)
class RawRequest:
    """What goes over the wire."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Findings:
    """What the answers were."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest_refusal_s: float = 0.0
    slowest_refusal: RawRequest | None = None

    @property
    def count(self) -> int:
        """How many requests were answered."""
        return sum(self.statuses.values())


class Attack:
    """Sends requests over one connection, and judges the answers.

    Args:
        url: of the server.
        headers: sent with every request, an API key perhaps.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.findings = Findings()
        self._headers = dict(headers or {})
        self._url = urllib.parse.urlsplit(url)
        self._connection = self._connect()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/openapi.json", headers=self._headers)) as answer:
            self.document: dict[str, Any] = json.load(answer)

    def run(self, count: int, seed_number: int) -> Findings:
        """Send about `count` requests.

        Raises:
            AssertionError: an answer breaks a rule; the text has the shortest request that does.
        """

        @seed(seed_number)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(raw_requests(self.document))
        def send(request: RawRequest) -> None:
            self.send(request)

        send()
        self.close()
        return self.findings

    def close(self) -> None:
        """Close the connection; a request that is sent later opens another."""
        self._connection.close()

    def send(self, request: RawRequest) -> None:
        """Send one request and judge the answer."""
        started = time.perf_counter()
        status, body = self._answer(request)
        took_s = time.perf_counter() - started
        self.findings.statuses[status] += 1
        if self.findings.count % _PROGRESS_EVERY == 0:
            print(f"{self.findings.count} requests", file=sys.stderr)
        # Who gives a request a quarter of a second may get the answer that it asked for.
        is_asked_for = status == 504 and _LATE.search(body) is not None and b"timeout" in request.body
        assert status < 500 or is_asked_for, f"{status} {body[:500]!r}"
        if status >= 400:
            self._judge_refusal(request, status, body)
            if status < 500 and took_s > self.findings.slowest_refusal_s:
                self.findings.slowest_refusal_s, self.findings.slowest_refusal = took_s, request
        elif b"data: " in body[:10]:
            assert b'"server_error"' not in body, f"a stream that failed: {body[-500:]!r}"
            assert body.endswith(b"data: [DONE]\n\n"), f"a stream without an end: {body[-500:]!r}"
        elif body.startswith(b"event: "):
            last = body.rstrip().rpartition(b"event: ")[2].partition(b"\n")[0].decode()
            assert last in _LAST_EVENTS, f"a stream without an end: {body[-500:]!r}"

    def _judge_refusal(self, request: RawRequest, status: int, body: bytes) -> None:
        operation = self.document["paths"].get(request.path, {}).get(request.method.lower())
        if operation is not None:
            assert str(status) in operation["responses"], f"the description has no {status} for {request.path}"
        error = json.loads(body)["error"]
        assert set(error) == self._error_fields(operation, status), error
        assert error["message"], error
        for leak in _LEAK.findall(error["message"]):
            # A refusal may quote what was sent, and name another route.
            assert leak.encode() in request.body or leak in self.document["paths"], error

    def _error_fields(
        self, operation: Mapping[str, Any] | None, status: int
    ) -> set[str]:  # Any: the description is JSON
        """Return what stands under `error` in a route's refusals; every dialect has a shape of its own."""
        if operation is None:
            return {"message", "type", "param", "code"}
        schemas = self.document["components"]["schemas"]
        answer = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        error = schemas[_named(answer)]["properties"]["error"]
        return set(schemas[_named(error)]["properties"])

    def _answer(self, request: RawRequest) -> tuple[int, bytes]:
        is_fresh = self._connection.sock is None
        try:
            return self._exchange(request)
        except ConnectionError:
            self._connection.close()
            if is_fresh:
                raise AssertionError("the connection was closed without an answer") from None
        except (http.client.HTTPException, OSError):
            self._connection.close()  # the next request opens it anew
            raise
        # A server may close a connection between two requests, as this one does after a body that it can't decompress.
        return self._answer(request)

    def _exchange(self, request: RawRequest) -> tuple[int, bytes]:
        connection = self._connection
        headers = {**self._headers, **request.headers, "Content-Length": str(len(request.body))}
        connection.putrequest(request.method, request.path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value.encode("latin-1"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it was sent whole
            connection.endheaders(request.body)
        response = connection.getresponse()
        return response.status, response.read()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=_TIMEOUT_S)


def _named(schema: Mapping[str, str]) -> str:
    return schema["$ref"].rpartition("/")[2]


def raw_requests(document: Mapping[str, Any]) -> st.SearchStrategy[RawRequest]:
    """Return malformed and unlikely requests to what a document describes, and to what it doesn't."""
    bodies = Bodies(document)
    targets: list[st.SearchStrategy[RawRequest]] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            fitting = JSON_VALUES if content is None else bodies.of(content["schema"])
            weight = 1 if content is None else 12
            targets += [_requests_to(method.upper(), path.replace("{model}", "a/b"), fitting)] * weight
    targets += [_requests_to("POST", "/v1/made-up", JSON_VALUES), _requests_to("DELETE", "/tokenize", JSON_VALUES)]
    which = st.integers(0, len(targets) - 1)

    @st.composite
    def requests(draw: st.DrawFn) -> RawRequest:
        return draw(targets[draw(which)])

    return requests()


def _requests_to(method: str, path: str, fitting: st.SearchStrategy[Any]) -> st.SearchStrategy[RawRequest]:
    texts = spelled(st.one_of(fitting, damaged(fitting), damaged(fitting), JSON_VALUES))
    data = st.one_of(texts, texts, corrupted(texts))
    headers = st.builds(lambda kind, more: {"Content-Type": kind, **more}, _CONTENT_TYPES, _MORE_HEADERS)
    return st.builds(RawRequest, st.just(method), st.just(path), headers, data)


@contextmanager
def tiny_server() -> Iterator[str]:
    """Serve a tiny checkpoint of random weights; yield its URL."""
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "tiny"
        write_hugging_face(TinyModelSpec(), model)
        with serving(str(model), *_SERVER_FLAGS) as server:
            yield server.url


def main() -> int:
    """Run the attack and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="a server that runs already, like http://127.0.0.1:8000")
    parser.add_argument("--api-key", help="its key, if it needs one")
    args = parser.parse_args()
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    if args.url:
        findings = Attack(args.url, headers).run(args.count, args.seed)
    else:
        with tiny_server() as url:
            findings = Attack(url).run(args.count, args.seed)
    print(f"{findings.count} requests, none broke a rule")
    for status, count in sorted(findings.statuses.items()):
        print(f"  {status}: {count}")
    print(f"slowest refusal: {findings.slowest_refusal_s:.3f} s")
    if findings.slowest_refusal_s > REFUSAL_LIMIT_S:
        print(f"that is over {REFUSAL_LIMIT_S:g} s: {findings.slowest_refusal!r:.2000}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
