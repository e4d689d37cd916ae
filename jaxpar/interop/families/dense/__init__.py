"""The families of dense models that differ from Llama in a block."""
