"""The conformance suite of the virtual machine: test cases as plain JSON that any machine for relaxpy's bytecode must
pass.

`docs/machine.md` describes the files. `python -m relaxpy.testing.machine_suite --write` generates them, with the same
bytes each time. Without `--write` it runs them on the virtual machine of `relaxpy.runtime`.
"""
