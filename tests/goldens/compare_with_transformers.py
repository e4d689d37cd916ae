"""Compares an exported folder in transformers with what `python -m jaxpar.generate --json` printed of the model.

    python -m jaxpar.generate --model runs/NAME --prompt TEXT --json > generated.jsonl
    python tests/goldens/compare_with_transformers.py OUT generated.jsonl

Run it where torch and transformers import; jaxpar need not be installed. transformers gets the prompt with the tokens
that jaxpar drew, and its log-probabilities of these and its likeliest tokens are compared with jaxpar's.
"""

import json
import sys
from pathlib import Path

import torch
import transformers


def main(folder: str, generated: str) -> None:
    """Print the largest difference, and whether the likeliest tokens are the same."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    worst, same, tokens = 0.0, 0, 0
    for line in Path(generated).read_text().splitlines():
        row = json.loads(line)
        prompt = tokenizer(row["prompt"])["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + row["tokens"]])).logits[0, len(prompt) - 1 : -1]
        drawn = torch.tensor(row["tokens"])
        own = torch.log_softmax(logits, -1).gather(-1, drawn[:, None])[:, 0]
        worst = max(worst, float((own - torch.tensor(row["log_probabilities"])).abs().max()))
        same, tokens = same + int((logits.argmax(-1) == drawn).sum()), tokens + len(drawn)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    print(
        f"{versions}: {same} of {tokens} likeliest tokens are the same; log-probabilities differ by {worst:.1e} at most"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
