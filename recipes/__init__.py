"""Recipes: commands of jaxpar, one after the other, for a whole task."""
