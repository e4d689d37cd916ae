"""One step as a trace of compute and messages, and the clock that says what of it runs beside what."""
