"""Seconds and bytes of drawing a batch of answers on some devices, by the costs of a layer that a step has.

A token of each row is the forward of as many tokens as a data rank has rows, which reads every weight, the cache as far
as rows are long on average, and the logits; prompts are the forward of their tokens, once for each. Rows are drawn
together and all have the longest answer. What the host does between two tokens is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxpar.config import Config, ParallelConfig, UserError
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.cost.head import head_time
from jaxpar.cost.layout import Layout
from jaxpar.generation.layout import generation_config, power_of_two, prompt_bucket
from jaxpar.generation.memory import GenerationBytes, generation_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.planner.search.space import divisors
from jaxpar.planner.settings import plan_on
from jaxpar.planner.step_time.common import Common
from jaxpar.planner.step_time.weight_traffic import DataMessages
from jaxpar.trace.clock import Clock
from jaxpar.trace.parts import Op, Repeat, Run, Trace


@dataclass(frozen=True)
class Drawing:
    """A batch of answers drawn on some devices."""

    layout: Layout
    run: Run
    """Seconds of the clock: of prompts, then of tokens."""
    token: float
    """Seconds of a token of each row."""
    bytes: GenerationBytes

    @property
    def seconds(self) -> float:
        """Seconds of the batch."""
        return self.run.seconds


@dataclass(frozen=True)
class Drawer:
    """Answers of one run on one cluster."""

    config: Config
    """The configuration, with the vocabulary set."""
    common: Common

    @property
    def prompt(self) -> int:
        """Tokens of the longest prompt that rows of the step have room for."""
        return max(1, self.config.data.sequence_length - self.config.rl.answer_tokens + 1)

    def drawings(self) -> Iterator[Drawing]:
        """Drawings on all devices of the cluster in the layouts of `rl.sampler`, each with all weights of its ranks."""
        asked = self.config.rl.sampler
        for layout in self._layouts() if asked == SamplerConfig() else self._asked(asked):
            try:
                yield self.drawing(layout)
            except UserError:  # the model cannot be split so
                continue

    def _layouts(self) -> Iterator[Layout]:
        devices, routed = self.common.cluster.devices, self.config.model.experts is not None
        for tensor in divisors(devices):
            if tensor <= self.common.cluster.gpus_per_host and self.config.model.heads % tensor == 0:
                for expert in divisors(devices // tensor) if routed else (1,):
                    yield Layout(tensor=tensor, expert=expert, fsdp=devices // (tensor * expert))

    def _asked(self, asked: SamplerConfig) -> Iterator[Layout]:
        """The layout that a configuration names, where it is one of all devices."""
        fsdp, rest = divmod(self.common.cluster.devices, asked.expert * asked.context * asked.tensor)
        if fsdp and not rest and asked.fsdp in (None, fsdp):
            yield Layout(fsdp=fsdp, expert=asked.expert, context=asked.context, tensor=asked.tensor)

    def drawing(self, layout: Layout) -> Drawing:
        """A batch of answers in a layout, under ZeRO-3 gathering each layer at each token. Raises `UserError`."""
        rl = self.config.rl
        parallel = ParallelConfig(fsdp=layout.data // layout.expert, expert=layout.expert, tensor=layout.tensor)
        wide = replace(self.config, parallel=replace(parallel, context=layout.context))
        tokens, rows = self.prompt + rl.answer_tokens, rl.prompts * rl.group
        laid_out = generation_config(wide, rows, tokens, 3 if layout.zero == 3 else 0)
        # A layout of generation is the same for all rows: the fewest that the mesh splits.
        data = replace(
            laid_out.data, source="synthetic", path=None, validation_path=None, tokenizer=None,
            end_token=None, batch_size=layout.devices, sequence_length=64 * layout.devices,
        )  # fmt: skip
        made = StepLayout(*plan_on(replace(laid_out, data=data, rl=RlConfig()), self.common.cluster))
        size = generation_bytes(made, rl.prompts, rl.group, self.prompt, rl.answer_tokens)
        local = power_of_two(-(-rows // layout.data))
        local = -(-local // layout.tensor) * layout.tensor
        device, each = self.common.device, self._gathers(layout)
        token = self.forward(replace(layout, microbatch=1), local, attends=False)
        reads = Op("cache and logits", device.bytes_seconds(float(size.read + size.logits)), "memory")
        prompts = replace(layout, microbatch=-(-rl.prompts // layout.data))
        part = layout.context * layout.tensor
        read = self.forward(prompts, prompt_bucket(self.prompt, part))
        one = Trace("token", (Repeat("layers", token), reads, *each))
        all_prompts = Trace("prompts", (Repeat("layers", read), *each))
        clock = Clock(self.common.hardware.overlap_slowdown)
        run = clock.walk(Repeat("prompts", all_prompts), Repeat("tokens", one, rl.answer_tokens - 1))
        return Drawing(layout, run, clock.run(one).seconds, size)

    def forward(self, layout: Layout, sequence: int, *, attends: bool = True) -> Run:
        """The forward of `layout.microbatch` rows of a data rank with the head, and with attention if it `attends`."""
        common = self.common
        where = Common(self.config.model, sequence, 1, common.cluster, common.hardware, common.update, common.network)
        layers = where.layers(layout)
        one = layers.forward if attends else layers.forward._replace(attention=0.0, context=0.0)
        head, _ = head_time(layers.case, where.vocab, where.device, where.network)
        tokens = layout.microbatch * sequence
        last = head if not attends else head.times(layout.microbatch / tokens)
        return Clock(where.hardware.overlap_slowdown).walk(
            Repeat("layers", one.run(), self.config.model.layers), Repeat("head", last.run())
        )

    def _gathers(self, layout: Layout) -> list[Op]:
        """The gathers of weights that a pass over the layers waits for: of ZeRO-3, one layer at a time."""
        if layout.zero != 3:
            return []
        layers = self.common.layers(layout)
        sent = DataMessages(self.common, layout, float(layers.case.item))
        seconds = layers.average({sort: sent.of_layers(case)[0] for sort, case in layers.cases.items()})
        return [Op("weights", self.config.model.layers * seconds, "data")]
