"""Mappings that are the value of one key: each has typed members, which are set one by one."""
