"""Faults of rows that are drawn together."""

from tests.faults.fault import Fault

ADAPTERS = "tests/generation/test_adapters.py::"
TOGETHER = f"{ADAPTERS}test_rows_of_several_adapters_are_those_of_each_alone[llama-one_device]"
EXPERTS = (
    "tests/generation/test_expert_adapters.py::test_experts_have_the_factors_of_each_rows_adapter[mixtral-experts]"
)
LOADED = "tests/serving/test_loaded_adapters.py::test_a_replaced_adapter_serves_what_has_begun_and_nothing_compiles"

GENERATION = (
    Fault("a_row_with_its_neighbours_adapter", "A row is multiplied with the adapter of the row beside it.",
        "jaxpar/layers/ops/adapted.py",
        old="kind = jnp.where(adapter < 0, adapters, adapter)",
        new="kind = jnp.roll(jnp.where(adapter < 0, adapters, adapter), 1)",
        caught_by=(TOGETHER,)),
    Fault("experts_with_the_last_adapter_for_rows_without_one",
        "Rows of experts without an adapter are multiplied with the factors of the last one.",
        "jaxpar/layers/ops/adapted.py",
        old="return jnp.where((kind < self.kinds - 1)[:, None], y, 0)",
        new="return y",
        caught_by=(EXPERTS,)),
    Fault("a_page_that_two_adapters_share",
        "A prompt that another request has too takes its pages, whatever adapter filled them.",
        "jaxpar/generation/pages.py",
        old="new, prompt = range(0), self._prompts.get(request)",
        new="new, prompt = range(0), next("
        "(self._prompts.setdefault(request, made) for one, made in list(self._prompts.items())"
        " if made.rows and list(one.prompt) == list(request.prompt)), None)",
        caught_by=(TOGETHER, f"{ADAPTERS}test_rows_of_different_adapters_share_no_page")),
    Fault("answers_whose_adapter_is_free",
        "An adapter that is loaded takes the index of one that an answer goes on with.", "jaxpar/serving/adapters.py",
        old="        self._uses[index] += 1\n        try:\n            yield\n        finally:\n"
        "            self._uses[index] -= 1\n",
        new="        yield\n",
        caught_by=(LOADED,)),
)  # fmt: skip
