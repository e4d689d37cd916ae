"""Makes goldens of adapters of arrays of experts (`target_parameters`), with torch, transformers and peft:

    python -m tests.goldens.generate_peft_experts

writes for each model `tests/goldens/peft_experts/<name>/`: the folder that PEFT saves, with drawn factors, and
`deltas.npz`: by the name of each array, what PEFT adds to it.
"""

from pathlib import Path

import numpy as np
import peft
import torch
import transformers

FOLDER = Path(__file__).parent
NAMES = ("mixtral", "qwen3_moe", "gpt_oss")


def write(name: str) -> None:
    """Make one golden and write it."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32)
    arrays = ["experts.gate_up_proj", "experts.down_proj"]
    patterns = {r".*\.0\.mlp\.experts\.down_proj": 9.0} if name == "mixtral" else {}
    config = peft.LoraConfig(
        r=2, lora_alpha=6.0, target_modules=["q_proj"], target_parameters=arrays, alpha_pattern=patterns,
        task_type="CAUSAL_LM",
    )  # fmt: skip
    adapted = peft.get_peft_model(model, config)
    for key, weight in adapted.named_parameters():
        if ".lora_" in key:
            torch.nn.init.normal_(weight.data, std=0.3)
    deltas = {}
    for key, module in adapted.named_modules():
        if type(module).__name__ == "ParamWrapper":
            path = key.removeprefix("base_model.model.").replace(".base_layer", "")
            deltas[f"{path}.{module.parameter_name}"] = module.get_delta_weight("default").detach().numpy()
    target = FOLDER / "peft_experts" / name
    adapted.peft_config["default"].base_model_name_or_path = name
    adapted.save_pretrained(target)
    (target / "adapter_model.safetensors").chmod(0o644)
    (target / "README.md").unlink(missing_ok=True)
    np.savez(target / "deltas.npz", **deltas)
    print(f"{name}: {len(deltas)} arrays, peft {peft.__version__}")


if __name__ == "__main__":
    for one in NAMES:
        write(one)
