"""The events of a run, as calls on a `Listener`.

Everything that a run prints or writes, except checkpoints, comes from a listener. To add your own, subclass `Listener`,
override the methods that you need and pass an instance to the trainer:

    class Slack(Listener):
        def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
            post(f"step {step}: validation loss {loss:.4f}")

Rules of the calls:

- Steps are counted from 1: after step n, n batches have been used. A run that restored checkpoint n starts with
  `first_step == n + 1`.
- The order is `start`, then steps, evaluations, saves, anomalies and messages as they come, then `end`, `close`; a
  `sample` comes after an evaluation, or before the end. `close` is called exactly once, also when the run fails; `end`
  is called when it does not, and `failed` when it does.
- `evaluation(n, ...)` comes before `step` of the same step, and a step that was evaluated is always logged.
- `rewound(n)` comes when the run went back to checkpoint n: the next step is n + 1 again.
- Only process 0 has listeners that write. They are called between two steps while the device works: keep them short.
- An OSError (a full disk, a server that does not answer) is passed to the other listeners as a message, and the run
  continues. An OSError from `start` or `close` ends the run; any other exception always does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

MemoryKind = Literal["device", "host"]

AnomalyKind = Literal[
    "not_finite", "empty_step", "loss_spike", "slow_step", "slow_pace", "data_wait", "straggler",
    "layer_limit",
]  # fmt: skip
"""`docs/warnings.md` states what each looks like and what to do."""


@dataclass(frozen=True)
class RunInfo:
    """Information about a run before its first step."""

    config: Mapping[str, object]
    """The resolved configuration, as nested plain values."""
    plan: Mapping[str, object]
    """The plan, as in `plan.json`."""
    rows: list[tuple[str, str, str]]
    """The plan as a table: rows of (name, value, reason)."""
    brief: list[tuple[str, str]]
    """The plan in a few lines of (name, words)."""
    folder: str
    """The run's own folder; it exists."""
    steps: int
    """Step at which the run ends."""
    first_step: int = 1
    """First step that this process runs; above 1 after a restore."""
    baseline_loss: float | None = None
    """Validation loss, in nats per token, of a simple model of the same data."""
    came_from: tuple[str, ...] = ()
    """The models from which the run came, through `run.init_from`, the nearest first."""


@dataclass(frozen=True)
class StepRecord:
    """Values of one logged step."""

    step: int
    """Number of the step, from 1."""
    loss: float | None
    """Training loss in nats per token, or per pair; None where the batch has no token that the loss counts."""
    grad_norm: float
    """Global norm of the gradient before clipping."""
    learning_rate: float
    tokens_per_second: float
    tokens_per_second_per_device: float
    step_time_s: float
    """Mean time of a step since the previous record, without evaluations and saves."""
    mfu: float | None
    """Model FLOPs utilisation (`jaxpar.model.flops`) as a fraction of 1, of the peak in 16 bits; None where that is not
    known."""
    memory_bytes: int | None
    """Memory in use (`jaxpar.observe.memory`)."""
    eta_s: float
    """Expected time to the last step."""
    skipped_steps: int = 0
    """Steps skipped so far because their loss or gradient was not finite."""
    empty_steps: int = 0
    """Steps so far without a token that the loss counts: they changed nothing."""
    loss_scale: float | None = None
    """Loss scale under float16."""
    matrix_learning_rate: float | None = None
    """Learning rate of the layers' matrices; None where it is `learning_rate`."""
    eval_loss: float | None = None
    """Validation loss, where this step was evaluated."""
    memory_kind: MemoryKind = "device"
    """The memory that `memory_bytes` and the next two fields measure: of devices or of the host."""
    memory_peak_bytes: int | None = None
    """The most that was in use so far."""
    memory_limit_bytes: int | None = None
    """The memory limit: what XLA may take of the device, or the machine's memory."""
    epochs: dict[str, float] | None = None
    """Data source to its epochs so far."""
    blocks: dict[str, dict[str, float]] | None = None
    """Block to the values that it reports (`jaxpar.runtime.passes.Report`), each as a mapping in `metrics.jsonl`."""
    features: dict[str, object] | None = None
    """Values, by name, that features with carried state record (`jaxpar.runtime.carried.Carried.record`), and those
    that blocks report of single layers."""
    data_wait: float = 0.0
    """Share of the time since the previous record in which the devices of this process waited for a batch."""
    metrics: dict[str, float] | None = None
    """Metrics of the loss and the layers by name; names that begin with `eval_` are of validation data."""


@dataclass(frozen=True)
class Anomaly:
    """An anomaly in a run: reported once when it begins, and not at every step while it lasts."""

    step: int
    """Step at which it was noticed."""
    kind: AnomalyKind
    text: str
    """One sentence for people."""
    facts: Mapping[str, object]
    """The numbers in it, as JSON values."""


