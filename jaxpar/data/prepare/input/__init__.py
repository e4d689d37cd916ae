"""What is read: files found by patterns, decompressed, cut into units and documents."""
