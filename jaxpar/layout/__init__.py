"""`Plan` of a configuration, and layout and memory of its step, from shapes alone, without devices."""
