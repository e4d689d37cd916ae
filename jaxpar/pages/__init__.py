"""Pages and pictures of one file each that needs no network (templates, frame, colors, axes), and units of numbers."""
