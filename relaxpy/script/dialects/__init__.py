"""What texts that others wrote have otherwise than ours: TVM's, of today and before, and Python's newer syntax.

* `older_words.py`: words of TVM's texts that are others here; keywords become ours in the tree, before it is read.
* `lowered.py`: TVM's spellings of memory and VM instructions, three sets of them.
* `tvm_metadata.py`: constants as TVM prints them, JSON after the program.
* `type_params.py`: symbolic variables in brackets, `def main[n](…)`, for Pythons that cannot read these.

The parser's other files read the one language that `printer.py` writes. They come here at the places named above.
"""
