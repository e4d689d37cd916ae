"""From a configuration to its `Plan`, and the layout and memory of its step: from shapes alone, without devices."""
