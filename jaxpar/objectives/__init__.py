"""What a step minimizes: a file for each objective."""
