"""The window of steps under the profiler, with the real profiler."""

from pathlib import Path

import jax
import jax.numpy as jnp

from jaxpar.observe.profile import ProfileWindow, step_annotation


def traces(folder: Path) -> list[Path]:
    return list(folder.rglob("*.xplane.pb"))


def run(window: ProfileWindow, steps: range) -> list[int]:
    """Steps of a loop that were traced."""
    traced = []
    for step in steps:
        window.before_step(step)
        with step_annotation(step):
            result = jnp.ones(8) * step
        if window._tracing:
            traced.append(step)
        window.after_step(step, result)
    return traced


def test_only_the_window_is_traced_and_the_trace_is_written(tmp_path: Path) -> None:
    window = ProfileWindow(3, 4, str(tmp_path))
    assert run(window, range(1, 7)) == [3, 4]
    (trace,) = traces(tmp_path)
    assert b"step_num" in trace.read_bytes()


def test_a_run_that_ends_inside_the_window_writes_its_trace_on_close(tmp_path: Path) -> None:
    window = ProfileWindow(2, 10, str(tmp_path))
    assert run(window, range(1, 4)) == [2, 3]
    assert traces(tmp_path) == []
    window.close()
    window.close()
    assert len(traces(tmp_path)) == 1


def test_a_run_resumed_inside_the_window_traces_the_rest_and_after_it_nothing(tmp_path: Path) -> None:
    assert run(ProfileWindow(2, 5, str(tmp_path)), range(4, 8)) == [4, 5]
    assert run(ProfileWindow(2, 5, str(tmp_path)), range(6, 8)) == []


def test_stopping_waits_for_the_results(tmp_path: Path, monkeypatch) -> None:
    order = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: order.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: order.append("stop"))
    monkeypatch.setattr(jax, "block_until_ready", lambda tree: order.append("wait"))
    run(ProfileWindow(1, 1, str(tmp_path)), range(1, 2))
    assert order == ["start", "wait", "stop"]
