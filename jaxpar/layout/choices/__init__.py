"""The choices that make a plan, one file each: attention, the head's loss, pipeline, tiles."""
