"""Makes models of drawn configurations and computes their logits, or those of exported folders, with transformers.

    python -m tests.goldens.compute FOLDER [exported]

The folders of FOLDER have a `config.json` each, from `tests.goldens.check`, which runs this. Beside it come
`model.safetensors` with random weights and `logits.npz`: for each length N in `LENGTHS` `tokens_N` [1, N], whose last
ones are the likeliest after the others, and `logits_N` in float64; `bfloat16`, the longest row's in bfloat16. With
`exported`, folders of exports are loaded, and their logits compared with those; each difference is printed.
"""

import json
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.goldens.generate import as_published, class_of, fill, loaded, logits_of

LENGTHS = (1, 17, 200)
GREEDY = 8
"""Tokens at the end of a row that are the likeliest ones."""
ROUNDING = 3e-6
"""The largest difference that float32 makes there, with the last bit of rotary frequencies, which transformers rounds
in float64 too; weights are made smaller until it is not exceeded, since a model that amplifies rounding says nothing
about what is computed."""
OF_SCORES = ("q_norm", "k_norm")
"""Ends of names of norms that scale the scores, however small the projections are."""
SMALLER = 8
"""How often at most."""


def rounding(folder: Path, row: np.ndarray) -> float:
    """The difference of logits in float32, and with frequencies a bit higher, over the largest."""
    model = loaded(folder)
    wanted = logits_of(model, row)
    for module in model.modules():
        for name, frequencies in [*vars(module).items(), *module.named_buffers(recurse=False)]:
            if name.endswith("inv_freq"):
                setattr(module, name, frequencies * (1 + 2**-23))
    return float(np.abs(logits_of(model.float(), row) - wanted).max() / np.abs(wanted).max())


@torch.no_grad()
def make_smaller(model: transformers.PreTrainedModel) -> None:
    """Multiply matrices, and what norms of scores multiply by: their weight, or in some classes 1 and that."""
    for weight in model.parameters():
        weight *= 0.7 if weight.ndim > 1 else 1.0
    for path, norm in model.named_modules():
        if path.endswith(OF_SCORES) and getattr(norm, "weight", None) is not None:
            stored = norm.weight.clone()
            norm.weight.zero_()
            added = float(norm(torch.ones_like(stored)).abs().max() > 0)
            norm.weight.copy_(0.7 * (stored + added) - added)


def make(folder: Path) -> None:
    """Write the weights and the logits of a configuration."""
    random = np.random.default_rng(zlib.crc32(folder.name.encode()))
    before = (folder / "config.json").read_bytes()
    config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
    model = class_of(folder)(config).eval()
    fill(model, random)
    vocab, arrays = config.vocab_size, {}
    row = random.integers(0, vocab, (1, max(LENGTHS)))
    for _ in range(SMALLER):
        model.to(torch.float32).save_pretrained(folder)
        (folder / "config.json").write_bytes(before)
        as_published(folder)
        if rounding(folder, row) <= ROUNDING:
            break
        make_smaller(model)
    else:
        raise ValueError(f"rounding to float32 changes logits by more than {ROUNDING} of the largest")
    exact = loaded(folder)
    for length in LENGTHS:
        tokens = row[:, :length].copy()
        for end in range(max(1, length - GREEDY), length):
            tokens[0, end] = logits_of(exact, tokens[:, :end])[0, -1].argmax()
        arrays |= {f"tokens_{length}": tokens.astype(np.int32), f"logits_{length}": logits_of(exact, tokens)}
    rounded = loaded(folder, torch.bfloat16)
    with torch.no_grad():
        arrays["bfloat16"] = rounded(torch.from_numpy(tokens)).logits.double().numpy()
    np.savez(folder / "logits.npz", **arrays)


def check_export(folder: Path) -> list[str]:
    """The mistakes in the exports of a model."""
    wrong = []
    with np.load(folder / "logits.npz") as stored:
        for export in ("export", "anew"):
            exact = loaded(folder / export)
            difference = np.max(  # of a NaN too
                [np.abs(logits_of(exact, stored[f"tokens_{one}"]) - stored[f"logits_{one}"]).max() for one in LENGTHS]
            )
            if difference:
                wrong.append(f"{export}: logits differ by {difference:.1e} in transformers")
    return wrong


def main(path: str, exported: str = "") -> None:
    """Compute every folder's, and print as JSON what failed."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failures: dict[str, list[str]] = {}
    for folder in sorted(one for one in Path(path).iterdir() if (one / "config.json").exists()):
        try:
            wrong = check_export(folder) if exported else make(folder)
        except Exception as error:  # whatever a configuration breaks there is reported
            wrong = [f"transformers: {type(error).__name__}: {error}"[:300]]
        if wrong:
            failures[folder.name] = wrong
    (Path(path) / f"failures{exported}.json").write_text(json.dumps(failures))


if __name__ == "__main__":
    main(*sys.argv[1:])
