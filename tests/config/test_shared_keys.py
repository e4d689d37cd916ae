"""Settings of layers that share keys, and of their inputs: those that make no model are refused in one sentence."""

from jaxpar.config import load_config
from jaxpar.config.kinds import kind_model
from jaxpar.layers.declared import declare_layer
from jaxpar.layout.checks.validate import validate
from tests.sentences import refusals, refused

PATTERN = "model.pattern={prefix: [a], unit: [b]}"
KINDS = "model.kinds={a: {}, b: {keys_of: a}}"


@refusals(
    """
    model.keys_of=a => model.keys_of: 'a' | all layers | in a kind
    PATTERN | model.kinds={a: {}, b: {keys_of: c}} => model.kinds.b.keys_of: 'c' | not declared | a, b
    PATTERN | model.kinds={a: {}, b: {keys_of: b}} => model.kinds.b.keys_of | no keys and values | a kind that does
    PATTERN | model.kinds={a: {mixer: retention}, b: {keys_of: a}} => model.kinds.b.keys_of | no keys and values
    PATTERN | model.kinds={a: {}, b: {keys_of: a, mixer: retention}} => model.kinds.b.keys_of: a | another mixer | null
    PATTERN | model.kinds={a: {window: 4}, b: {keys_of: a}} => model.kinds.b.window: None | 4 in | the same
    PATTERN | model.kinds={a: {}, b: {keys_of: a, kv_heads: 2}} => model.kinds.b.kv_heads: 2 | 8 in | the same
    PATTERN | model.kinds={a: {}, b: {keys_of: a, head_dim: 4}} => model.kinds.b.head_dim: 4 | the same
    KINDS | model.pattern={unit: [b, a]} => model.kinds.b.keys_of | no layer of kind a is before | expected one
    PATTERN | model.kinds={a: {}, b: {keys_of: a, qk_norm: projection}} => model.kinds.b.qk_norm: projection | keys
    PATTERN | model.kinds={a: {kv_heads: 3}, b: {}} => model.heads: 8 | model.kinds.a.kv_heads (3)
    model.per_layer_embeddings={width: 6} | parallel.tensor=4 => model.per_layer_embeddings.width: 6 | (4) | 4 or 8
    model.per_layer_embeddings={width: 0} => model.per_layer_embeddings.width: | at least 1
    """,
    PATTERN=PATTERN,
    KINDS=KINDS,
)
def test_what_does_not_fit_is_one_sentence(overrides: list[str], parts: tuple[str, ...]):
    with refused(*parts):
        validate(load_config(None, overrides))


def test_layers_that_share_keys_need_no_projection_of_values_where_no_layer_has_one():
    parts = []
    for as_values in ("true", "false"):
        config = load_config(None, [PATTERN, KINDS, f"model.keys_as_values={as_values}"])
        validate(config)
        parts.append(declare_layer(kind_model(config.model, "b")).parts)
    assert parts[0] == parts[1]
