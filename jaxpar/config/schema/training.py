"""The sections `loss`, `optimizer`, `data` and `evaluation`: what is trained on, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from jaxpar.config.bounds import BELOW_HALF, BETWEEN, POSITIVE, ROWS, SEQUENCE, SHARE, WIDTH, at_least
from jaxpar.config.mappings.contrastive import ContrastiveConfig
from jaxpar.config.mappings.policy import PolicyConfig
from jaxpar.config.parts import DATA_SOURCES, OBJECTIVES, OPTIMIZERS


@dataclass(frozen=True)
class LossConfig:
    """The objective that a step minimizes."""

    name: Annotated[str, OBJECTIVES] = "cross_entropy"
    """`cross_entropy` of each token that counts, or direct preference optimization (`dpo`, arXiv:2305.18290) of pairs
    of answers, one chosen and the other rejected: `python -m jaxpar.prepare --format preference`. So are
    `simpo` (arXiv:2405.14734) and `orpo` (arXiv:2403.07691), which have no reference. `kto` (arXiv:2402.01306) is of
    single answers, marked as desirable or not: `python -m jaxpar.prepare --format labelled`. `distill`
    draws the distribution of each token to that of a teacher, `loss.reference`. `masked` is of hidden tokens that a
    bidirectional model (`model.causal: false`) predicts (BERT, arXiv:1810.04805). `grpo`,
    `dr_grpo`, `dapo`, `gspo`, `cispo`, `aipo` and `rloo` learn from rewards of answers that the model draws (`rl`)."""
    beta: Annotated[float, POSITIVE] = 0.1
    """Weight under `dpo` and `kto` of a log-probability relative to the reference's; a smaller beta lets the model move
    further away from the reference. Under `simpo` that of a mean log-probability, from 2 to 10 in its paper; under
    `orpo` that of the odds ratio."""
    gamma: Annotated[float, at_least(0, 1e30)] = 0.5
    """Margin by which `simpo` wants the reward of the chosen answer to exceed that of the rejected one; from 0.3 to 0.5
    of `beta` in its paper."""
    desirable_weight: Annotated[float, POSITIVE] = 1.0
    """Weight under `kto` of answers marked as desirable; a greater one balances fewer of them."""
    undesirable_weight: Annotated[float, POSITIVE] = 1.0
    """Weight under `kto` of the other answers."""
    label_smoothing: Annotated[float, BELOW_HALF] = 0.0
    """Probability that a pair is labelled the wrong way round (conservative `dpo`, and `simpo`)."""
    reference: str | None = None
    """Model that `dpo` and `kto` compare the trained one with, a folder as in `run.init_from`; null means the model of
    `run.init_from`. Its log-probabilities are computed once, and stored in the token folder; those of the teacher of
    `distill` in the run's. The penalty
    `loss.policy.kl` compares with it too; its weights stay on the devices then."""
    teacher_weight: Annotated[float, SHARE] = 0.5
    """Share under `distill` of the divergence from the teacher; the rest is the cross-entropy."""
    top_k: Annotated[int, at_least(1)] = 32
    """Likeliest next tokens under `distill` whose probabilities by the teacher are stored, for each token; all others
    are one class."""
    temperature: Annotated[float, POSITIVE] = 1.0
    """Divisor under `distill` of both models' logits in the divergence."""
    rate: Annotated[float, BETWEEN] = 0.15
    """Probability under `masked` with which a token is drawn, to be predicted."""
    mask_token: Annotated[int, at_least(0)] | None = None
    """Token under `masked` that hides four fifths of those drawn; a tenth becomes another token, a tenth stays."""
    unmasked: tuple[int, ...] = ()
    """Tokens that `masked` never draws, beside the one that ends documents and `mask_token`: `[CLS]` and its like."""
    spans: dict[str, float] = field(default_factory=dict, hash=False)
    """Probability under `masked` of drawing a span with all of its tokens, by its kind: `{entity: .4, negation: .8}`.
    `python -m jaxpar.prepare --spans` marks them; tokens of other kinds, or of none, are drawn at `rate`."""
    contrastive: ContrastiveConfig = field(default_factory=ContrastiveConfig)
    """A term under `masked` that draws spans to those that a knowledge graph relates them to."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """Settings of a loss of drawn answers, where they differ from those that `name` publishes."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    name: Annotated[str, OPTIMIZERS] = "adamw"
    """`adamw`; `muon` for the layers' matrices, with AdamW for embeddings, head, norms and biases; `lion`, which keeps
    one moment instead of two; or `adafactor`, which keeps means of rows and columns instead of moments."""
    options: dict[str, object] = field(default_factory=dict, hash=False)
    """Settings of the update rule that `name` names; each can be set by itself, as `optimizer.options.beta2`."""
    learning_rate: Annotated[float, at_least(0, 1e30)] = 3e-4
    """Peak learning rate, under Muon of all but the layers' matrices. Lion needs one 3 to 10 times smaller than
    AdamW's, and a weight decay that is larger by the same factor."""
    weight_decay: Annotated[float, at_least(0, 1e30)] = 0.1
    """Decoupled weight decay of matrices and embeddings; norms and biases have none."""
    clip_norm: Annotated[float, POSITIVE] | None = 1.0
    """Largest global norm of the gradient; null turns clipping off."""
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """Shape of the learning rate after warm-up; `wsd` is flat, then falls over the last `decay_fraction`."""
    warmup_steps: Annotated[int, at_least(0)] = 100
    """Steps of linear warm-up from 0."""
    decay_steps: Annotated[int, at_least(1)] | None = None
    """Step at which the schedule ends; null means `run.steps`."""
    decay_fraction: Annotated[float, SHARE] = 0.2
    """Share of the schedule over which `wsd` falls."""
    final_fraction: Annotated[float, SHARE] = 0.1
    """Learning rate at the end of the schedule, as a fraction of the peak."""
    matrix_learning_rate: Annotated[float, at_least(0, 1e30)] = 0.02
    """Peak learning rate of the layers' matrices under Muon; it follows the same schedule."""
    ema: Annotated[float, BETWEEN] | None = None
    """Decay of an exponential moving average of the weights, for example 0.999; null keeps none. It takes 4 bytes a
    parameter, is sharded like the moments, and is saved with them; `evaluation.ema` uses it."""


