"""What happens to activations between forward and backward."""
