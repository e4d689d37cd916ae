"""A model as lm-evaluation-harness asks for it, and its tasks. This module alone imports `lm_eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, quoted
from jaxpar.evaluation.language_model import LanguageModel
from jaxpar.evaluation.outcome import Metric, Outcome
from jaxpar.generation.sampling import Sampling

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the most new tokens; the first that is there counts."""
DRAWS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Settings of draws, named as in `Sampling`."""
NEW_TOKENS = 256
"""Most new tokens where a task names no number, as in lm_eval."""


class HarnessModel(LM):
    """The `lm_eval.api.model.LM` of a model.

    Its tokens and windows, and what it cuts of texts that are too long, are those of lm_eval's own `hf` model.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    @property
    def tokenizer_name(self) -> str:
        """Part of the name of lm_eval's caches."""
        return self.model.text.name.replace("/", "__")

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability, whether it is the likeliest) of each (context, continuation)."""
        return [(total, greedy) for total, greedy in self.model.likelihoods([request.args for request in requests])]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each (text,), in disjoint windows."""
        likelihoods = self.model.token_likelihoods([request.args[0] for request in requests])
        return [sum(float(window.sum(dtype="float64")) for window in windows) for windows in likelihoods]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each (context, settings). Raises `UserError` for a setting that is not supported."""
        answers, settings = [""] * len(requests), [_generation(request.args[1]) for request in requests]
        for setting in dict.fromkeys(settings):
            tokens, stops, sampling = setting
            numbers = [index for index, other in enumerate(settings) if other == setting]
            prompts = [requests[index].args[0] for index in numbers]
            texts = self.model.generated(prompts, tokens, stops, sampling)
            for index, text in zip(numbers, texts, strict=True):
                answers[index] = text
        return answers


def _generation(settings: Mapping[str, Any]) -> tuple[int, tuple[str, ...], Sampling]:
    """The most new tokens, the strings that end a text, and how tokens are drawn."""
    known = (*LIMITS, *DRAWS, "until", "do_sample")
    for name in settings:
        if name not in known:
            raise UserError(f"generation_kwargs: {name} is not supported{did_you_mean(name, known)}")
    limits = [settings[name] for name in LIMITS if settings.get(name) is not None]
    until = settings.get("until") or ()
    draws = {name: settings[name] for name in DRAWS if settings.get(name) is not None}
    if settings.get("do_sample") is False or not draws.get("temperature"):
        draws = {"repetition_penalty": draws["repetition_penalty"]} if "repetition_penalty" in draws else {}
    stops = (until,) if isinstance(until, str) else tuple(until)
    return int(limits[0]) if limits else NEW_TOKENS, stops, Sampling(**draws)


class HarnessTasks:
    """Tasks of lm_eval.

    Args:
        names: of tasks or of groups of them.
        folder: with more YAML files of tasks.

    Raises:
        UserError: there is no task of a name.
    """

    def __init__(self, names: Sequence[str], folder: Path | None) -> None:
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

        self._names = list(names)
        self._manager = TaskManager(include_path=None if folder is None else str(folder))
        for name in names:
            if name not in self._manager.all_tasks:
                near = did_you_mean(name, self._manager.all_tasks)
                raise UserError(f"--tasks: lm-evaluation-harness has no task {quoted(name)}{near}")

    def run(self, model: LanguageModel) -> dict[str, Outcome]:
        """The results of each task and group."""
        import lm_eval  # pyright: ignore[reportMissingImports]

        results = lm_eval.simple_evaluate(
            model=HarnessModel(model), tasks=self._names, task_manager=self._manager, log_samples=False
        )
        samples = results.get("n-samples", {})
        return {name: outcome_of(values, samples.get(name, {})) for name, values in results["results"].items()}


def outcome_of(values: Mapping[str, float | str], samples: Mapping[str, int]) -> Outcome:
    """The results of a task from lm_eval's `metric,filter: value` and `metric_stderr,filter: error`."""
    metrics: dict[str, Metric] = {}
    for key, value in values.items():
        name, _, chosen = key.partition(",")
        if not chosen or name.endswith("_stderr") or isinstance(value, str):
            continue
        error = values.get(f"{name}_stderr,{chosen}")
        standard_error = float(error) if isinstance(error, (int, float)) else None
        metrics[name if chosen == "none" else key] = Metric(float(value), standard_error)
    return Outcome("lm_eval", samples.get("effective", 0), metrics)