@dataclass(frozen=True)
class LaterSources:
    """Weights of token folders from a batch on."""

    after: Annotated[int, at_least(1)]
    """Batches before that: steps, and the batches that no step uses (`watch.on_spike`)."""
    sources: dict[str, float] = field(hash=False)
    """Folders with their weights; folders that are not named have none."""


@dataclass(frozen=True)
class RampPart:
    """Batches of one size, for some steps or tokens."""

    size: Annotated[int, at_least(1, ROWS)]
    """Rows."""
    steps: Annotated[int, at_least(1)] | None = None
    """Steps with this size."""
    tokens: Annotated[float, at_least(1.0)] | None = None
    """Instead, tokens of rows, padding included: as many steps as reach them."""


@dataclass(frozen=True)
class DataConfig:
    """Source of tokens, and how they become a batch."""

    source: Annotated[str, DATA_SOURCES] = "stdlib"
    """`stdlib`: the sources of Python's standard library as bytes; `tokens`: what `python -m jaxpar.prepare` made, or
    a file of tokens; `stream`: text that is tokenized while a run reads it; `synthetic`: generated; `prompts`: answers
    of the model to the prompts of `rl`; `demonstrations`: such prompts with the text of their column `completion`,
    which is what the loss counts."""
    path: str | None = None
    """Token folder, or a file of tokens (`.npy`, one dimension, unsigned integers), for `source: tokens`. For
    `source: stream` a file of JSON lines, Parquet or Arrow, a pattern, or a folder of such files. For
    `source: prompts` or `demonstrations`: `digits`, `guess` or `json`, tasks that come with jaxpar; a file
    of JSON lines, each with a `prompt` and columns for rewards; or `FILE.py:NAME`, a function that returns a list of
    such mappings: its code is run."""
    sources: dict[str, float] | None = field(default=None, hash=False)
    """Several token folders instead of `path`, each with its weight: `{a/tokens: 0.7, b/tokens: 0.3}`. They may change
    when a run is continued."""
    later_sources: tuple[LaterSources, ...] = ()
    """Other weights from a batch on, in order: `[{after: 9000, sources: {a/tokens: 0.2, c/tokens: 0.8}}]`."""
    max_epochs: dict[str, float] | None = field(default=None, hash=False)
    """Most epochs of some of the `sources`: `{a/tokens: 4}`. After them a folder's weight goes to the others, in
    proportion to theirs; a run for which all folders together have too few rows is refused."""
    validation_path: str | None = None
    """Token folder (or file) to evaluate on; null means the validation documents of the folders, and nothing for a
    file. For `source: stream` other files of text; null takes documents by `validation_fraction`. For
    `source: prompts` or `demonstrations` another file of prompts; null takes one in 16 for validation."""
    validation: dict[str, str] | None = field(default=None, hash=False)
    """Several sets to evaluate on instead, by name, each a token folder: `{code: a/tokens, web: b/tokens}`. Each has
    its own curve, `eval_loss_code`, and `eval_loss` is over all. They may change when a run is continued."""
    tokenizer: str | None = None
    """Folder of a model, whose `tokenizer.json` reads prompts; null reads the characters of a task, and bytes of a
    file. For `source: stream` such a folder or a `tokenizer.json`."""
    end_token: str | None = None
    """Token of `tokenizer` that ends an answer, for example `<|im_end|>`, or a document of `source: stream`; null takes
    a common one that it has."""
    text_key: str = "text"
    """Key of a JSON line, or column of a table, with the text of a document of `source: stream`."""
    validation_fraction: Annotated[float, SHARE] = 0.005
    """Share of the documents of `source: stream` that are for validation, by a hash of their text, as `python -m
    jaxpar.prepare` does it."""
    workers: Annotated[int, at_least(1, 1024)] | None = None
    """Processes that tokenize for `source: stream`, of each process of the run; null divides the processors of a host,
    less one for each, and takes at most 16."""
    separator: Annotated[int, at_least(0)] | None = None
    """Token that ends a document in a file of tokens; null means that the file is one document."""
    sequence_length: Annotated[int, at_least(1, SEQUENCE)] = 1024
    """Tokens per row."""
    long_conversations: Literal["drop", "truncate_start", "truncate_end"] = "drop"
    """Treatment of a conversation of more than `sequence_length` tokens: leave it out, or cut off its beginning or its
    end."""
    batch_size: Annotated[int, at_least(1, ROWS)] = 8
    """Rows per optimizer step, over all devices and microbatches."""
    batch_ramp: tuple[RampPart, ...] = ()
    """Smaller batches at the beginning, in order: `[{size: 64, tokens: 1e9}, {size: 128, steps: 2000}]`. The learning
    rate stays a function of the step. Memory and the plan are for `batch_size`."""
    routing: str | None = None
    """Folder with a file for each batch of what routers use in place of their own choices; with `source: prompts` it is
    `sampler`: the experts with which answers were drawn. null lets them choose."""
    packed: bool = True
    """Separate documents that share a row: attention does not cross them and positions restart."""
    prefetch: Annotated[int, at_least(0, 1024)] = 2
    """Batches prepared ahead of the step that uses them."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Loss on validation data, and a sample at the end."""

    every: Annotated[int, at_least(0)] = 0
    """Steps between evaluations; 0 evaluates at the end only."""
    batches: Annotated[int, at_least(0, WIDTH)] = 8
    """Batches per evaluation, always the same ones; 0 turns evaluation off."""
    sample_tokens: Annotated[int, at_least(0, 2**20)] = 0
    """Tokens to generate from a validation prompt at the end; 0 means none."""
    ema: bool = False
    """Evaluate and sample with the moving average of the weights (`optimizer.ema`) instead of the weights."""
