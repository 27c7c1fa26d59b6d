"""A remote worker for Rota, in one file and with nothing but the standard library.

    from rota_worker import Worker, Call

    worker = Worker("http://localhost:7070", name="mailer")

    @worker.handler("mail")
    def mail(call: Call) -> object:
        call.log("sending")
        return {"sent": call.payload["to"]}

    worker.run()  # until SIGTERM or SIGINT, then drains

Handlers run in threads. One that takes long should look at `call.cancelled` (a
`threading.Event`) and return soon after it is set: Python cannot stop a thread
from outside. What a handler returns after its run was lost counts for nothing.

The protocol is told in docs/workers.md. Python 3.9 or later.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

__all__ = ["Call", "Handler", "HandlerError", "Refused", "Worker"]

log = logging.getLogger("rota.worker")

WAIT_MS = 25_000
ANSWER_SECONDS = 40
#: What the server takes, in bytes: the body of an exchange, the output of an attempt (as
#: JSON), the message of an error, a line of a log, a text of progress.
EXCHANGE_BYTES = 1024 * 1024
OUTPUT_BYTES = 64 * 1024
MESSAGE_BYTES = 8 * 1024
LINE_BYTES = 16 * 1024
PROGRESS_BYTES = 1024
#: What an exchange needs beside its reports: its own fields, and so much for each lease.
FIELDS_BYTES = 4 * 1024
LEASE_BYTES = 80
LOG_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 32 * 1024
FINISHED_MAX = 2_000
WORDS_MAX = 1_000
OVER_MAX = 2_000

Lease = Tuple[str, int]
Json = Dict[str, Any]


class HandlerError(Exception):
    """Why a handler failed, and what it advises about trying again."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "handler",
        retry_after: Optional[float] = None,
        retry: Optional[bool] = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.retry = retry

    def on_the_wire(self) -> Json:
        error: Json = {"kind": _cut(self.kind, 64), "message": _cut(self, MESSAGE_BYTES)}
        if self.retry_after is not None:
            error["retry_after_ms"] = int(self.retry_after * 1000)
        if self.retry is not None:
            error["retry"] = self.retry
        return error


class Refused(Exception):
    """The server refused an exchange for good: a bad token, say."""


class _RefusedReports(Exception):
    """The server refused an exchange for what it reported."""


def _json(value: Any) -> bytes:
    """Strict JSON: no NaN, no half characters, which no server would take."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _cut(text: object, most: int) -> str:
    """The text as UTF-8 of at most so many bytes, with a mark where it was cut."""
    data = str(text).encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    mark = " [cut]"
    return data[: most - len(mark)].decode(errors="ignore") + mark


class _Passing(Exception):
    """The server did not answer, or is not ready: asking again may help."""


@dataclass
class _Piece:
    report: Json
    bytes: int
    sent: bool = False


class Call:
    """One attempt, as its handler sees it."""

    def __init__(self, worker: "Worker", attempt: Json) -> None:
        self._worker = worker
        self._seq = 0
        self._reported = False
        self.attempt_data: Json = attempt
        self.run: str = attempt["run"]
        self.fence: int = attempt["fence"]
        self.attempt: int = attempt["attempt"]
        self.job: str = attempt["job"]["name"]
        self.version: int = attempt["version"]
        self.step: str = attempt["step"]
        self.payload: Any = attempt.get("payload")
        self.labels: Dict[str, str] = attempt.get("labels", {})
        self.planned_at: Optional[str] = attempt.get("planned_at")
        self.idempotency_key: str = attempt["idempotency_key"]
        self.alone: bool = attempt.get("alone", False)
        #: W3C trace context, for the requests that the handler makes.
        self.traceparent: Optional[str] = attempt.get("traceparent")
        #: Set when the run was cancelled, was lost, has timed out, or the worker goes.
        self.cancelled = threading.Event()
        timeout = attempt.get("timeout_ms")
        self._ends_at: Optional[float] = None if timeout is None else time.monotonic() + timeout / 1000

    @property
    def lease(self) -> Lease:
        return (self.run, self.fence)

    def log(self, text: str, stream: str = "stdout") -> None:
        """Adds a line to the attempt's log."""
        self._worker._log(self, stream, text)

    def progress(
        self, percent: Optional[int] = None, phase: Optional[str] = None, message: Optional[str] = None
    ) -> None:
        """Says how far it has come; only the latest word counts."""
        self._worker._progress(self, percent, phase, message)


Handler = Callable[[Call], Any]


@dataclass
class _Say:
    request: Json
    logs: int
    progress: List[Lease]
    words: List[Json]

    def reports(self) -> int:
        return len(self.request["finished"]) + self.logs + len(self.words)


