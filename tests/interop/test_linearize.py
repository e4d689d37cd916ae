"""`convert linearize`: a dense model as SpikingBrain's layers, with the weights of its attention."""

from pathlib import Path

import numpy as np
import pytest

from jaxpar.convert import main
from jaxpar.interop.sources.open_source import open_source
from tests.goldens.loading import FOLDER
from tests.interop.folders import tensors
from tests.reference import spikingbrain64
from tests.sentences import refused_by_command


def linearize(*arguments: object) -> int:
    """The exit code of the command."""
    return main(["linearize", *map(str, arguments)])


def test_weights_are_those_of_attention_and_new_decays(tmp_path: Path):
    """And the export in the format of SpikingBrain's code computes with them, without NaN."""
    assert linearize(FOLDER / "qwen2", tmp_path / "ours", "--window", 5) == 0
    source = open_source(tmp_path / "ours", "MODEL")
    kinds = source.model.kinds
    assert (kinds["state"]["mixer"], kinds["local"]["window"]) == ("relu_gla", 5)
    assert main(["jaxpar-to-hf", str(tmp_path / "ours"), str(tmp_path / "theirs")]) == 0
    dense, made = tensors(FOLDER / "qwen2"), tensors(tmp_path / "theirs")
    names = {"self_attn": "attn", "embed_tokens": "embeddings", "input_layernorm": "attn_norm"}
    names["post_attention_layernorm"] = "mlp_norm"
    for name, values in dense.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        np.testing.assert_array_equal(made.pop(name), values, name)
    first, second = (made.pop(f"model.layers.0.attn.gk_proj.{one}.weight") for one in (0, 1))
    for matrix, bound in ((first, 2**-2.5 * (6 / (32 + 16)) ** 0.5), (second, 2**-2.5 * (6 / (16 + 16)) ** 0.5)):
        assert 0.9 * bound < np.abs(matrix).max() <= bound and abs(matrix.std() - bound / 3**0.5) < 0.1 * bound
    assert not made.pop("model.layers.0.attn.gk_proj.1.bias").any()
    assert (made.pop("model.layers.0.attn.g_norm.weight") == 1).all() and not made
    everything = tensors(tmp_path / "theirs")
    everything.setdefault("lm_head.weight", everything["model.embeddings.weight"])
    config = {
        "norm_eps": 1e-6, "num_hidden_layers": 2, "attn_layers": [1], "num_attention_heads": 4,
        "num_key_value_heads": 2, "rope_theta": 1000.0, "sliding_window": 5,
    }  # fmt: skip
    assert np.isfinite(spikingbrain64.logits(everything, config, np.arange(12).reshape(1, 12))).all()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gemma2", ("MODEL", "kinds of layers", "all alike")),
        ("qwen3", ("MODEL", "model.qk_norm (True)", "attention without")),
        ("llama_biases", ("MODEL", "bias", "qkv")),
        ("mamba2", ("MODEL", "model.mixer (mamba2)")),
    ],
)
def test_what_is_no_such_model_is_refused(name: str, parts: tuple[str, ...], tmp_path, capfd):
    status = linearize(FOLDER / name, tmp_path / "out")
    refused_by_command(status, *capfd.readouterr(), *parts)
    assert not list(tmp_path.iterdir())
