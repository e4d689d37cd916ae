"""Schedules as pictures, tables and traces."""
