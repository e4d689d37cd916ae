"""Checks of experts: their numbers, their router, and what they cannot be combined with yet."""

from __future__ import annotations

from dataclasses import fields

from jaxpar.config.checks.sizes import divides, key_of, known
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config, ModelConfig, ParallelConfig
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.config.schema.overlap import OFF, OverlapConfig

_PER_TOKEN = {"switch": 1, "gshard": 2, "base": 1}
"""Routers that choose a fixed number of experts."""
_IN_GROUPS = ("softmax_top_k", "top_k_softmax", "sigmoid", "sam")
"""Routers that can be limited to groups."""
_UNBALANCED = ("hash", "base", "expert_choice")
"""Routers without a loss that `balance_loss` would weigh."""
_ALL_EXPERTS = ("dense_to_sparse", "expert_choice")
"""Routers with which a token uses as many experts as it may."""
_NORMALISED = ("top_k_softmax", "noisy_top_k", "sigmoid")
"""Routers whose weights of a token are divided by their sum."""
_ANNEALED = ("temperature", "last_temperature", "anneal_steps", "threshold")
_ONLY = {
    "scale": ("sigmoid", "softmax_top_k"), "bias_rate": ("sigmoid",), "projection": ("cosine",),
    "force": ("expert_choice",),
    "sequence_loss": ("top_k_softmax", "softmax_top_k", "switch", "sigmoid", "k_top_1", "cosine", "dense_to_sparse"),
} | dict.fromkeys(_ANNEALED, ("dense_to_sparse",))  # fmt: skip
"""Keys that only some routers use."""


NO_RAGGED = (
    "the result of JAX's ragged_all_to_all has the varying type of its output buffer, which the step's types cannot "
    "check, it does not run on CPUs, and on GPUs it has crashed above 32 ranks"
)
"""Why `parallel.expert_exchange: ragged` is refused."""


def check_experts(config: Config) -> None:
    """Refuse experts whose numbers do not fit each other, and what experts do not support."""
    some = False
    for kind, own in kind_models(config.model).items():
        if own.experts is not None:
            _check(key_of(kind, "experts"), own.experts)
            some = True
    if some:
        _check_combined(config)
        return
    for key, value in (
        ("data.routing", config.data.routing),
        ("precision.exchange_wire", config.precision.exchange_wire),
    ):
        if value is not None:
            raise UserError(f"{key}: {value} would not be used, because model.experts is null; expected null")
    keys, options = [
        {field.name: field.default for field in fields(record) if field.name.startswith("expert_")}
        for record in (ParallelConfig, OverlapConfig)
    ]
    asked = {f"parallel.{key}": (getattr(config.parallel, key), usual) for key, usual in keys.items()}
    for key, usual in options.items():
        value = getattr(config.parallel.overlap, key)
        asked[f"parallel.overlap.{key}"] = (usual if value == getattr(OFF, key) else value, usual)
    for key, (value, usual) in asked.items():
        if value != usual:
            raise UserError(
                f"{key}: {value} would not be used, because model.experts is null; expected experts with it, or the "
                f"default, {usual}"
            )


def check_expert_ranks(config: Config) -> None:
    """Refuse experts that the ranks of the mesh do not divide."""
    expert, tensor = known(config.parallel, "expert"), known(config.parallel, "tensor")
    for kind, own in kind_models(config.model).items():
        if own.experts is not None:
            key = key_of(kind, "experts")
            divides(f"{key}.count", own.experts.count, "parallel.expert", expert)
            width = own.mlp if own.experts.width is None else own.experts.width
            divides(f"{key}.width", width, "parallel.tensor", tensor)


def routers_without_gradient(model: ModelConfig) -> list[str]:
    """Sentences for the user: routers that the loss of the task does not train, since they always weigh by the same."""
    return [
        f"{key_of(kind, 'experts')}.per_token: 1 with the router {own.experts.router}, which divides the weights of a "
        "token by their sum: its one expert always weighs the same, so the loss of the task gives the router no "
        "gradient. softmax_top_k and switch weigh by a probability."
        for kind, own in kind_models(model).items()
        if own.experts is not None and own.experts.per_token == 1 and own.experts.router in _NORMALISED
    ]


