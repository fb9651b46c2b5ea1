"""Weight parameters: which parameters of a function are weights, and which of its bindings depend on weights only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from relaxpy.analysis.escape import escaping
from relaxpy.analysis.in_place import state, updated
from relaxpy.analysis.removable import Removable
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.expr import Call, Constant, Function, TupleGetItem, Var, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import UsedVars, used_symbols
from relaxpy.op.base import Op
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.shape.bounds import assuming, bounds_of
from relaxpy.shape.defined import defined_symbols
from relaxpy.shape.prove import prove

NUM_INPUT = "num_input"
"""Attribute of a function: the number of its inputs. The parameters after them are weights (TVM's convention, which
`nn` follows)."""
PACKED = "packed_params"
"""Attribute of a function: the names of the weights that its caller packs, before the first call, with the
executable's packers. `relaxpy.build(…, pack=True)` sets it."""
PACKERS = "packers"
"""Attribute of a function that has `PACKED`: for each weight that a packer makes, the name of that function and the
names of the weights that it takes, as the user declared them; if it returns a tuple, also the number of the field. Any
other weight is passed as it is."""


def memory_of(constant: Constant) -> Hashable:
    """The memory of a constant: bound parameters share theirs between uses and functions."""
    data = constant.data
    return data.ctypes.data, data.shape, data.strides, data.dtype


def trailing_weights(function: Function) -> tuple[Var, ...]:
    """The parameters after the first `num_input`; none without the attribute."""
    count = function.attrs.get(NUM_INPUT)
    return function.params[count:] if isinstance(count, int) else ()


def packed_params(function: Function) -> tuple[Var, ...]:
    """The weights of a function that its caller packs."""
    names = function.attrs.get(PACKED, ())
    return tuple(param for param in function.params if param.name in names)


def weight_only(mod: IRModule, function: Function, weights: Sequence[Var]) -> list[VarBinding]:
    """The bindings of a function, outside branches, that depend only on these weights and may be computed before a
    call. The last ones are used by bindings that stay. A binding stays if its result takes more memory than its inputs
    (decompression belongs into the kernel that reads it), if it may fail, or if it is returned."""
    with assuming(bounds_of(function)):
        return _weight_only(mod, function, weights)


def _weight_only(mod: IRModule, function: Function, weights: Sequence[Var]) -> list[VarBinding]:
    removable, used = Removable(mod), UsedVars()
    symbols = defined_symbols(weight.annotation for weight in weights)
    own = set(weights) - state(function)
    kept = escaping(function) | updated(function.body)
    found: list[VarBinding] = []
    for binding in function.body.bindings:
        uses = used(binding.value)
        if (
            isinstance(binding, VarBinding)
            and binding.var not in kept
            and uses
            and own.issuperset(uses)
            and symbols.issuperset(used_symbols(binding))
            and is_no_larger(binding, mod)
            and removable(binding)
        ):
            own.add(binding.var)
            found.append(binding)
    needed: set[Var] = set()
    lifted = {binding.var for binding in found}
    for binding in function.body.bindings:
        if binding.var not in lifted:
            needed.update(used(binding.value))
    for binding in reversed(found):  # a value used only by bindings that stay is used there
        if binding.var in needed:
            needed.update(used(binding.value))
    return [binding for binding in found if binding.var in needed]


def is_no_larger(binding: VarBinding, mod: IRModule) -> bool:
    """Is a value computed by operators or tensor programs, and no larger in bytes than its inputs? What an operator
    packs for a kernel may be larger by its padding."""
    match binding.value:
        case TupleGetItem() | Call(op=Op(packs=True)):
            return True
        case Call(op=op, args=args) if isinstance(op, Op) or type(op) is CallTIR:
            given = _bytes(deduce(arg, mod) for arg in args[isinstance(op, CallTIR) :])
            made = _bytes([binding.var.annotation])
            return given is not None and made is not None and prove(dim_op("le", made, given))
        case _:
            return False


def _bytes(annotations: Iterable[Annotation]) -> Dim | None:
    """The size in bytes of tensors of these annotations; None if it is not known."""
    total = Dim.of(0)
    for annotation in annotations:
        match annotation:
            case TensorType(dtype=dtype) if annotation.dims is not None and dtype is not None:
                size: Dim | None = dtype.nbytes(product(annotation.dims))
            case TupleType(fields=fields):
                size = _bytes(fields)
            case TensorType():
                size = None
            case _:
                size = Dim.of(0)
        if size is None:
            return None
        total = total + size
    return total
