"""Checks of the loss."""

from __future__ import annotations

from dataclasses import fields, replace
from urllib.parse import urlsplit

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of, kind_models
from jaxpar.config.mappings.contrastive import ContrastiveConfig
from jaxpar.config.mappings.policy import Policy, PolicyConfig, policy_of
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.config.parts import DATA_SOURCES, OBJECTIVES, PAIRS_FORMAT, LossEntry
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config, DataConfig
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.config.spelling import join_or, quoted

PROMPTS, SAMPLER = "prompts", "sampler"
"""The data source whose rows are answers of the model, and what `data.routing` may be with it."""
SHORTEST_PAIR = 4
"""Tokens of the shortest pair: each of its documents has one token at least that is predicted from another."""


def check_loss(config: Config) -> None:
    """Refuse what the loss cannot be combined with, and a loss of pairs without a reference."""
    name = config.loss.name
    if config.model.z_loss > 0 and not OBJECTIVES[name].likelihood:
        raise UserError(
            f"model.z_loss: {config.model.z_loss:g} is a term of the cross-entropy; expected 0 with loss.name: {name}"
        )
    check_rewards(config)
    _check_direction(config)
    _check_factors(config)
    if OBJECTIVES[name].teacher:
        _check_teacher(config)
    if answers := OBJECTIVES[name].answers:
        _check_answers(config, OBJECTIVES[name], answers)


def _check_factors(config: Config) -> None:
    """Refuse LongRoPE in rows that take its long factors where shorter rows are compared with the model's, such as
    those of a reference or of answers that it draws: they would take the short ones."""
    entry = OBJECTIVES[config.loss.name]
    if not (entry.rewards or entry.teacher or "reference" in entry.keys):
        return
    length = config.data.sequence_length
    for kind, model in kind_models(config.model).items():
        rope = model.rope
        if model.position == "rope" and rope.scaling == "longrope" and length > rope.original_length:
            raise UserError(
                f"data.sequence_length: {length} with {key_of(kind, 'rope.scaling')}: longrope and loss.name: "
                f"{config.loss.name}, whose other rows are shorter and would take the short factors; expected at most "
                f"rope.original_length, {rope.original_length}"
            )


def data_of(answers: str) -> str:
    """Words for the answers of a format."""
    return "pairs of answers" if answers == PAIRS_FORMAT else "marked answers"


def _check_direction(config: Config) -> None:
    """Refuse a loss of masked tokens for a causal model, others for a bidirectional one, and masking without a mask."""
    loss = config.loss
    if OBJECTIVES[loss.name].masked == config.model.causal:
        others = join_or(key for key, entry in OBJECTIVES.items() if entry.masked)
        raise UserError(
            f"loss.name: {loss.name} with model.causal: {str(config.model.causal).lower()}; expected model.causal: "
            f"false, in which a token sees those after it, with loss.name: {others}, or neither"
        )
    if not config.model.causal and loss.mask_token is None:
        raise UserError("loss.mask_token: null; expected the number of the tokenizer's mask token, such as BERT's 103")
    for kind, rate in loss.spans.items():
        if not 0 <= rate <= 1:
            raise UserError(f"loss.spans.{kind}: expected a probability from 0 to 1, got {rate}")
    _check_contrastive(loss.contrastive)


def _check_contrastive(asked: ContrastiveConfig) -> None:
    """Refuse weights of relations that are none, and settings of a term that is left out."""
    for relation, weight in asked.relations.items():
        if not 0 <= weight < 1e6:
            raise UserError(f"loss.contrastive.relations.{relation}: expected a weight from 0, got {weight}")
    for one in fields(asked) if asked.weight == 0 else ():
        value, usual = getattr(asked, one.name), getattr(ContrastiveConfig(), one.name)
        if value != usual:
            raise UserError(
                f"loss.contrastive.{one.name}: {spell(value)} would not be used, because loss.contrastive.weight is 0; "
                f"expected a weight with it, or {spell(usual)}"
            )


def _check_teacher(config: Config) -> None:
    """Refuse a loss with a teacher without one."""
    name = config.loss.name
    if config.loss.reference is None:
        raise UserError(f"loss.name: {name} has a teacher, and loss.reference is null; expected its folder there")


