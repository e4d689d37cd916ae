"""Events that the tests of this folder share."""

from pathlib import Path

from jaxpar.observe.events import RunInfo, StepRecord, Summary


def run_info(folder: Path, **changes) -> RunInfo:
    rows = [("mesh", "fsdp 2 x tensor 4", "as written"), ("attention", "xla", "linear in memory")]
    values = dict(
        config={"run": {"steps": 20}},
        plan={},
        rows=rows,
        brief=[("mesh", "fsdp 2 x tensor 4")],
        folder=str(folder),
        steps=20,
    )
    return RunInfo(**{**values, **changes})


def record(step: int, **changes) -> StepRecord:
    values = dict(
        loss=3.0 - step / 100, grad_norm=1.25, learning_rate=3e-4, tokens_per_second=81234.0,
        tokens_per_second_per_device=10154.0, step_time_s=0.1, mfu=None, memory_bytes=None, eta_s=75.0,
    )  # fmt: skip
    return StepRecord(step=step, **{**values, **changes})


def summary(**changes) -> Summary:
    values = dict(
        steps=20, loss=2.8, eval_loss=1.9, baseline_loss=2.3, tokens=163_840, train_seconds=61.0, compile_seconds=12.3,
        first_step_seconds=0.9, steady_step_seconds=0.1, peak_bytes=3 * 2**30, predicted_bytes=2 * 2**30,
    )  # fmt: skip
    return Summary(**{**values, **changes})
