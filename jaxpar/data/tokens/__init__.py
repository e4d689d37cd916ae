"""Tokens in files: folders of shards with their index, digests and tokenizer."""
