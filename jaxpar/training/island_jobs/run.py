"""A run that is one of several islands, each a separate job (`islands.folder`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from jaxpar.checkpoint.facts import BASE
from jaxpar.checkpoint.processes import is_first, run_on_process_0
from jaxpar.config import Config, UserError, config_to_dict
from jaxpar.config.spelling import named
from jaxpar.data.randomness import random_bits
from jaxpar.distributed import liveness
from jaxpar.layout.state import TrainState
from jaxpar.mesh.parameters import Weights
from jaxpar.observe.events import Listener
from jaxpar.training.island_jobs.exchange import Exchange
from jaxpar.training.island_jobs.island import Island
from jaxpar.training.island_jobs.local_weights import LocalWeights
from jaxpar.training.island_jobs.records import Closed, digest_of
from jaxpar.training.island_jobs.tensor_parts import Part
from jaxpar.training.run.run import Run
from jaxpar.training.run_folder.lock import RunLock
from jaxpar.training.step.forward_backward import StepMetrics

ISLAND = "island"
"""The fact of a checkpoint with the round, the digest of its outer state, and the step at which it began."""


class IslandRun(Run):
    """A run that exchanges outer gradients with others after each `islands.every` of its steps.

    A round that was closed without this island is lost to it alone: it continues from the newest outer state. The
    optimizer's state, the number of steps and the place in the data are the island's.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._listeners = Listener()
        super().__init__(*args, **kwargs)
        assert self.config.islands.folder is not None, "the run of an island"
        exchange = Exchange(Path(self.config.islands.folder).expanduser(), self.config.run.name)
        run_on_process_0(lambda: exchange.check(self._agreed))
        say = lambda text: self._listeners.message(text)
        self.island = Island(exchange, self.config.islands, self._digest, say)
        self._lock = RunLock(exchange.folder.path / "islands" / exchange.island)
        self._joined = self._began = False
        self._steps = self._base_step = 0
        """Steps so far, and those before the outer state of the round; counted here, since the devices are behind."""

    @classmethod
    def data_seed(cls, config: Config) -> int:
        """See `Run`: each island has other rows."""
        bits = random_bits(1, config.run.seed, *config.run.name.encode())
        return int(bits[0]) % 2**32

    @cached_property
    def _weights(self) -> LocalWeights:
        return LocalWeights(self.layout, self.mesh)

    @cached_property
    def _digest(self) -> str:
        return digest_of({name: list(shape) for name, shape in self._weights.shapes.items()})

    @cached_property
    def _agreed(self) -> dict[str, Any]:
        """The values on which all islands of an exchange agree, by key."""
        config = config_to_dict(self.config)
        agreed: Any = {name: config[name] for name in ("model", "lora")}
        agreed |= {"islands": {name: config["islands"][name] for name in ("outer", "wire")}}
        agreed = {f"{section}.{key}": value for section, keys in agreed.items() for key, value in keys.items()}
        base: Any = self.models.facts.get(BASE)  # of frozen weights
        return agreed if base is None else {**agreed, "run.init_from": base["digest"]}

    def provide_reference(
        self, listeners: Listener | None = None, saved: tuple[int, Mapping[str, Any]] | None = None
    ) -> None:
        """See `Run`. It also reports who is accepted, and a checkpoint of another exchange is refused."""
        self._listeners = listeners or self._listeners
        if saved is not None:
            self._check_saved(saved[1])
        super().provide_reference(listeners, saved)

    def _check_saved(self, facts: Mapping[str, Any]) -> None:
        if (saved := facts.get(ISLAND)) is None:
            return
        digest = run_on_process_0(lambda: self.island.exchange.digest(saved["round"]))
        if digest != saved["digest"]:
            folder = named(self.island.exchange.folder.path)
            what = "has no such outer state" if digest is None else "is the exchange of another run"
            raise UserError(
                f"islands.folder: {folder} {what}: this run's checkpoint is in round {saved['round']}; expected the "
                "folder in which it exchanged, or another run.name"
            )

    def continue_from(self, saved: TrainState, facts: Mapping[str, Any]) -> str | None:
        """See `Run`; the exchange is joined again before the next step."""
        self._joined = False
        return super().continue_from(saved, facts)

    def step(self) -> StepMetrics:
        """See `Run`; after the last step of a round, the exchange."""
        if not self._joined:
            liveness.report_activity("joining the other islands", busy=True)
            with self.timer.paused():
                self._join()
            if self._steps > self._base_step and self._is_exchange_due():  # it was stopped while it waited
                self._exchange()
        if not self._began:
            self.island.begin()
            self._began = True
        metrics = super().step()
        self._steps += 1
        if self._is_exchange_due():
            self._exchange()
        return metrics

    def _is_exchange_due(self) -> bool:
        """Whether an exchange follows the steps so far."""
        return self._steps % self.config.islands.every == 0  # pyright: ignore[reportOperatorIssue] (checked)

    def _join(self) -> None:
        """Take the newest outer state; the weights of a checkpoint continue where its round is still open."""
        if (notice := run_on_process_0(self._lock.take)) is not None:
            self._listeners.message(notice)
        run_on_process_0(lambda: self.island.exchange.join(self._agreed))
        self._steps = self._base_step = int(self.state.step)
        island: Island = self.island
        island.start(*self._weights.parts(self.state.master))
        saved: Any = self._continued.get(ISLAND)
        if saved is not None and saved["round"] == island.round:
            self._base_step = saved["step"]
        else:
            self._adopt_outer_state()
            if island.round:
                self._listeners.message(f"This island joins round {island.round}, with the newest outer state.")
        self._joined, self._began = True, False

    def _adopt_outer_state(self) -> None:
        """Take the weights of the outer state."""
        assert self._state is not None, "an island that has joined has a state"
        master: Weights = self._weights.placed(self.island.shared, self._state.master)
        self._state = self._state._replace(master=master)

    def _exchange(self) -> None:
        with self.timer.waiting():
            jax.block_until_ready(self.state.step)
        with self.timer.paused():
            saves = self._contribute()
            began = time.monotonic()
            closed = self.island.settle(self.stops)
            waited = time.monotonic() - began
            if closed is None:
                self._stop_waiting()
                return
            self.island.advance(closed, saves)
            self._adopt_outer_state()
        self._base_step, self._began = self._steps, False
        self._report(closed, waited)

    def _stop_waiting(self) -> None:
        """Leave the round open. Raises `UserError` where the run would end with weights that were not exchanged."""
        if self._steps >= self.config.run.steps:
            raise UserError(
                f"run.steps: stopped while the last round, {self.island.round}, waited for other islands; the same "
                "command continues from the newest checkpoint, and waits again"
            )
        self._listeners.message(f"Round {self.island.round} is open; the same command first waits for it again.")

    def _contribute(self) -> frozenset[Part]:
        """Write the outer gradient; returns the parts of the weights that this process saves."""
        liveness.report_activity(f"writing its outer gradient after step {self._steps}", busy=True)
        data, steps = self.config.data, self._steps - self._base_step
        parts, saves = self._weights.parts(self.state.master)
        self.island.contribute(parts, saves, steps, steps * data.batch_size * data.sequence_length)
        return saves

    def _report(self, closed: Closed, waited: float) -> None:
        """Tell who was accepted."""
        self.last_metrics = {
            "outer_round": float(closed.round),
            "islands_accepted": float(len(closed.accepted)),
            "islands_absent": float(len(closed.absent) + len(closed.refused)),
            "islands_wait_seconds": waited,
        }
        words = [f"Round {closed.round}: accepted {', '.join(sorted(closed.accepted))}"]
        words += [f"absent {', '.join(closed.absent)}"] if closed.absent else []
        words += [f"refused {name} ({why})" for name, why in sorted(closed.refused.items())]
        name = self.island.exchange.island
        if name not in closed.accepted and name not in closed.refused:
            words.append(f"this island came after it was closed, and continues with round {self.island.round}")
        self._listeners.message("; ".join(words) + ".")

    def brief(self) -> list[tuple[str, str]]:
        """See `Run`: the exchange."""
        islands = self.config.islands
        words = f"{self.island.exchange.island}, one of those in {islands.folder}, every {islands.every} steps"
        return [("island", words)]

    def facts(self) -> dict[str, object]:
        """See `Run`: where the island is in the exchange."""
        if not self._joined:
            return {ISLAND: self._continued[ISLAND]} if ISLAND in self._continued else {}
        return {ISLAND: {"round": self.island.round, "digest": self.island.digest, "step": self._base_step}}

    def close(self) -> None:
        """See `Run`: the others do not wait for this island any more."""
        if self._joined and is_first():  # alone: this process may end because of an error
            self.island.exchange.leave(self.island.round)
        self._joined = False
        self._lock.release()
        super().close()
