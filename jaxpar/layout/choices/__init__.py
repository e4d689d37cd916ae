"""The choices that make a plan, one file each: attention, pipeline, tiles."""