def _check(key: str, experts: ExpertsConfig) -> None:
    for field in fields(experts):
        value = getattr(experts, field.name)
        if field.name in _ONLY and value != field.default and experts.router not in _ONLY[field.name]:
            raise UserError(
                f"{key}.{field.name}: {spell(value)} would not be used, because {key}.router is {experts.router}; "
                f"expected {' or '.join(_ONLY[field.name])}, or the default, {spell(field.default)}"
            )
    if experts.router == "expert_choice" and not experts.force:
        raise UserError(
            f"{key}.router: with expert_choice a token's experts depend on later tokens, which a causal model does not "
            f"have when it generates; expected another router, or {key}.force: true"
        )
    count, chosen, router = experts.count, experts.per_token, experts.router
    most = count - 1 if router == "noisy_top_k" else count
    if chosen > most:
        why = "; noisy_top_k leaves one out" if most < count else ""
        raise UserError(f"{key}.per_token: expected at most {most} of {count} experts ({key}.count), got {chosen}{why}")
    if chosen != _PER_TOKEN.get(router, chosen):
        raise UserError(f"{key}.per_token: the router {router} chooses {_PER_TOKEN[router]}, got {chosen}")
    if router == "k_top_1":
        divides(f"{key}.count", count, f"{key}.per_token", chosen, ", since k_top_1 has a group for each")
    if router == "hash" and experts.z_loss:
        raise UserError(f"{key}.z_loss: {experts.z_loss} would not be used, because the router hash has no logits")
    usual = ExpertsConfig.balance_loss
    if router in _UNBALANCED and experts.balance_loss not in (0, usual):
        raise UserError(
            f"{key}.balance_loss: {spell(experts.balance_loss)} would not be used, because the router {router} has no "
            f"loss that balances the load; expected 0, or the default, {spell(usual)}"
        )
    for name in ("hashes", "residual"):
        value, usual = getattr(experts, name), getattr(ExpertsConfig, name)
        if experts.compression is None and value != usual:
            raise UserError(
                f"{key}.{name}: {value} would not be used, because {key}.compression is null; expected {usual}, or a "
                "compression"
            )
    if experts.compression is not None and router in _ALL_EXPERTS:
        raise UserError(
            f"{key}.compression: {experts.compression:g}, and the router {router} has no fixed number of experts of a "
            "token, of which it would be a share; expected null"
        )
    _check_groups(key, experts)


def _check_groups(key: str, experts: ExpertsConfig) -> None:
    groups, some = experts.groups, experts.groups_per_token
    if experts.router == "sam":
        if groups is None:
            raise UserError(f"{key}.groups: null, and the router sam chooses one of them; expected their number")
        if some not in (None, 1):
            raise UserError(f"{key}.groups_per_token: the router sam chooses 1, got {some}")
        some = 1
    if groups is None and some is None:
        return
    if groups is None or some is None:
        name, other = ("groups_per_token", "groups") if groups is None else ("groups", "groups_per_token")
        raise UserError(f"{key}.{other}: null, and {key}.{name} is {getattr(experts, name)}; expected both or neither")
    if experts.router not in _IN_GROUPS:
        raise UserError(
            f"{key}.groups: the router {experts.router} is not limited to groups; expected {', '.join(_IN_GROUPS)}, or "
            "null"
        )
    divides(f"{key}.count", experts.count, f"{key}.groups", groups)
    if some > groups:
        raise UserError(f"{key}.groups_per_token: expected at most {groups} ({key}.groups), got {some}")
    if some * (experts.count // groups) < experts.per_token:
        raise UserError(
            f"{key}.per_token: {some} groups of {experts.count // groups} experts have fewer than {experts.per_token}; "
            f"expected at most {some * (experts.count // groups)}"
        )


def _check_combined(config: Config) -> None:
    """What experts cannot be combined with yet."""
    memory = config.memory
    if config.parallel.expert_exchange == "ragged":
        raise UserError(f"parallel.expert_exchange: ragged is not run, because {NO_RAGGED}; expected all_to_all")
    if config.model.low_rank:
        names = ", ".join(config.model.low_rank)
        raise UserError(f"model.low_rank: {names}, and models with experts have no products of two yet; expected {{}}")
    if (memory.mlp_tiles or 1) > 1 and all(own.experts for own in kind_models(config.model).values()):
        raise UserError(
            f"memory.mlp_tiles: {memory.mlp_tiles} is for layers without experts, and every layer has them; expected 1 "
            "or null"
        )
