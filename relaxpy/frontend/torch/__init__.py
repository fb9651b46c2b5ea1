"""Programs of torch as IR: `from_torch`.

`export` traces a module, `decomposition` keeps the operators that are known as a whole, `signature` says what goes in
and out, `sizes` and `guards` what is known of the sizes, and `importer` walks the graph with the table of operators
(`operators_*`). Only this package and `relaxpy.torch` import torch, inside functions, when they are first used.
"""

from relaxpy.frontend.torch.importer import Imported as Imported
from relaxpy.frontend.torch.importer import from_torch as from_torch
from relaxpy.frontend.torch.importer import import_program as import_program

__all__ = ["Imported", "from_torch", "import_program"]
