"""Any published schedule, for property tests."""

from hypothesis import strategies as st

from jaxpar.pipeline.schedules import SCHEDULES, Schedule, make_schedule


@st.composite
def any_schedule(draw: st.DrawFn, *, most_ranks: int = 6, most_microbatches: int = 16) -> Schedule:
    """A schedule of any name for sizes that it can take."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    family = SCHEDULES[name]
    ranks = 1 if family.one_rank else draw(st.integers(1, most_ranks))
    fewest, most = family.virtual_stages
    virtual_stages = draw(st.integers(fewest, 3 if most is None else most))
    microbatches = draw(st.integers(max(1, family.microbatches_per_rank * ranks), most_microbatches))
    if family.multiple and virtual_stages > 1:
        microbatches = ranks * draw(st.integers(1, max(1, most_microbatches // ranks)))
    return make_schedule(name, ranks=ranks, microbatches=microbatches, virtual_stages=virtual_stages)


def every_schedule(ranks: int, microbatches: int) -> list[Schedule]:
    """One of each name that is for more than one rank."""
    names = [name for name, family in SCHEDULES.items() if not family.one_rank]
    return [make_schedule(name, ranks=ranks, microbatches=microbatches) for name in names]