def _check_answers(config: Config, entry: LossEntry, answers: str) -> None:
    """Refuse a loss of answers without its reference or its data, and rows without room for a pair."""
    name = config.loss.name
    if "reference" in entry.keys and config.loss.reference is None and config.run.init_from is None:
        raise UserError(
            f"loss.name: {name} compares the model with a reference, and loss.reference and run.init_from are null; "
            "expected the model to begin with in run.init_from, or another reference in loss.reference"
        )
    if not DATA_SOURCES[config.data.source].pairs:
        sources = join_or(name for name, source in DATA_SOURCES.items() if source.pairs)
        raise UserError(
            f"loss.name: {name} trains on {data_of(answers)}, and data.source is {config.data.source}; expected "
            f"data.source: {sources}, with a token folder that python -m jaxpar.prepare --format {answers} made"
        )
    if not config.data.packed:
        raise UserError(
            f"data.packed: false lets the answers of a row see each other; expected true with loss.name: {name}"
        )
    if config.data.sequence_length < SHORTEST_PAIR:
        raise UserError(
            f"data.sequence_length: {config.data.sequence_length} has no room for a pair of answers "
            f"(loss.name: {name}); expected at least {SHORTEST_PAIR}"
        )


def check_rewards(config: Config) -> None:
    """Refuse a loss of rewards without prompts, prompts without one, and settings of `rl` that no run reads."""
    name, source, rl = config.loss.name, config.data.source, config.rl
    if OBJECTIVES[name].rewards != (source == PROMPTS):
        losses = join_or(key for key, entry in OBJECTIVES.items() if entry.rewards)
        raise UserError(
            f"loss.name: {name} with data.source: {source}; expected data.source: {PROMPTS}, whose answers have "
            f"rewards, with loss.name: {losses}, or neither"
        )
    if source != PROMPTS:
        for one in fields(rl):
            if getattr(rl, one.name) != getattr(RlConfig(), one.name):
                raise UserError(
                    f"rl.{one.name}: {getattr(rl, one.name)} would not be used, because data.source is {source}; "
                    f"expected data.source: {PROMPTS} with it"
                )
        return
    _check_policy(config)
    _check_rollouts(rl)
    _check_routing(config)
    _check_server(config)
    _check_environment(rl)
    _check_run_of_rewards(config)


def _check_environment(rl: RlConfig) -> None:
    """Refuse settings of conversations without an environment, and tools apart from their environment."""
    if rl.environment is None and rl.turns != RlConfig().turns:
        raise UserError(
            f"rl.turns: {rl.turns} would not be used, because rl.environment is null; expected one with it, or "
            f"{RlConfig().turns}"
        )
    if bool(rl.tools) != (rl.environment == "tools"):
        raise UserError(
            f"rl.tools: {quoted(', '.join(rl.tools)) if rl.tools else 'none'} with rl.environment: "
            f"{rl.environment or 'null'}; expected functions with rl.environment: tools, or neither"
        )


def _check_policy(config: Config) -> None:
    """Refuse settings of a loss of answers that do not fit together."""
    policy = policy_of(config.loss)
    if config.rl.group == 1:
        raise UserError(
            f"rl.group: 1 answer to a prompt has no others to compare its reward with (loss.policy.baseline: "
            f"{policy.baseline}); expected at least 2"
        )
    if policy.kl != "none" and config.loss.reference is None and config.run.init_from is None:
        raise UserError(
            f"loss.policy.kl: {policy.kl} compares the model with a reference, and loss.reference and run.init_from "
            "are null; expected one of them"
        )
    if policy.kl == "none" and config.loss.reference is not None:
        raise UserError(
            f"loss.reference: {quoted(config.loss.reference)} would not be used, because loss.policy.kl is none; "
            "expected a kl with it, or null"
        )
    if policy.kl_in == "reward" and policy.kl not in ("none", "k1"):
        raise UserError(
            f"loss.policy.kl: {policy.kl} is a term of the loss; expected k1 with loss.policy.kl_in: reward"
        )
    _check_read(config.loss.policy, policy)


def _check_rollouts(rl: RlConfig) -> None:
    """Refuse batches of answers that cannot be divided, and versions of weights that nothing has."""
    if rl.prompts % rl.minibatches:
        raise UserError(
            f"rl.minibatches: {rl.minibatches} unequal parts of {rl.prompts} prompts (rl.prompts); expected a divisor"
        )
    if (rl.staleness is None) == (rl.mode == "async"):
        expected = "the greatest lag in versions, from 1" if rl.mode == "async" else "null, or rl.mode: async"
        raise UserError(f"rl.staleness: {rl.staleness or 'null'} with rl.mode: {rl.mode}; expected {expected}")


