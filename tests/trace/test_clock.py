"""Overlap: compute between a message and its done hides the message, once, and takes longer for it."""

from typing import NamedTuple

import pytest

from jaxpar.trace.clock import Clock, Timed, added
from jaxpar.trace.parts import Done, Message, Op, Repeat, Run, Trace


class Ran(NamedTuple):
    messages: dict[str, Timed]
    step: Run


def run(*parts: Op | Message | Done | Repeat, slowdown: float = 0.0) -> Ran:
    clock = Clock(slowdown, records=True)
    step = clock.run(Trace("step", parts))
    assert sum(step.seconds_by_kind.values()) == pytest.approx(step.seconds), "all time is of some kind"
    return Ran(clock.messages, step)


def send(name: str, seconds: float, channel: str = "wire") -> Message:
    return Message(name, seconds, channel)


def at_once(name: str, seconds: float, channel: str = "wire") -> Message:
    return Message(name, seconds, channel, synchronous=True)


def loop(times: float, *parts: Op | Message | Done | Repeat) -> Repeat:
    return Repeat("loop", Trace("body", parts), times)


def exposed(clock: Ran) -> dict[str, float]:
    return {name: timed.exposed for name, timed in clock.messages.items()}


X, Y, Z = Op("x", 1.0), Op("y", 1.0), Op("z", 1.0)


@pytest.mark.parametrize(("needed", "left"), [(5.0, 3.0), (2.0, 0.0), (0.5, 0.0)])
def test_enclosed_compute_hides_a_message(needed: float, left: float):
    clock = run(send("a", needed), X, Y, Done("a"), Z)
    assert clock.messages == {"a": Timed(needed, left, 0.0, (("x", 1.0), ("y", 1.0)))}
    assert (clock.step.compute, clock.step.seconds) == (3.0, 3.0 + left)


@pytest.mark.parametrize(("compute", "message"), [(2.0, 0.5), (2.0, 2.0), (2.0, 7.0)])
def test_compute_takes_longer_beside_messages_between_devices_as_in_the_closed_form(compute: float, message: float):
    parts = Op("x", compute), Done("a"), Op("y", 1.0)
    assert run(send("a", message), *parts, slowdown=0.1).step.seconds == pytest.approx(
        1.0 + compute + added(message, compute, 0.1)
    )
    copy = run(send("a", message, "to_host"), *parts, slowdown=0.1)
    assert copy.step.seconds == 1.0 + max(compute, message), "the host's copies take no multiprocessors"


def test_compute_in_a_loop_takes_longer_beside_messages_in_it_and_around_it():
    inner = send("i", 0.5), X, Done("i")
    clock = run(send("a", 3.0), loop(10, *inner), Done("a"), slowdown=0.1)
    assert clock.step.seconds == pytest.approx(10 * (1 + 0.05) + 0.3)
    assert (clock.messages["i"].slowed, clock.messages["a"].slowed) == pytest.approx((0.05, 0.3))


def test_what_encloses_nothing_or_is_synchronous_is_exposed_from_start_to_end():
    assert exposed(run(X, send("a", 4.0), Done("a"), Y)) == {"a": 4.0}
    assert exposed(run(send("a", 2.0), at_once("s", 4.0), X, Y, Done("a"))) == {"a": 0.0, "s": 4.0}


def test_overlapping_messages_share_compute_and_the_first_issued_takes_it_first():
    clock = run(send("a", 1.5), send("b", 4.0), X, Y, Done("a"), Z, Done("b"))
    # a takes 1.5 of x and y; b their other 0.5 and z.
    assert exposed(clock) == {"a": 0.0, "b": 2.5}
    assert clock.messages["b"].enclosed == 3.0


def test_a_loop_between_a_message_and_its_done_hides_by_all_its_iterations():
    clock = run(send("a", 20.0), loop(6, X, Y), Done("a"))
    assert clock.messages["a"] == Timed(20.0, 8.0, 0.0, (("loop", 12.0),))
    nested = run(send("a", 9.0), loop(2, Repeat("inner", Trace("inner", (Y,)), 3), X), Done("a"))
    assert (exposed(nested), nested.step.compute) == ({"a": 1.0}, 8.0)


def test_a_message_in_a_loop_takes_the_compute_there_before_one_around_it():
    clock = run(send("a", 9.0), loop(10, send("i", 1.5), X, Y, Done("i")), Done("a"))
    assert exposed(clock) == {"a": 4.0, "i": 0.0}, "half a second of each iteration is left for a"
    assert clock.messages["a"].enclosed == 20.0


def test_channels_run_beside_each_other_and_go_on_while_another_is_waited_for():
    assert exposed(run(send("a", 2.0), send("h", 3.0, "to_host"), X, Y, Done("a"), Done("h"))) == {"a": 0.0, "h": 1.0}
    assert exposed(run(send("h", 6.0, "to_host"), at_once("s", 4.0), X, Done("h"))) == {"s": 4.0, "h": 1.0}
    both = run(send("h", 3.0, "to_host"), send("g", 4.0, "from_host"), X, Y, Done("h"), Done("g"))
    assert exposed(both) == {"h": 1.0, "g": 1.0}, "the second in which h is waited for passes for g too"
    same = run(send("h", 1.0, "to_host"), send("i", 3.0, "to_host"), X, Done("h"), Done("i"))
    assert exposed(same) == {"h": 0.0, "i": 3.0}


def test_spans_have_all_time_of_a_trace_and_messages_begin_when_their_link_is_free():
    clock = run(send("a", 1.5), send("b", 4.0), X, Y, Done("a"), Z, Done("b"))
    spans = clock.step.spans
    busy = [(span.start, span.end) for span in spans if span.kind != "message"]
    assert busy == [(0, 1), (1, 2), (2, 3), (3, 5.5)]
    assert {span.name: (span.start, span.end) for span in spans if span.kind == "message"} == {
        "a": (0, 1.5),
        "b": (1.5, 5.5),
    }


def test_a_loop_hides_by_the_time_in_which_the_channel_is_free():
    inner = loop(2, X, at_once("t", 3.0, "to_host"), at_once("w", 1.0))
    assert exposed(run(send("a", 20.0), inner, Done("a")))["a"] == 20.0 - 2 * 4.0, "waits for another link hide it"
    assert exposed(run(send("h", 20.0, "to_host"), inner, Done("h")))["h"] == 20.0 - 2 * 2.0


def test_a_share_of_a_run_that_is_priced_already():
    layer = Run(8.0, 4.0, {"matmul": 4.0, "exchange": 4.0}, {"wire": 4.0})
    once = run(send("a", 3.0), Repeat("beside", layer, 0.5), Done("a"), Repeat("rest", layer, 0.5))
    assert (exposed(once), once.step.seconds, once.step.compute) == ({"a": 1.0}, 9.0, 4.0)
    assert once.step.seconds_by_kind == {"message": 1.0, "matmul": 4.0, "exchange": 4.0}
    assert once.step.busy == {"wire": 7.0}
