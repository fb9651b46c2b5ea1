"""Targets: what one is, how tensor programs are scheduled and compiled for it. One folder a target."""
