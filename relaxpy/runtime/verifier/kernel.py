"""The verification of kernel calls: their arguments against the parameters that the kernels were compiled for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relaxpy.runtime.bytecode import Heap, IntExpr, Kernel, KernelParam, Operand, Reg
from relaxpy.runtime.patterns import describe, prim_fits
from relaxpy.runtime.sizes import Size, number, plus, value_of
from relaxpy.runtime.verifier.state import Refuted, State, Token


class KernelCalls(State):
    """The verification of kernel calls."""

    def kernel(self, instr: Kernel) -> bool:
        """Whether the arguments are proved to fit the kernel's parameters. If not, they are compared at run time, and
        are known to fit after the call.

        Raises: Refuted.
        """
        info = self.exe.kernels[instr.index]
        params, home = info.params, self.home(info.slot)
        if params is None:
            return all(self.lives(position, arg, home) for position, arg in enumerate(instr.args))
        if len(instr.args) != len(params):
            raise Refuted(
                f"the kernel takes {len(params)} arguments, it is given {len(instr.args)}"
            )
        sizes: dict[int, Size] = {}
        proved = True
        for position, (param, arg) in enumerate(zip(params, instr.args, strict=True)):
            if param.shape is None:
                proved &= self.scalar_fits(position, param, arg, sizes)
            else:
                proved &= self.tensor_fits(position, param, arg, sizes)
                proved &= self.lives(position, arg, home)
        for position, (param, arg) in enumerate(zip(params, instr.args, strict=True)):
            if param.shape is not None and isinstance(arg, Reg):
                proved &= self.shape_fits(position, param, self.regs[arg.index], sizes)
        if not proved:
            self.learn_fit(params, instr.args, sizes, home)
        return proved

    def lives(self, position: int, arg: Operand, home: int) -> bool:
        """Whether an argument is proved to be on the kernel's device, if it is a tensor."""
        if not isinstance(arg, Reg) or self.only_host:
            return True
        value = self.values[self.regs[arg.index]]
        if value.kind == "tensor" and value.slot not in (-1, home):
            names = [self.exe.slots[slot].name for slot in (home, value.slot)]
            raise Refuted(f"argument {position} must live on {names[0]}, and lives on {names[1]}")
        return value.kind == "scalar" or (value.kind == "tensor" and value.slot == home)

    def scalar_fits(
        self, position: int, param: KernelParam, arg: Operand, sizes: dict[int, Size]
    ) -> bool:
        """Whether an argument is proved to be a scalar of the parameter's type. Records the size that it defines."""
        if isinstance(arg, Reg):
            value = self.values[self.regs[arg.index]]
            if value.kind not in ("", "scalar"):
                raise Refuted(f"argument {position} must be a scalar, got a {value.kind}")
            fits = value.kind == "scalar" and value.dtype == param.dtype
            size = value.dims[0] if fits and value.dims else None
        elif isinstance(arg, Heap):
            size = self.slot(arg.index)
            fits = param.dtype == "int64"
        else:
            fits = prim_fits(arg, param.dtype) and (
                "float" not in param.dtype or type(arg) is float
            )
            if not fits:
                raise Refuted(f"argument {position} must be a {param.dtype}, got {describe(arg)}")
            size = number(arg) if type(arg) is int else None
        if param.size < 0:
            return fits
        if size is None:
            return False
        # Kernels read the low bits of a narrow integer and use them as the size.
        fits = fits and (param.dtype == "int64" or self.is_within(size, param.dtype))
        return fits and self.agrees(position, sizes.setdefault(param.size, size), size)

    def is_within(self, size: Size, dtype: str) -> bool:
        """Whether all possible values of a size fit an integer type."""
        low, high = self.sizes.limits(size)
        known = low is not None and high is not None
        return known and prim_fits(low, dtype) and prim_fits(high, dtype)

    def tensor_fits(
        self, position: int, param: KernelParam, arg: Operand, sizes: dict[int, Size]
    ) -> bool:
        """Whether an argument is proved to be a tensor of the parameter's type and rank, and writable if the kernel
        writes to it. Records the sizes that its dimensions define."""
        assert param.shape is not None
        if not isinstance(arg, Reg):
            raise Refuted(f"argument {position} must be a tensor")
        value = self.values[self.regs[arg.index]]
        if value.kind not in ("", "tensor"):
            raise Refuted(f"argument {position} must be a tensor, got a {value.kind}")
        if param.written and value.constant:
            raise Refuted(f"argument {position} is written to, and is a constant")
        if value.dtype not in ("", param.dtype):
            raise Refuted(f"argument {position} must be of {param.dtype}, got {value.dtype}")
        if value.dims is not None:
            if len(value.dims) != len(param.shape):
                raise Refuted(
                    f"argument {position} must have {len(param.shape)} dimensions, got {len(value.dims)}"
                )
            for dim, size in zip(param.shape, value.dims, strict=True):
                if isinstance(dim, Heap):
                    sizes.setdefault(dim.index, size)
            if self.rewritten and value.start >= 0:
                slots = range(value.start, value.start + len(value.dims))
                if tuple(map(self.slots.get, slots)) != value.dims:
                    raise Refuted(
                        f"the shape of argument {position} has been overwritten in the heap"
                    )
        return (
            bool(value.dtype) and value.dims is not None and (value.writable or not param.written)
        )

    def shape_fits(
        self, position: int, param: KernelParam, token: Token, sizes: dict[int, Size]
    ) -> bool:
        """Whether the shape of an argument is proved equal to the parameter's at these sizes."""
        dims = self.values[token].dims
        assert param.shape is not None
        if dims is None:
            return False
        proved = True
        for dim, size in zip(param.shape, dims, strict=True):
            wanted = number(dim) if isinstance(dim, int) else self.wanted(dim, sizes)
            proved &= wanted is None or self.agrees(position, wanted, size)
        return proved

    def wanted(self, dim: IntExpr, sizes: Mapping[int, Size]) -> Size | None:
        """A dimension of a kernel's parameter at these sizes; None if they are unknown."""
        if isinstance(dim, Heap):
            return sizes.get(dim.index)
        try:
            return self.sizes.of(dim, sizes.__getitem__)
        except KeyError:
            return None

    def agrees(self, position: int, wanted: Size, size: Size) -> bool:
        if self.sizes.are_equal(wanted, size):
            return True
        self.refuted_equal(position, plus(wanted, size, -1))
        return False

    def refuted_equal(self, position: int, difference: Size) -> None:
        known = value_of(difference)
        if known is not None and not self.sizes.contradictory:
            raise Refuted(
                f"a size of argument {position} differs from that of the kernel, by {known}"
            )

    def learn_fit(
        self,
        params: Sequence[KernelParam],
        args: Sequence[Operand],
        sizes: dict[int, Size],
        home: int,
    ) -> None:
        """Records the facts that hold after a kernel whose arguments are compared at run time."""
        for param, arg in zip(params, args, strict=True):
            if param.shape is None or not isinstance(arg, Reg):
                continue
            token = self.regs[arg.index]
            value = self.values[token]
            for dim in param.shape if value.dims is None else ():
                if isinstance(dim, Heap):
                    sizes.setdefault(dim.index, self.sizes.fresh(0))
            wanted = [self.wanted(dim, sizes) for dim in param.shape]
            if value.dims is None:
                dims = tuple(self.sizes.fresh(0) if each is None else each for each in wanted)
            else:
                dims = value.dims
                for each, size in zip(wanted, dims, strict=True):
                    if each is not None:
                        self.sizes.assume_equal(each, size)
            writable = value.writable or param.written
            known = replace(
                value,
                kind="tensor",
                dtype=param.dtype,
                dims=dims,
                fields=None,
                writable=writable,
                slot=home,
            )
            self.learn(token, known)
