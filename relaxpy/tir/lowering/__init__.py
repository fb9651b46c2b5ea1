"""Lowering steps from a scheduled tensor program to the input of TVM's code generators, for any target."""
