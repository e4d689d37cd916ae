"""HTML pages and SVG pictures, of one file each that needs no network: templates, frame, colors, axes and labels."""
