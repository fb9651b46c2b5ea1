"""Abacuses for relaxpy: a target of a package of its own, as `docs/add_a_target.md` explains it."""
