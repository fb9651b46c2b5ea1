"""The suite that defines the machine: cases as plain JSON, which any machine for relaxpy's bytecode has to pass.

`docs/machine.md` says what the files contain. `python -m relaxpy.testing.machine_suite --write` makes them anew, the
same bytes each time; without `--write` it runs them on the virtual machine of `relaxpy.runtime`.
"""
