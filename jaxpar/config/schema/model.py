"""The sections `model` and `lora`: the decoder's shape, the kinds of its layers, and low-rank factors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from jaxpar.config.bounds import BELOW_ONE, LAYERS, POSITIVE, WIDTH, at_least
from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.mappings.residual import AltUpConfig, PerLayerEmbeddings, ResidualConfig
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.parts import FEED_FORWARDS, INPUTS, MIXERS

_Value = int | float | bool | str | None


@dataclass(frozen=True)
class Pattern:
    """The kinds of a model's layers in order: `prefix`, then `unit` repeated, then `suffix`."""

    unit: tuple[str, ...]
    """Kinds that repeat, as often as `model.layers` requires."""
    prefix: tuple[str, ...] = ()
    """Kinds of the layers before them."""
    suffix: tuple[str, ...] = ()
    """Kinds of the layers after them."""


@dataclass(frozen=True)
class ModelConfig:
    """The decoder. A preset fills every field; fields written beside it override it."""

    preset: str | None = None
    """Name of a published model to start from (`llama3-8b`, `gpt2-124m`, ...)."""
    layers: Annotated[int, at_least(1, LAYERS)] = 4
    """Number of decoder layers."""
    kinds: dict[str, dict[str, _Value | dict[str, _Value]]] = field(default_factory=dict, hash=False)
    """Kinds of layers by name, each with the keys of `model` in which it differs: `{local: {window: 512}, global: {}}`.
    Empty means that all layers are of one kind, `all`."""
    pattern: Pattern | None = None
    """The kind of each layer: `{prefix: [...], unit: [...], suffix: [...]}`, lists of names of `model.kinds`; the
    unit repeats until there are `model.layers` layers. Null is for a model without kinds."""
    embed: Annotated[int, at_least(1, WIDTH)] = 256
    """Width of the residual stream."""
    heads: Annotated[int, at_least(1, WIDTH)] = 8
    """Query heads."""
    kv_heads: Annotated[int, at_least(1, WIDTH)] | None = None
    """Key and value heads (grouped-query attention); null means as many as `heads`."""
    head_dim: Annotated[int, at_least(1, WIDTH)] | None = None
    """Width of one head; null means `embed / heads`."""
    mlp: Annotated[int, at_least(1, WIDTH)] = 1024
    """Hidden width of the feed-forward layer."""
    vocab: Annotated[int, at_least(1)] | None = None
    """Vocabulary size; null takes it from the data source."""
    vocab_multiple: Annotated[int, at_least(1, WIDTH)] = 128
    """The vocabulary is padded to this multiple, on every mesh alike, so that weights do not depend on the layout."""
    input: Annotated[str, INPUTS] = "tokens"
    """The block before the first layer, which makes the residual stream from the fields of a batch that it reads
    (`docs/extending.md`)."""
    norm: Literal[
        "rmsnorm", "zero_centered_rmsnorm", "layernorm", "unbiased_layernorm", "weightless_layernorm"
    ] = "rmsnorm"  # fmt: skip
    """Normalisation around attention and the feed-forward layer (see `norm_placement`) and before the head;
    `zero_centered_rmsnorm` multiplies by 1 plus its weights, which begin at 0 (Gemma). LayerNorm has a scale and a
    bias, a scale alone (`unbiased_layernorm`: Cohere, ModernBERT), or neither (`weightless_layernorm`: OLMo 1)."""
    norm_placement: Literal["pre", "post", "sandwich", "stream", "stream_mixer", "parallel", "parallel_norms"] = "pre"
    """Whether attention and the feed-forward layer have a norm on their input (`pre`), on their output before it is
    added to the residual stream (`post`: OLMo 2), on both (`sandwich`: Gemma 2 and 3), or on the residual stream before
    them, whose norm is their input and what their output is added to (`stream`: MiniMax-01, BERT). `stream_mixer` is
    `stream` for attention and `pre` for the feed-forward: ModernBERT's first layer, whose embeddings are normed.
    Parallel ones both read the input of the layer, through one norm (`parallel`: Cohere) or a norm of each
    (`parallel_norms`: GPT-NeoX)."""
    norm_epsilon: Annotated[float, POSITIVE] = 1e-5
    """Added to the mean square (or variance) inside the normalisation."""
    residual: ResidualConfig = field(default_factory=ResidualConfig)
    """Factors where blocks are added to the residual stream."""
    altup: AltUpConfig | None = None
    """Several residual streams, of which layers compute with one: `{streams: 4, active: 0}` (Gemma 3n); null means
    one."""
    laurel_rank: Annotated[int, at_least(1, WIDTH)] | None = None
    """Rank of a learned residual beside attention or another mixer: its input, plus a norm of two matrices of it, is
    added behind it, and the sum is divided by the root of 2 (LAuReL: Gemma 3n); null means none."""
    position: Literal["rope", "learned", "none"] = "rope"
    """Rotary embeddings of queries and keys (`rope`), a table added to the token embeddings (`learned`), or nothing but
    the causal mask (`none`: every fourth layer of SmolLM3)."""
    max_positions: Annotated[int, at_least(1)] = 1024
    """Rows of the learned position table; rotary embeddings do not use it."""
    token_types: Annotated[int, at_least(1)] | None = None
    """Rows of a table of kinds of text; the first row is added to every token embedding (BERT)."""
    rope: RopeConfig = field(default_factory=RopeConfig)
    """Rotary embeddings."""
    qk_norm: bool | Literal["projection", "rotated", "unweighted", "layernorm"] = False
    """Normalise queries and keys: per head before the rotation (true: Qwen3, Gemma 3), without a weight (`unweighted`:
    Llama 4) or after it (`rotated`: Hunyuan), over all heads at once before it (`projection`: OLMo 2), or per head
    before it by a LayerNorm with a scale for each head (`layernorm`: Command R+)."""
    value_norm: bool = False
    """Divide each value by its root mean square, as a norm without a weight (Gemma 3n, Gemma 4)."""
    keys_as_values: bool = False
    """Values are the projected keys, before their norm and rotation: there is no projection of values (Gemma 4)."""
    keys_of: str | None = None
    """In a kind: its layers have no keys and values, and attend to those of the last layer of the kind of this name
    before them (Gemma 3n, Gemma 4); null makes them."""
    qkv_clip: Annotated[float, POSITIVE] | None = None
    """Limit queries, keys and values to this magnitude before norms and the rotation (OLMo 1); null means none."""
    attention_bias: bool | Literal["qkv"] = False
    """Biases on the four projections of attention, or on those of queries, keys and values alone (`qkv`: Qwen 2.5)."""
    attention_scale: Annotated[float, POSITIVE] | None = None
    """Factor of the attention scores; null means one over the root of the width of queries and keys, with latent
    attention times the square of what `rope.mscale_all_dim` makes of `rope.factor` (`yarn`)."""
    mixer: Annotated[str, MIXERS] = "attention"
    """The block of a layer in which tokens see others; with `latent_attention` it is that. `none` is a layer without,
    in a kind."""
    latent_attention: LatentAttentionConfig | None = None
    """Multi-head latent attention instead of `kv_heads` and `head_dim` (`docs/attention.md`)."""
    linear_attention: LinearAttentionConfig | None = None
    """Heads and widths of mixers with a state (`docs/hybrids.md`); null takes those of attention."""
    attention_sinks: bool = False
    """A learned logit of each query head in the denominator of its softmax, so that a head may attend to nothing
    (gpt-oss)."""
    attention_gate: bool = False
    """Multiply attention's output before the projection out by the sigmoid of one of its input (Qwen3-Next)."""
    mlp_bias: bool = False
    """Biases on the projections of the feed-forward layer; with experts, on those of each and on the router's."""
    activation: Annotated[str, FEED_FORWARDS] = "swiglu"
    """The feed-forward, by its non-linearity; those that gate it, such as `swiglu`, have a third projection. `none` is
    a layer without (Mamba-2)."""
    activation_sparsity: Annotated[float, BELOW_ONE] = 0.0
    """Set the gates of the feed-forward to 0 up to the number that this share of a normal distribution with their mean
    and deviation is below, which is subtracted from the others (Gemma 3n)."""
    low_rank: dict[str, int] = field(default_factory=dict, hash=False)
    """The layers' matrices that are products of two, `x @ a @ b`, each with the rank between them: `{up: 64, down: 64}`
    (docs/low-rank.md). `python -m jaxpar.convert factorize` makes them of a model's."""
    experts: ExpertsConfig | None = None
    """Experts in place of the feed-forward, with its `activation`; null is one feed-forward for all tokens. Some layers
    have one where a kind sets `experts: null` (`docs/experts.md`)."""
    tied: bool = False
    """Use the token embedding as the output head."""
    embedding_scale: bool | Annotated[float, POSITIVE] = False
    """Multiply token embeddings by `sqrt(embed)` (true: Gemma) or by a number (Granite)."""
    layer_scale: bool = False
    """Multiply the output of each layer by a number of the layer, which training leaves as it is (Gemma 4)."""
    per_layer_embeddings: PerLayerEmbeddings | None = None
    """Numbers of each token for each layer, `{width: 256}`, which the layer's last block adds to the residual stream
    (Gemma 3n, Gemma 4); null means none."""
    window: Annotated[int, at_least(1)] | None = None
    """Sliding-window attention: a token sees itself and the `window - 1` tokens before it, and after it without
    `causal`; null means no limit."""
    chunk: Annotated[int, at_least(1)] | None = None
    """Chunked attention: a token sees those before it in its chunk of its document, `chunk` positions long (Llama 4);
    null means no limit."""
    attention_temperature: AttentionTemperature | None = None
    """Multiply queries by a number that grows with their position: `{floor: 8192, scale: 0.1, offset: 1}` (Llama 4)."""
    causal: bool = True
    """Whether a token sees no later one. Without, the model is bidirectional and learns from `loss.name: masked`."""
    head_transform: bool = False
    """A matrix, a GELU and a norm between the final norm and the head (BERT, ModernBERT); the matrix has a bias with
    `mlp_bias`."""
    head_bias: bool = False
    """A bias of the output logits (BERT, ModernBERT)."""
    logit_divisor: Annotated[float, POSITIVE] = 1.0
    """The output logits are divided by it, before their cap (Granite)."""
    logit_softcap: Annotated[float, POSITIVE] | None = None
    """Cap of the output logits: `c * tanh(x / c)`; null means none."""
    attention_softcap: Annotated[float, POSITIVE] | None = None
    """Cap of the attention scores: `c * tanh(x / c)`; null means none."""
    dropout: Annotated[float, BELOW_ONE] = 0.0
    """Dropout after the embedding, attention and feed-forward layer; a function of the global token index, so the same
    on every layout."""
    init_scale: Annotated[float, POSITIVE] = 0.02
    """Standard deviation of the initial weights; that of projections back into the residual stream is also divided by
    `sqrt(2 * layers)`."""
    z_loss: Annotated[float, at_least(0, 1e30)] = 0.0
    """Weight of `logsumexp(logits)^2`, which keeps the logits from drifting."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adaptation (LoRA, arXiv:2106.09685): the weights of `run.init_from` are frozen, and each target matrix W
    gets two trained factors, so that its product is `x W + alpha / rank * (x A) B`."""

    rank: Annotated[int, at_least(1, WIDTH)] | None = None
    """Columns of A and rows of B; null trains all weights, without factors."""
    alpha: Annotated[float, POSITIVE] = 16.0
    """Weight of the factors, which is divided by `rank`."""
    targets: tuple[str, ...] | None = None
    """The layers' matrices that get factors: some of `query`, `key`, `value`, `output`, `gate`, `up`, `down`; null is
    all that the model has."""
