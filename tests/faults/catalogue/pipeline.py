"""Faults of pipelines."""

from tests.faults.fault import Fault, pipeline_parity

EXECUTOR = "tests/pipeline/execution/test_executor.py::test_gradients_and_reports_are_summed_over_the_microbatches"

PIPELINE = (
    Fault(
        name="slot_reused_too_early",
        description="A slot of the stash is reused in the tick that reads it last, whose forward comes first.",
        file="jaxpar/pipeline/execution/make_program.py",
        old="while busy and busy[0][0] < lifetimes[name].first:",
        new="while busy and busy[0][0] <= lifetimes[name].first:",
        caught_by=(f"{EXECUTOR}[interleaved, uneven]",),
    ),
    Fault(
        name="weight_gradient_dropped",
        description="The matrices' gradients of the first microbatch are computed and not added.",
        file="jaxpar/pipeline/execution/make_program.py",
        old='row = {"counts": 1, "chunk": chunk, "kept": slot("kept")}',
        new='row = {"counts": int(action.microbatch > 0), "chunk": chunk, "kept": slot("kept")}',
        caught_by=(f"{EXECUTOR}[zb-h1, recomputing]",),
    ),
    Fault(
        name="every_rank_feeds_the_embedding",
        description="Every pipeline rank sends the gradient of a chunk's input to the embedding.",
        file="jaxpar/pipeline/execution/executor.py",
        old='into_embedding = jnp.where(valid & (row["b_first"] == 1), dx, 0)',
        new="into_embedding = jnp.where(valid, dx, 0)",
        caught_by=(f"{EXECUTOR}[gpipe]",),
    ),
    Fault(
        name="every_rank_counts_its_loss",
        description="Every pipeline rank counts a loss, not the last one alone.",
        file="jaxpar/pipeline/execution/executor.py",
        old="mine = True if self.shares_vocabulary else valid",
        new="mine = True",
        caught_by=(pipeline_parity(pipe_ends="last", pipe_ticks="uniform"),),
    ),
    Fault(
        name="labels_of_another_microbatch",
        description="With a shared head, the last rank's output meets the labels of the first rank's microbatch.",
        file="jaxpar/pipeline/execution/inputs.py",
        old='"last": self.program.last_rank}',
        new='"last": self.program.schedule.rank_of[0]}',
        caught_by=(pipeline_parity(pipe_ends="shared", schedule=("gpipe", "zb-h1"), model="gpt2"),),
    ),
    Fault(
        name="layers_numbered_by_row",
        description="Layers are numbered by their row in the stack, so dropout differs in a pipeline.",
        file="jaxpar/mesh/layer_order.py",
        old="numbers = jnp.asarray(self.numbers, jnp.int32)",
        new="numbers = jnp.arange(self.rows).reshape(self.numbers.shape)",
        caught_by=(f"{EXECUTOR}[breadth-first]",),
    ),
    Fault(
        name="repeated_forward_overwrites",
        description="An idle rank without a free slot repeats a forward on another input.",
        file="jaxpar/pipeline/execution/inputs.py",
        old='x = jnp.where(row["f_source"] == STASHED, stashed, x)',
        new="pass",
        caught_by=(f"{EXECUTOR}[gpipe]",),
    ),
)
