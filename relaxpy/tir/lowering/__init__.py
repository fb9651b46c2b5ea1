"""Steps from a scheduled tensor program to what TVM's code generators take, for any target."""
