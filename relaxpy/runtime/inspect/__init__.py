"""Inspection of executables and executions: listings, profiles, timelines, memory plans."""
