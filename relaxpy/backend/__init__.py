"""Targets and their backends: how tensor programs are scheduled and compiled for each. One folder per target."""
