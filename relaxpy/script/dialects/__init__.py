"""Dialects of the script: TVM's syntax, current and older, and Python's newer syntax.

* `older_words.py`: TVM's names for words that differ here; keywords are renamed in the syntax tree before parsing.
* `lowered.py`: TVM's three sets of memory and VM instructions.
* `tvm_metadata.py`: constants as TVM prints them, as JSON after the program.
* `type_params.py`: symbolic variables in brackets, `def main[n](…)`, on Python versions without this syntax.

The rest of the parser reads only the language that `printer.py` writes, and calls these files where needed.
"""
