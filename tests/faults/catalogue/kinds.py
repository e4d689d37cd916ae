"""Faults of models with several kinds of layers, and of what layers report."""

from tests.faults.fault import Fault

GOLDEN = "tests/model/test_goldens.py::test_logits_equal_those_of_transformers[gemma3]"
REPORTS = "tests/training/parity/test_kinds.py::test_what_layers_report_is_counted_once"

KINDS = (
    Fault("kinds_swapped_in_the_unit", "The kinds of a unit come in the other order.", "jaxpar/config/kinds.py",
        old="return pattern.prefix + pattern.unit * units + pattern.suffix",
        new="return pattern.prefix + pattern.unit[::-1] * units + pattern.suffix",
        caught_by=(GOLDEN.replace("gemma3", "gemma2"),)),
    Fault("units_run_the_first_ones_weights",
        "The weights prefetched for the next kind of a unit are those of that kind's first layer.",
        "jaxpar/model/loop/walk.py",
        old="coming = site.fetch(row)",
        new="coming = site.fetch(0 * row)",
        caught_by=("tests/model/loop/test_walk.py::test_units_run_in_order_with_what_was_fetched_for_them[forward]",)),
    Fault("local_layers_see_everything", "The attention of every kind has the window of the whole model.",
        "jaxpar/layout/stages.py",
        old="mask_of(config, model),",
        new="mask_of(config, config.model),",
        caught_by=(GOLDEN,)),
    Fault("local_layers_turn_like_global_ones", "The rotary tables of every kind have the base of the whole model.",
        "jaxpar/model/decoder.py",
        old="frequencies(model, rotary_dim(model), rows)",
        new="frequencies(self.model, rotary_dim(self.model), rows)",
        caught_by=(GOLDEN,)),
    Fault("padding_reports", "An idle rank counts what the layers of its forward report.",
        "jaxpar/model/loop/layer_loop.py",
        old="total + jnp.where(valid, new[name], 0)",
        new="total + new[name]",
        caught_by=(f"{REPORTS}[pipe-zb-h1]",)),
    Fault("auxiliary_loss_counted_per_rank", "Every tensor rank has the gradient of the auxiliary loss of all of them.",
        "jaxpar/model/loop/layer_loop.py",
        old="vary(cotangents.reports.get(name, jnp.float32(0)))",
        new='vary(cotangents.reports.get(name, jnp.float32(0)) * lax.axis_size("tensor"))',
        caught_by=(f"{REPORTS}[fsdp-context-tensor]",)),
)  # fmt: skip