@dataclass(frozen=True)
class Summary:
    """The end of a run, as `summary.json` has it."""

    steps: int
    """Steps done, those before a restore included."""
    loss: float | None
    """Training loss of the last logged step that has one, if any."""
    eval_loss: float | None
    baseline_loss: float | None
    tokens: int
    """Tokens trained on, those before a restore included."""
    train_seconds: float
    """Time that this process spent in steps, without compilation, evaluations and saves."""
    compile_seconds: float
    first_step_seconds: float
    """The first step of this process after compilation."""
    steady_step_seconds: float
    """Mean time of the later steps."""
    peak_bytes: int | None
    """Largest memory in use (`jaxpar.observe.memory`)."""
    predicted_bytes: int | None
    """The plan's prediction of it."""
    host_step_seconds: float = 0.0
    """Mean time per step in which the host neither dispatched nor waited, after the first step."""
    memory_kind: MemoryKind = "device"
    """The memory that `peak_bytes` measures: of devices or of the host."""
    epochs: dict[str, float] | None = None
    """Data source to its epochs, those before a restore included."""
    empty_steps: int = 0
    """Steps without a token that the loss counts, those before a restore included: they changed nothing."""


class Listener:
    """Receives the events of a run. Every method does nothing until overridden; see the module for the rules."""

    def start(self, info: RunInfo) -> str | None:
        """The plan is made and nothing has been compiled yet. May return a message for the user."""

    def step(self, record: StepRecord) -> None:
        """A step was logged."""

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        """Validation data was evaluated after `step`; losses in nats per token."""

    def saved(self, step: int, path: str) -> None:
        """The checkpoint of `step` is complete at `path`."""

    def message(self, text: str) -> None:
        """A message for the user: a warning, a skipped checkpoint, a skipped step."""

    def progress(self, text: str, done: int, total: int) -> None:
        """Long work before the first step, described by `text`, has come so far; the first call has `done` 0."""

    def anomaly(self, anomaly: Anomaly) -> None:
        """An anomaly was detected; unless overridden, its text is sent as a message."""
        self.message(anomaly.text)

    def rewound(self, step: int) -> None:
        """The run went back to the checkpoint of `step`: the steps after it are void, and are repeated."""

    def sample(self, prompt: str, continuation: str) -> None:
        """The model continued `prompt`."""

    def end(self, summary: Summary) -> None:
        """The run reached its end, or was asked to stop and saved."""

    def failed(self, error: Exception) -> None:
        """The run ends here because of `error`, which is raised next."""

    def close(self) -> None:
        """Close files and the screen after the last event."""


class Listeners(Listener):
    """Passes every call to several listeners, in order."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.members = list(listeners)

    def start(self, info: RunInfo) -> None:
        for text in filter(None, [member.start(info) for member in self.members]):
            self.message(text)

    def step(self, record: StepRecord) -> None:
        for member in self.members:
            with self._guarded(member):
                member.step(record)

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        for member in self.members:
            with self._guarded(member):
                member.evaluation(step, loss, baseline)

    def saved(self, step: int, path: str) -> None:
        for member in self.members:
            with self._guarded(member):
                member.saved(step, path)

    def message(self, text: str) -> None:
        for member in self.members:
            with self._guarded(member):
                member.message(text)

    def progress(self, text: str, done: int, total: int) -> None:
        for member in self.members:
            with self._guarded(member):
                member.progress(text, done, total)

    def anomaly(self, anomaly: Anomaly) -> None:
        for member in self.members:
            with self._guarded(member):
                member.anomaly(anomaly)

    def rewound(self, step: int) -> None:
        for member in self.members:
            with self._guarded(member):
                member.rewound(step)

    def sample(self, prompt: str, continuation: str) -> None:
        for member in self.members:
            with self._guarded(member):
                member.sample(prompt, continuation)

    def end(self, summary: Summary) -> None:
        for member in self.members:
            with self._guarded(member):
                member.end(summary)

    def failed(self, error: Exception) -> None:
        for member in self.members:
            with self._guarded(member):
                member.failed(error)

    @contextmanager
    def _guarded(self, member: Listener) -> Iterator[None]:
        """An OSError of `member` becomes a message to the others."""
        try:
            yield
        except OSError as error:
            text = f"{type(member).__name__}: {error.strerror or error}; training goes on."
            for other in self.members:
                if other is not member:
                    with suppress(OSError):  # A failure here has its own message.
                        other.message(text)

    def close(self) -> None:
        """Close every member, also when one of them raises; the exception is raised after the others are closed."""
        with ExitStack() as stack:
            for member in reversed(self.members):
                stack.callback(member.close)
