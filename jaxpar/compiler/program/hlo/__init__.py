"""XLA's HLO text, read into typed records: parser and syntax, opcodes, tables of source lines, groups of devices."""