@dataclass
class Worker:
    """Fetches attempts, executes them and reports what became of them.

    One thread waits for work in an exchange. As soon as there is something to
    say, the other says it and waits in its place; the server then answers the
    first at once.
    """

    server: str
    name: str = field(default_factory=socket.gethostname)
    token: Optional[str] = None
    slots: int = 10
    queues: List[str] = field(default_factory=list)
    traits: List[str] = field(default_factory=list)
    version: str = "python"
    #: Seconds that attempts may take to end when the worker stops.
    drain_limit: float = 30.0
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        self._handlers: Dict[str, Handler] = {}
        self._changed = threading.Condition()
        self._running: Dict[Lease, Call] = {}
        self._over: Dict[Lease, None] = {}  # the last ones that are over, oldest first
        self._finished: List[Tuple[Json, int]] = []  # report, pieces of log before it
        self._pieces: List[_Piece] = []
        self._pieces_gone = 0
        self._log_bytes = 0
        self._words: Dict[Lease, Json] = {}
        self._flights = 0
        self._saying = False
        self._draining = False
        self._said_draining = False
        self._ended = False
        self._not_before = 0.0
        self._failures = 0
        self._refused: Optional[Refused] = None
        # The server refused an exchange: reports go one at a time, until the one that it
        # refuses is known.
        self._one_at_a_time = False

    def handler(self, name: str) -> Callable[[Handler], Handler]:
        """Registers a function as the handler of this name."""

        def register(function: Handler) -> Handler:
            self._handlers[name] = function
            return function

        return register

    def stop(self) -> None:
        """Takes no more work, finishes what there is, and makes `run` return."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def run(self, signals: bool = True) -> None:
        """Works until `stop`, a signal, or the server's wish; then drains."""
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                # A handler of a signal must not wait for a lock that it may hold.
                signal.signal(number, lambda *_: threading.Thread(target=self.stop).start())
        threads = [threading.Thread(target=self._exchange_forever, daemon=True) for _ in range(2)]
        threads.append(threading.Thread(target=self._watch_deadlines, daemon=True))
        for thread in threads:
            thread.start()
        with self._changed:
            while not self._draining:
                self._changed.wait(1.0)
            limit = time.monotonic() + self.drain_limit
            while self._running and not self._refused and time.monotonic() < limit:
                self._changed.wait(0.1)
            for call in list(self._running.values()):
                self._end(call, {"outcome": "handed_back"})
            limit = time.monotonic() + 5.0
            while self._finished and not self._refused and time.monotonic() < limit:
                self._changed.wait(0.1)
            self._ended = True
            self._changed.notify_all()
        if self._refused:
            raise self._refused
        try:
            self._ask(dict(self._hello(), leaving=True))
        except (_Passing, _RefusedReports, Refused) as error:
            log.warning("left without having been heard: %s", error)

    # --- what is in hand -------------------------------------------------------

    def _begin(self, attempt: Json) -> None:
        call = Call(self, attempt)
        # A server that takes its answer for lost hands an attempt over again.
        if call.lease in self._running or call.lease in self._over:
            return
        self._running[call.lease] = call
        if self._draining:
            self._end(call, {"outcome": "handed_back"})
            return
        threading.Thread(target=self._execute, args=(call,), daemon=True).start()

    def _execute(self, call: Call) -> None:
        function = self._handlers.get(call.attempt_data.get("handler", ""))
        try:
            if function is None:
                outcome: Json = {"outcome": "handed_back"}
            else:
                output = function(call)
                outcome = {"outcome": "succeeded"}
                if output is not None:
                    size = len(_json(output))
                    outcome["output"] = output
                    if size > OUTPUT_BYTES:
                        message = f"its output has {size} bytes; the maximum is {OUTPUT_BYTES}"
                        error = HandlerError(message, kind="output_too_large", retry=False)
                        outcome = {"outcome": "failed", "error": error.on_the_wire()}
        except HandlerError as error:
            outcome = {"outcome": "failed", "error": error.on_the_wire()}
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the attempt's
            message = _cut(f"{type(error).__name__}: {error}", MESSAGE_BYTES)
            outcome = {"outcome": "failed", "error": {"kind": "handler", "message": message}}
        with self._changed:
            self._end(call, outcome)

    def _end(self, call: Call, outcome: Optional[Json]) -> None:
        """An attempt is over, or nobody waits for it any more."""
        if self._running.get(call.lease) is not call:
            return
        del self._running[call.lease]
        self._over[call.lease] = None
        while len(self._over) > OVER_MAX:
            del self._over[next(iter(self._over))]
        self._words.pop(call.lease, None)
        call.cancelled.set()
        if outcome is not None:
            report = dict(outcome, run=call.run, fence=call.fence)
            self._finished.append((report, self._pieces_gone + len(self._pieces)))
        self._changed.notify_all()

    def _watch_deadlines(self) -> None:
        while True:
            with self._changed:
                if self._ended:
                    return
                now = time.monotonic()
                for call in list(self._running.values()):
                    if call._ends_at is not None and call._ends_at <= now:
                        error = {"kind": "timeout", "message": "it did not end within its time"}
                        self._end(call, {"outcome": "failed", "error": error})
                ends = [call._ends_at for call in self._running.values() if call._ends_at is not None]
                self._changed.wait(max(0.01, min(ends) - now) if ends else None)

    def _log(self, call: Call, stream: str, text: str) -> None:
        with self._changed:
            line = {"stream": stream, "text": _cut(text, LINE_BYTES)}
            size = len(_json(line)) + 1
            if call.lease not in self._running or self._log_bytes + size > LOG_BYTES:
                return
            self._log_bytes += size
            last = self._pieces[-1] if self._pieces else None
            ours = last is not None and (last.report["run"], last.report["fence"]) == call.lease
            if last is not None and ours and not last.sent and last.bytes < PIECE_BYTES:
                last.report["lines"].append(line)
                last.bytes += size
            else:
                report = {"run": call.run, "fence": call.fence, "seq": call._seq, "lines": [line]}
                call._seq += 1
                whole = len(_json(report))
                self._log_bytes += whole - size
                self._pieces.append(_Piece(report, whole))
            self._changed.notify_all()

    def _progress(self, call: Call, percent: Optional[int], phase: Optional[str], message: Optional[str]) -> None:
        word: Json = {"run": call.run, "fence": call.fence}
        if percent is not None:
            word["percent"] = max(0, min(100, int(percent)))
        texts = (("phase", phase), ("message", message))
        word.update({name: _cut(text, PROGRESS_BYTES) for name, text in texts if text is not None})
        with self._changed:
            if call.lease in self._running:
                self._words[call.lease] = word
                self._changed.notify_all()

    # --- exchanges -------------------------------------------------------------

    def _hello(self) -> Json:
        return {
            "worker": {
                "id": self.id,
                "name": self.name,
                "version": self.version,
                "queues": self.queues,
                "traits": self.traits,
                "handlers": sorted(self._handlers),
                "slots": self.slots,
                "draining": self._draining,
            }
        }

    def _say(self) -> _Say:
        self._said_draining = self._draining
        held = len(self._running) + len(self._finished)
        room = EXCHANGE_BYTES - FIELDS_BYTES - len(_json(self._hello())) - held * LEASE_BYTES
        most = 1 if self._one_at_a_time else FINISHED_MAX + 2 * WORDS_MAX

        def fits(size: int) -> bool:
            nonlocal room, most
            if most == 0 or size >= room:
                return False
            room, most = room - size - 1, most - 1
            return True

        logs: List[Json] = []
        for piece in self._pieces[:WORDS_MAX]:
            if not fits(piece.bytes):
                break
            piece.sent = True
            logs.append(piece.report)
        finished: List[Json] = []
        for report, behind in self._finished[:FINISHED_MAX]:
            if behind > self._pieces_gone + len(logs) or not fits(len(_json(report))):
                break
            finished.append(report)
        words: List[Json] = []
        for word in list(self._words.values())[:WORDS_MAX]:
            if not fits(len(_json(word))):
                break
            words.append(word)
        leases = list(self._running)
        leases += [(report["run"], report["fence"]) for report, _ in self._finished[len(finished) :]]
        alone = any(call.alone for call in self._running.values())
        free = 0 if self._draining or alone else max(0, self.slots - len(self._running))
        request = dict(
            self._hello(),
            free=free,
            wait_ms=0 if self._draining and finished else WAIT_MS,
            leases=[{"run": run, "fence": fence} for run, fence in leases],
            finished=finished,
            logs=logs,
            progress=words,
        )
        return _Say(request, len(logs), [(word["run"], word["fence"]) for word in words], words)

    def _drop_pieces(self, count: int) -> None:
        for piece in self._pieces[:count]:
            self._log_bytes -= piece.bytes
        del self._pieces[:count]
        self._pieces_gone += count

    def _was_refused(self, say: _Say, why: str) -> bool:
        """The server refused an exchange; false where that is not because of its reports.

        Refused once more it would be refused for ever, and with it all other reports. So
        they go one at a time until the one that is refused is known, and that one is given
        up: of an end it is reported that its report was refused.
        """
        reports = say.reports()
        self._one_at_a_time = reports > 1
        if reports != 1:
            return reports > 1
        log.error("the server refused a report, which is given up: %s", why)
        if say.logs:
            self._drop_pieces(1)
        elif say.words:
            self._words.pop(say.progress[0], None)
        else:
            report, behind = self._finished.pop(0)
            error = {"message": _cut(f"the server refused the report of its end: {why}", MESSAGE_BYTES)}
            substitute = {"run": report["run"], "fence": report["fence"], "outcome": "failed", "error": error}
            # One that was refused as well is not replaced again: its lease runs out.
            if not str(report.get("error", {}).get("message", "")).startswith("the server refused"):
                self._finished.insert(0, (substitute, behind))
        return True

    def _heard(self, say: _Say, answer: Json) -> None:
        for attempt in answer.get("attempts", []):
            self._begin(attempt)
        self._drop_pieces(say.logs)
        for lease, word in zip(say.progress, say.words):
            if self._words.get(lease) == word:
                del self._words[lease]
        settled = {(r["run"], r["fence"]) for r in answer.get("reports", []) if r["status"] != "pending"}
        self._finished = [(r, n) for r, n in self._finished if (r["run"], r["fence"]) not in settled]
        self._one_at_a_time = self._one_at_a_time and bool(self._finished or self._pieces or self._words)
        for order in answer.get("cancel", []):
            call = self._running.get((order["run"], order["fence"]))
            if call is not None and call.attempt_data.get("cancelable", True) and not call.cancelled.is_set():
                call.cancelled.set()
                # A handler that does not stop within its grace is not waited for.
                ends_at = time.monotonic() + order["grace_ms"] / 1000
                timer = threading.Timer(max(0.0, ends_at - time.monotonic()), self._give_up, args=(call,))
                timer.daemon = True
                timer.start()
        for lease in answer.get("lost", []):
            call = self._running.get((lease["run"], lease["fence"]))
            if call is not None:
                self._end(call, None)
        if answer.get("drain"):
            self._draining = True
        if answer.get("retry_after_ms") is not None:
            self._not_before = time.monotonic() + answer["retry_after_ms"] / 1000

    def _give_up(self, call: Call) -> None:
        with self._changed:
            self._end(call, {"outcome": "cancelled"})

    def _wants(self) -> bool:
        drains = self._draining and not self._said_draining
        something = bool(self._finished or self._pieces or self._words or drains)
        return not self._saying and (self._flights == 0 or something) and time.monotonic() >= self._not_before

    def _exchange_forever(self) -> None:
        while True:
            with self._changed:
                while not self._wants():
                    if self._ended or self._refused:
                        return
                    wait = self._not_before - time.monotonic()
                    self._changed.wait(wait if wait > 0 else None)
                if self._ended or self._refused:
                    return
                say = self._say()
                says = say.reports() > 0
                self._flights += 1
                self._saying = self._saying or says
            answer: Optional[Json] = None
            failure: Optional[Exception] = None
            try:
                answer = self._ask(say.request)
            except (_Passing, _RefusedReports, Refused) as error:
                failure = error
            with self._changed:
                self._flights -= 1
                if says:
                    self._saying = False
                if answer is not None:
                    self._failures = 0
                    self._heard(say, answer)
                elif isinstance(failure, _RefusedReports) and self._was_refused(say, str(failure)):
                    pass
                elif isinstance(failure, (_RefusedReports, Refused)):
                    self._refused = Refused(str(failure))
                    self._draining = True
                else:
                    self._failures += 1
                    wait = min(2.0, 0.05 * 2 ** min(self._failures - 1, 10))
                    self._not_before = time.monotonic() + wait
                    log.warning("an exchange failed (%s); trying again in %.2f s", failure, wait)
                self._changed.notify_all()

    def _ask(self, request: Json) -> Json:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        url = self.server.rstrip("/") + "/api/v1/workers/sync"
        asked = urllib.request.Request(url, _json(request), headers, method="POST")
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS) as answer:
                read: Json = json.loads(answer.read())
                return read
        except urllib.error.HTTPError as error:
            body = error.read(65536).decode(errors="replace")
            if error.code == 429 or error.code >= 500:
                raise _Passing(f"{error.code} {body}") from None
            if error.code in (400, 413, 422):
                raise _RefusedReports(f"{error.code} {body}") from None
            raise Refused(f"{error.code} {body}") from None
        except (OSError, ValueError) as error:
            raise _Passing(str(error)) from None


if __name__ == "__main__":
    raise SystemExit(f"{os.path.basename(__file__)} is a library; see example.py beside it")