def _check_routing(config: Config) -> None:
    """Refuse a replay of experts that nothing records, or beside log-probabilities without it."""
    routing, rl = config.data.routing, config.rl
    steps, outside = rl.minibatches * rl.epochs, rl.environment or rl.sampler.url
    if routing not in (None, SAMPLER):
        raise UserError(f"data.routing: {quoted(routing)} with data.source: {PROMPTS}; expected {SAMPLER}, or null")
    if routing and (steps > 1 or outside):
        key = "rl.environment or rl.sampler.url" if outside else "rl.minibatches x rl.epochs"
        raise UserError(f"{key}: {outside or steps} with data.routing: {SAMPLER}; expected {'null' if outside else 1}")


OF_SERVERS = ("url", "folder", "key_file", "seconds")
"""Keys of `rl.sampler` about a server."""


def _check_server(config: Config) -> None:
    """Refuse a server's address that is none, and settings that do not go with one."""
    asked, temperature = config.rl.sampler, config.rl.temperature
    if (asked.url is None) != (asked.folder is None):
        key, other = ("url", "folder") if asked.url is not None else ("folder", "url")
        raise UserError(f"rl.sampler.{key} without rl.sampler.{other}; expected both or neither")
    if asked.url is None:
        for key in ("key_file", "seconds"):
            if getattr(asked, key) != getattr(SamplerConfig(), key):
                raise UserError(f"rl.sampler.{key} without rl.sampler.url; expected it too")
        return
    if not _is_address(asked.url):
        raise UserError(
            f"rl.sampler.url: {quoted(asked.url)} is not an address of a server; expected one as in http://127.0.0.1:8000"
        )
    if replace(SamplerConfig(), **{key: getattr(asked, key) for key in OF_SERVERS}) != asked:
        raise UserError("rl.sampler.url: a server has devices and a layout of its own; expected no others with it")
    if temperature != 1:
        raise UserError(
            f"rl.temperature: {temperature:g} with rl.sampler.url, whose log-probabilities are those at 1; expected 1"
        )
    if config.rl.environment is not None:
        raise UserError(
            f"rl.environment: {quoted(config.rl.environment)} with rl.sampler.url, which draws single answers; "
            "expected null"
        )
    if config.lora.rank is not None:
        raise UserError(f"lora.rank: {config.lora.rank} with rl.sampler.url, which gets all weights; expected null")


def _is_address(text: str) -> bool:
    """Whether a text is the address of an HTTP server."""
    try:
        parts = urlsplit(text)
        valid = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return valid and parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query + parts.fragment


def _check_run_of_rewards(config: Config) -> None:
    """Refuse settings that a run of answers cannot have."""
    if config.watch.on_spike != "report":
        raise UserError(
            f"watch.on_spike: {config.watch.on_spike} judges losses, and one of rewards is about 0 whatever the model "
            "learns; expected report"
        )
    if config.data.end_token is not None and config.data.tokenizer is None:
        raise UserError(
            f"data.end_token: {quoted(config.data.end_token)} is of a tokenizer, and data.tokenizer is null"
        )
    if config.data.prefetch != DataConfig().prefetch:
        raise UserError(
            f"data.prefetch: {config.data.prefetch} would not be used, because answers are drawn when a step begins; "
            f"expected {DataConfig().prefetch}"
        )
    if not config.data.packed:
        raise UserError("data.packed: false lets the answers of a row see each other; expected true with prompts")
    if config.evaluation.sample_tokens:
        raise UserError(
            f"evaluation.sample_tokens: {config.evaluation.sample_tokens}; expected 0 with data.source: {PROMPTS}, "
            "whose evaluations draw answers"
        )


def _check_read(written: PolicyConfig, policy: Policy) -> None:
    """Refuse settings that the others leave without an effect."""
    for key, without in (
        ("kl_weight", policy.kl == "none"),
        ("kl_in", policy.kl == "none"),
        ("mismatch_high", policy.mismatch == "none"),
        ("mismatch_low", policy.mismatch != "icepop"),
        ("std_epsilon", policy.baseline != "group_std"),
        ("low", policy.clip in ("cispo_absolute", "aipo")),
        ("dual", policy.clip not in ("ppo", "gspo")),
    ):
        if without and (value := getattr(written, key)) is not None:
            raise UserError(
                f"loss.policy.{key}: {value} would not be used (baseline {policy.baseline}, clip {policy.clip}, kl "
                f"{policy.kl}, mismatch {policy.mismatch}); expected null"
            )
    if 0 < policy.dual <= 1:
        raise UserError(
            f"loss.policy.dual: {policy.dual:g} would cut answers that nothing moved; expected above 1, or 0"
        )
