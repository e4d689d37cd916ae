"""Checks of experts: their numbers, their router, and what they cannot be combined with yet."""

from __future__ import annotations

from dataclasses import fields

from jaxpar.config.checks.sizes import divides, known
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of, kind_models
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.layers.experts.clusters import clustering_of
from jaxpar.layers.experts.routers import ROUTERS, options_of


def check_experts(config: Config) -> None:
    """Refuse experts whose numbers do not fit each other, and what experts do not support."""
    some = False
    for kind, layer in kind_models(config.model).items():
        if layer.experts is not None:
            _check(key_of(kind, "experts"), layer.experts)
            _check_norms(key_of(kind, "experts"), layer.experts, key_of(kind, "norm"), layer.norm)
            some = True
    if some:
        _check_combined(config)
        return
    for key, value in (
        ("data.routing", config.data.routing),
        ("parallel.quantized.tokens", config.parallel.quantized.tokens),
    ):
        if value is not None:
            raise UserError(f"{key}: {value} would not be used, because model.experts is null; expected null")
    for field in fields(config.parallel.experts):
        value = getattr(config.parallel.experts, field.name)
        if value != field.default and (field.name, value) != ("slices", 1):
            raise UserError(
                f"parallel.experts.{field.name}: {value} would not be used, because model.experts is null; expected "
                f"experts with it, or the default, {field.default}"
            )


def check_expert_ranks(config: Config) -> None:
    """Refuse feed-forwards, or experts, that the ranks of the mesh do not divide."""
    expert, tensor = known(config.parallel, "expert"), known(config.parallel, "tensor")
    for kind, one in kind_models(config.model).items():
        if one.experts is None:
            divides(key_of(kind, "mlp"), one.mlp, "parallel.tensor", tensor)
        else:
            key = key_of(kind, "experts")
            divides(f"{key}.count", one.experts.count, "parallel.expert", expert)
            width = one.mlp if one.experts.width is None else one.experts.width
            divides(f"{key}.width", width, "parallel.tensor", tensor)


def routers_without_gradient(model: ModelConfig) -> list[str]:
    """Sentences for the user: routers that the loss of the task does not train, since they always weigh by the same."""
    return [
        f"{key_of(kind, 'experts')}.per_token: 1 with the router {one.experts.router}, which divides the weights of a "
        "token by their sum: its one expert always weighs the same, so the loss of the task gives the router no "
        "gradient. softmax_top_k and switch weigh by a probability."
        for kind, one in kind_models(model).items()
        if one.experts is not None and one.experts.per_token == 1 and ROUTERS[one.experts.router].normalised
    ]


def _check(key: str, experts: ExpertsConfig) -> None:
    count, chosen, router, usual = experts.count, experts.per_token, ROUTERS[experts.router], ExpertsConfig.balance_loss
    options, clustering = options_of(experts, key), clustering_of(experts, key)
    if getattr(options, "force", True) is False:
        raise UserError(
            f"{key}.router: with {experts.router} a token's experts depend on later tokens, which a causal model does "
            f"not have when it generates; expected another router, or {key}.router_options: {{force: true}}"
        )
    if experts.shared_router and not experts.shared:
        raise UserError(f"{key}.shared_router: true, and {key}.shared is 0; expected false, or shared experts")
    most = count - 1 if router.noise else count
    if chosen > most:
        why = f"; {experts.router} leaves one out" if most < count else ""
        raise UserError(f"{key}.per_token: expected at most {most} of {count} experts ({key}.count), got {chosen}{why}")
    if router.per_token not in (None, chosen):
        raise UserError(f"{key}.per_token: the router {experts.router} chooses {router.per_token}, got {chosen}")
    if experts.router == "k_top_1":
        divides(f"{key}.count", count, f"{key}.per_token", chosen, ", since k_top_1 has a group for each")
    for name, value, unused in (
        ("z_loss", experts.z_loss, not router.learned),
        ("sequence_loss", experts.sequence_loss, not router.by_row),
        ("balance_loss", 0 if experts.balance_loss == usual else experts.balance_loss, router.loss is None),
    ):
        if value and unused:
            raise UserError(
                f"{key}.{name}: {spell(value)} would not be used, because the router {experts.router} has no such "
                f"loss; expected 0{f', or the default, {spell(usual)}' if name == 'balance_loss' else ''}"
            )
    if clustering is not None and router.all_experts:
        raise UserError(
            f"{key}.clusters: {spell(experts.clusters)}, and the router {experts.router} has no fixed number of "
            "experts of a token, of which they would be a share; expected {}"
        )
    _check_groups(key, experts)


def _check_norms(key: str, experts: ExpertsConfig, key_of_norm: str, norm: str) -> None:
    if experts.norms and not experts.shared:
        raise UserError(f"{key}.norms: true, and {key}.shared is 0; expected false, or a shared expert")
    if experts.norms and norm != "rmsnorm":
        raise UserError(
            f"{key}.norms: true, which are of root mean squares, and {key_of_norm}: {norm}; expected rmsnorm"
        )


def _check_groups(key: str, experts: ExpertsConfig) -> None:
    options, key_of_options = options_of(experts), f"{key}.router_options"
    groups, some = (getattr(options, name, None) for name in ("groups", "groups_per_token"))
    if hasattr(options, "groups_per_token") and (groups is None) != (some is None):
        name, other = ("groups_per_token", "groups") if groups is None else ("groups", "groups_per_token")
        raise UserError(
            f"{key_of_options}.{other}: null, and {name} is {getattr(options, name)}; expected both or neither"
        )
    if groups is None:
        return
    some = some or 1
    divides(f"{key}.count", experts.count, f"{key_of_options}.groups", groups)
    if some > groups:
        raise UserError(f"{key_of_options}.groups_per_token: expected at most {groups} (groups), got {some}")
    most = some * (experts.count // groups)
    if most < experts.per_token:
        raise UserError(
            f"{key}.per_token: {some} groups of {experts.count // groups} experts have fewer than {experts.per_token}; "
            f"expected at most {most}"
        )


def _check_combined(config: Config) -> None:
    """Refuses settings that experts cannot be combined with yet."""
    memory = config.memory
    if config.model.low_rank:
        names = ", ".join(config.model.low_rank)
        raise UserError(f"model.low_rank: {names}, and models with experts have no products of two yet; expected {{}}")
    if (memory.mlp_tiles or 1) > 1 and all(one.experts for one in kind_models(config.model).values()):
        raise UserError(
            f"memory.mlp_tiles: {memory.mlp_tiles} is for layers without experts, and every layer has them; expected 1 "
            "or null"
        )
