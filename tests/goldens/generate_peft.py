"""Makes goldens of adapters: logits that PEFT computes of the factors that jaxpar exported.

First jaxpar's environment exports the factors of `tests.interop.test_adapter`, then one with torch, transformers and
peft computes:

    python -m tests.interop.peft_adapters FOLDER [NAME ...]
    python -m tests.goldens.generate_peft FOLDER

writes for each case `tests/goldens/peft/<name>.npz`: `logits` float32 [batch, seq, vocab], computed in float64, of the
golden's tokens; `adapter`, the digest of the adapter's weights; `made_with`, the versions.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
import peft
import torch
import transformers

FOLDER = Path(__file__).parent


def write(name: str, adapter: Path) -> None:
    """Make one golden and write it."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    base = load(FOLDER / name, dtype=torch.float64, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).double().eval()
    with np.load(FOLDER / name / "logits.npz") as stored:
        tokens, before = stored["tokens"].astype(np.int64), stored["logits"]
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)).logits.numpy()
    digest = hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()
    versions = f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    target = FOLDER / "peft" / f"{name}.npz"
    target.parent.mkdir(exist_ok=True)
    np.savez(target, logits=logits.astype(np.float32), adapter=np.array(digest), made_with=np.array(versions))
    print(f"{name}: the adapter changes logits by {np.abs(logits - before).max():.2f} at most")


if __name__ == "__main__":
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        write(folder.name, folder / "adapter")
