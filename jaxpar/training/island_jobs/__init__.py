"""Islands as separate jobs: rounds of outer gradients, exchanged through a folder."""
