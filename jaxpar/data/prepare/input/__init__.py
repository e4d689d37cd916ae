"""The input: files matched by patterns, decompressed, cut into units and documents."""
