"""The model FLOPs utilisation of a compiled step, by peak."""

from __future__ import annotations

from jaxpar.compiler.report.record import Report
from jaxpar.config import Config
from jaxpar.hardware.catalogue import GPU
from jaxpar.model.flops import causal_pairs, flops_per_step, mfu


def utilisation(report: Report, config: Config, gpu: GPU) -> dict[str, float]:
    """Of a step in the time of `report`, as a share of the dense peak in 16 bits, and in FP8 where products run in it;
    of rows without documents.

    Args:
        report: of the compiled step.
        config: it is of, with the vocabulary set.
        gpu: which it was compiled for.
    """
    assert config.model.vocab is not None, "the vocabulary is known"
    tokens = config.data.batch_size * config.data.sequence_length
    pairs = causal_pairs(config.model, tokens, config.data.sequence_length)
    flops = flops_per_step(config.model, tokens, pairs, config.model.vocab, config.lora)
    share = lambda peak: mfu(flops, report.step_seconds, report.devices, peak)
    found: dict[str, float] = {gpu.training_dtype: share(gpu.training_peak)}
    return found | ({"float8": share(gpu.peaks["float8"])} if report.float8_flops else {})
