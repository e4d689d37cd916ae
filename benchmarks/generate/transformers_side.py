"""Generates with `transformers` and reports the seconds of each turn: the other side of the benchmark.

Imports nothing from jaxpar, so that any Python with torch and transformers runs it. Each line of standard input is a
JSON object, `{"prompts": [[token, ...], ...], "tokens": 64}`, where `tokens` may be a list for the rows; each answer is
another one:

    python benchmarks/generate/transformers_side.py FOLDER --device cpu --dtype float32
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any


class Clock:
    """A stopping criterion of `generate` that notes when the first token was drawn, and ends each row at its limit."""

    def __init__(self, limits: list[int], prompt: int) -> None:
        self.first: float | None = None
        self._limits, self._prompt = limits, prompt

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        import torch

        if self.first is None:
            synchronize(input_ids.device)
            self.first = time.perf_counter()
        return input_ids.shape[1] - self._prompt >= torch.tensor(self._limits, device=input_ids.device)


def synchronize(device: Any) -> None:
    """Wait for a GPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()


def turn(model: Any, prompts: list[list[int]], tokens: int | list[int]) -> dict[str, Any]:
    """Seconds until the first new token, seconds of the others, and the likeliest tokens themselves."""
    import torch
    import transformers

    longest, limits = max(map(len, prompts)), tokens if isinstance(tokens, list) else [tokens] * len(prompts)
    missing = [longest - len(prompt) for prompt in prompts]
    rows, mask = (
        torch.tensor(each, device=model.device)
        for each in (
            [[0] * pad + prompt for pad, prompt in zip(missing, prompts, strict=True)],
            [[0] * pad + [1] * (longest - pad) for pad in missing],
        )
    )
    clock = Clock(limits, longest)
    began, computed = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        found = model.generate(
            rows, attention_mask=mask, do_sample=False, max_new_tokens=max(limits), use_cache=True,
            stopping_criteria=transformers.StoppingCriteriaList([clock]),
        )  # fmt: skip
    synchronize(model.device)
    assert clock.first is not None, "a token was drawn"
    decode = time.perf_counter() - clock.first
    spent = {"prompt": clock.first - began, "decode": decode, "processor": time.process_time() - computed}
    return spent | {"tokens": found[:, rows.shape[1] :].tolist()}


def main() -> None:
    """Answer the turns of standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a model in Hugging Face's format")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.device == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype = getattr(torch, options.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=dtype).to(options.device).eval()
    about = {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}
    print(json.dumps(about | {"attention": model.config._attn_implementation}), flush=True)
    for line in sys.stdin:
        print(json.dumps(turn(model, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
