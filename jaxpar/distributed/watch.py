"""The processes of a job watch each other, over the connections of their meeting.

The watch is a thread in every process. A few times in each time-out, the others report to process 0 that they are
alive and what their main thread is at; process 0 reports to them that it is alive. So:

- a process that dies is noticed at once (its connection ends), by process 0, or by all when it is process 0;
- a process that is stopped, or whose host or network is down, is noticed after `heartbeat_timeout_s`;
- a process whose main thread makes no progress is noticed by process 0, which knows who is behind the others; before
  its verdict it asks these for their stacks, and NCCL for what each rank has launched (`evidence.py`).

Process 0 sends the verdict to all, and `end` is called with it in every process. This must happen in a thread: the main
thread waits inside a collective that Python cannot interrupt.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

from jaxpar.distributed import verdicts
from jaxpar.distributed.activity import Activity
from jaxpar.distributed.evidence.evidence import Evidence, stack_of_main_thread
from jaxpar.distributed.links import WAKE_S, Known, Outbox, drain, flush, linger, send_all
from jaxpar.distributed.messages import SENTENCE_LENGTH, Malformed, Report, clean, decode, encode, text
from jaxpar.distributed.peer import Peer
from jaxpar.distributed.verdicts import Mark, Sign

BEATS = 30
"""Heartbeats in one time-out, in a small job."""
BEATS_PER_S = 500
"""Heartbeats that process 0 receives per second, in a large one."""
FEWEST_BEATS = 4
GRACE_S = 2.0
"""Seconds for a process to exit by itself after another one failed: often all fail for one reason."""
LINGER_S = 3.0
"""Seconds that process 0 waits for the others to read its last message: its exit would disconnect them."""
LINE_BYTES = 65536
"""The longest line that is read."""
VERDICT_LENGTH = 2 * SENTENCE_LENGTH
"""The most characters of a verdict, in which a sentence of a process may be quoted."""


def beat_s(processes: int, timeout_s: float) -> float:
    """Seconds between two heartbeats of a process."""
    return min(timeout_s / FEWEST_BEATS, max(timeout_s / BEATS, processes / BEATS_PER_S))


class Watch:
    """Watches the peers of this process until `leave`, and reports on this process.

    Args:
        process: index of this process.
        processes: number of processes of the job.
        peers: the result of `meet`; the connections are closed at the end.
        timeout_s: how long a peer may be silent.
        mark: what the main thread is at now.
        end: called once from the thread, with the sentence, when the job is over; it is expected to end the process.
    """

    def __init__(
        self,
        process: int,
        processes: int,
        peers: dict[int, Peer],
        *,
        timeout_s: float,
        mark: Mark,
        end: Callable[[str], None],
    ):
        self._process, self._timeout_s, self._end = process, timeout_s, end
        self._host = socket.gethostname()
        self._every_s = beat_s(processes, timeout_s)
        now = time.monotonic()
        self._mark, self._marked_at = mark, now
        self._paused_at = now
        """Time at which all last waited for a process that was outside a step."""
        self._activity = Activity()
        self._known = {index: Known(peer, Outbox(peer.connection), mark, now, now) for index, peer in peers.items()}
        self._leaving, self._over, self._failing = threading.Event(), threading.Event(), threading.Event()
        self._reported_leaving = False
        self._evidence: Evidence | None = None
        """On process 0, while the job stands still."""
        self._selector = selectors.DefaultSelector()
        for known in self._known.values():
            known.peer.connection.setblocking(False)
            self._selector.register(known.peer.connection, selectors.EVENT_READ, known)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    @property
    def current_activity(self) -> str:
        """The activity of the main thread."""
        return self._mark.at

    def mark(
        self, at: str, limit_s: float, limit_key: str, waiting_limit_s: float | None = None, *, busy: bool = False
    ) -> None:
        """The main thread is now `at` something, and may stay there for so long (see `Mark`). Costs a microsecond."""
        self._mark = Mark(self._mark.count + 1, at, limit_s, limit_key, waiting_limit_s, busy)
        self._marked_at = time.monotonic()

    def fail(self, why: str) -> None:
        """Report to the others that this process ends now, and why. Returns once they read it, or after some
        seconds."""
        self._failing.set()
        why = clean(why, SENTENCE_LENGTH)
        if self._process == 0:
            send_all(self._known.values(), {"end": verdicts.failed(self._local_sign(), why), "may_end_itself": True})
            self._over.wait(GRACE_S + LINGER_S)
        else:
            send_all(self._known.values(), {"failed": why, "at": self._report()})
            drain(self._known.values(), LINGER_S)

    def leave(self) -> None:
        """Wait until all processes have ended; one that dies meanwhile is still named."""
        self._leaving.set()
        self._over.wait()
        self._thread.join()

    def close(self) -> None:
        """Stop watching and close the connections without a message, as the end of the process does."""
        self._over.set()
        self._thread.join()

    # Below: in the thread.

    def _run(self) -> None:
        try:
            self._watch_peers()
        except Exception as error:  # Nothing else would end this process.
            self._end(f"the watch over the other processes broke ({error!r}); {verdicts.CONTINUES}")
        for known in self._known.values():
            known.peer.connection.close()
        self._selector.close()

    def _watch_peers(self) -> None:
        woke, beat_at, judge_at = time.monotonic(), 0.0, 0.0
        while not self._over.is_set():
            events = self._selector.select(timeout=WAKE_S)
            now = time.monotonic()
            if now - woke > self._every_s + 1:  # This process was stopped: that time does not count.
                self._leave_out_pause(now - woke)
            woke = now
            flush(self._known.values())
            for key, _ in events:
                if not self._over.is_set():  # The end of the watch has let go of the other connections.
                    self._receive(key.data, now)
            if self._failing.is_set():
                if not self._selector.get_map():
                    self._over.set()
                continue
            if now >= beat_at and not (self._leaving.is_set() and self._process != 0):
                beat_at = now + self._every_s
                send_all(self._known.values(), {"at": self._report()})
            if now >= judge_at or self._leaving.is_set():
                judge_at = now + self._every_s / 2
                self._judge(now)
                self._finish_leaving()

    def _leave_out_pause(self, seconds: float) -> None:
        self._marked_at += seconds
        self._paused_at += seconds
        for known in self._known.values():
            known.received_at += seconds
            known.set_at += seconds

    def _receive(self, known: Known, now: float) -> None:
        try:
            received = known.peer.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._selector.unregister(known.peer.connection)
            if not known.left and not self._failing.is_set():
                self._conclude(verdicts.died(known.sign(now)))
            return
        known.received_at = now
        *lines, known.unread = (known.unread + received).split(b"\n")
        try:
            for line in lines:
                self._handle(known, decode(line), now)
            if len(known.unread) > LINE_BYTES:
                raise Malformed(f"a line has more than {LINE_BYTES} bytes")
        except Malformed as error:
            self._selector.unregister(known.peer.connection)
            self._conclude(verdicts.garbled(known.sign(now), str(error)))

    def _handle(self, known: Known, message: dict[str, object], now: float) -> None:
        if "at" in message:
            report = Report.read(message["at"])
            known.mark, known.set_at, known.idle_s = report.mark, now - report.age_s, report.idle_s
        if "where" in message:
            known.outbox.send(encode({"stack": stack_of_main_thread()}))
        if "stack" in message and self._evidence is not None:
            self._evidence.add_stack(known.peer.process, text(message["stack"], SENTENCE_LENGTH))
        if "left" in message:
            known.left = True
        if "over" in message:
            known.left = True
            self._over.set()
        if "failed" in message:
            sentence = verdicts.failed(known.sign(now), text(message["failed"], SENTENCE_LENGTH))
            known.left = True
            self._conclude(sentence, may_end_itself=True)
        if "end" in message:
            sentence = text(message["end"], VERDICT_LENGTH)
            known.left = True
            self._conclude(sentence, may_end_itself=message.get("may_end_itself") is True, by_process_0=True)

    def _judge(self, now: float) -> None:
        watched = [known.sign(now) for known in self._known.values() if not known.left]
        sentence = verdicts.silent(watched, self._timeout_s)
        if sentence is None and self._process == 0:
            everyone = [self._local_sign(), *watched]
            if verdicts.waits_for_pause(everyone):
                self._paused_at = now
            sentence = self._with_evidence(verdicts.stalled(everyone, now - self._paused_at), everyone)
        if sentence is not None:
            self._conclude(sentence)

    def _with_evidence(self, sentence: str | None, signs: Sequence[Sign]) -> str | None:
        """The verdict on a job that stands still, once the evidence is there; None before, and where it goes on."""
        if sentence is None:
            self._evidence = None
        elif self._evidence is None:
            asked = [sign.process for sign in verdicts.laggards(signs)[: verdicts.MOST_NAMED]]
            self._evidence = Evidence(asked)
            for process in asked:
                if process == self._process:
                    self._evidence.add_stack(process, stack_of_main_thread())
                else:
                    self._known[process].outbox.send(encode({"where": True}))
        elif self._evidence.complete:
            return self._evidence.added_to(sentence)
        return None

    def _finish_leaving(self) -> None:
        """Once this process leaves: report it to process 0; process 0 ends the watch when all others have left."""
        if not self._leaving.is_set():
            return
        if self._process != 0:
            if not self._reported_leaving:
                self._reported_leaving = True
                send_all(self._known.values(), {"left": True})
        elif all(known.left for known in self._known.values()):
            send_all(self._known.values(), {"over": True})
            drain(self._known.values(), LINGER_S)
            self._over.set()

    def _conclude(self, sentence: str, *, may_end_itself: bool = False, by_process_0: bool = False) -> None:
        """The job is over: report it to the others, and end this process."""
        if self._over.is_set():
            return
        if self._process == 0:
            send_all(self._known.values(), {"end": sentence, "may_end_itself": may_end_itself})
        elif not by_process_0:
            send_all(self._known.values(), {"failed": sentence, "at": self._report()})
        if may_end_itself and self._failing.wait(GRACE_S):
            return
        drain(self._known.values(), LINGER_S)
        if self._process == 0:
            linger(self._known.values(), self._selector, self._timeout_s, LINGER_S)
        self._over.set()
        self._end(sentence)

    def _report(self) -> dict[str, object]:
        return Report(self._mark, time.monotonic() - self._marked_at, self._activity.idle_s()).message()

    def _local_sign(self) -> Sign:
        # As old as the state of the others: otherwise this process would be late before they are.
        age = max(0.0, time.monotonic() - self._marked_at - self._every_s)
        return Sign(self._process, self._host, self._mark, age, 0.0, self._activity.idle_s())
