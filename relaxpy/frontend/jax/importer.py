"""The walk over a jaxpr: parameters and sizes, then one binding after the other."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.errors import RelaxError, Span
from relaxpy.frontend import site
from relaxpy.frontend.jax.arrays import KEY, array_of, dtype_of, is_key, memory, packed_keys
from relaxpy.frontend.jax.expansions import EXPANSIONS, ExpansionError, expansion
from relaxpy.frontend.jax.operators import load_operators
from relaxpy.frontend.jax.refused import REFUSED
from relaxpy.frontend.jax.sizes import OtherScopeError, Sizes, is_symbolic
from relaxpy.frontend.jax.spans import span_of
from relaxpy.frontend.jax.table import INLINED, LOOPS, PRIMITIVES, branch_for_all
from relaxpy.frontend.jax.tracing import TRACED, Leaf, Traced, traced
from relaxpy.frontend.jax.weights import held_arrays
from relaxpy.frontend.missing import refuse
from relaxpy.frontend.signature import Input, Output
from relaxpy.ir import Constant, Dim, DType, Expr, IRModule, SymVar, TensorType, Tuple, Var
from relaxpy.ir.accessors import tensor_of
from relaxpy.ir.dim import dim_op
from relaxpy.op import astype
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.shape.bounds import LOWER


@dataclass(frozen=True)
class Imported:
    """A program of JAX as IR."""

    mod: IRModule
    params: dict[str, np.ndarray]
    """The weights, in JAX's memory where that is on the CPU."""
    inputs: tuple[Input, ...]
    """Leaves of the arguments in order, without those that are weights."""
    outputs: tuple[Output, ...]
    """Leaves of the results in order."""
    arguments: Any
    """The tree of `(args, kwargs)`, as JAX has it."""
    results: Any
    names: tuple[str, ...]
    """The names of the positional parameters."""


def from_jax(
    function: Callable[..., Any], *specs: Any, **kwspecs: Any
) -> tuple[IRModule, dict[str, np.ndarray]]:
    """A function of JAX as a module of IR, and its weights, which share JAX's memory.

        b, t = jax.export.symbolic_shape("b, t")
        mod, params = relaxpy.from_jax(model, jax.ShapeDtypeStruct((b, t, 16), jax.numpy.float32))
        exe = relaxpy.build(mod, params=params)

    `specs` stand for the arguments, trees of them too: a `jax.ShapeDtypeStruct` is an argument of `main`, whose sizes
    may be symbolic; an array is a weight, as are arrays that the function holds; numbers, texts and `None` are part of
    the program. `main` takes the arguments in order, then the weights; it returns the arrays of the results in order: a
    tuple, unless that is one. Keys of random numbers are their words, (…, 2) uint32.

    Raises: UsageError (`jax-trace`, `jax-operator`, `jax-dtype`), with the user's lines.
    """
    found = import_function(function, specs, kwspecs)
    return found.mod, found.params


def import_function(function: Callable[..., Any], specs: Any, kwspecs: Any) -> Imported:
    """The implementation of `from_jax`, with what goes in and out."""
    title = getattr(function, "__name__", type(function).__name__)
    held = held_arrays(function)
    trace = traced(function, specs, kwspecs)
    try:
        return Importer(trace, held, title).run()
    except (OtherScopeError, ExpansionError):
        # The function makes sizes of variables that it holds, which are of the user's own trace, or JAX knows too
        # little of sizes from 0 on to expand a primitive.
        if not trace.shifted:
            raise
        return Importer(traced(function, specs, kwspecs, from_zero=False), held, title).run()


class Importer:
    """The function under construction."""

    def __init__(self, trace: Traced, held: dict[Any, str], title: str) -> None:
        """`held` are the names of arrays that the user's function holds, by memory."""
        load_operators()
        self.trace = trace
        self.held = held
        self.builder = BlockBuilder(IRModule(name=title if title.isidentifier() else "Module"))
        self.sizes = Sizes()
        self.taken = site.Names()
        self.weights: dict[str, np.ndarray] = {}
        self.weight_vars: dict[Any, Var] = {}
        """Memory of an array → the parameter that it is."""
        self.bounds: dict[str, int] = {}
        self.span: Span | None = None
        """Where the equation is that is bound now."""

    def run(self) -> Imported:
        closed = self.trace.jaxpr
        refuse(_missing(closed.jaxpr), REFUSED, "jax-operator", "docs/from_jax.md")
        inputs = [leaf for leaf in self.trace.leaves if leaf.is_argument or leaf.is_weight]
        self._define_sizes(closed.jaxpr.invars)
        params: list[Var] = []
        described: list[Input] = []
        given: list[Expr] = []
        invars = iter(closed.jaxpr.invars)
        for leaf in self.trace.leaves:
            if leaf.is_argument:
                var = self._parameter(leaf, next(invars).aval)
                params.append(var)
                given.append(var)
                described.append(Input("key" if is_key(leaf.value) else "tensor", var.name))
            elif leaf.is_weight:
                next(invars)
                given.append(self.stored(leaf.value, leaf.name))
            else:
                described.append(Input("constant", leaf.name, leaf.value))
        assert len(given) == len(inputs)
        consts = [self.stored(value, None) for value in closed.consts]
        self._store_literals(closed.jaxpr)
        weights = list(dict.fromkeys(self.weight_vars.values()))
        attrs: dict[str, Any] = {"num_input": len(params)}
        if self.bounds:
            attrs[LOWER] = self.bounds
        outputs: list[Output] = []
        flows = not _has_loops(closed.jaxpr)
        block = self.builder.dataflow() if flows else nullcontext()
        emit = self.builder.emit_output if flows else self.builder.emit
        with self.builder.function("main", [*params, *weights], attrs=attrs), block:
            self._check_constraints()
            self._check_differing()
            given = [
                self._as_keys(v, i.aval) for v, i in zip(given, closed.jaxpr.invars, strict=True)
            ]
            consts = [
                self._as_keys(v, i.aval)
                for v, i in zip(consts, closed.jaxpr.constvars, strict=True)
            ]
            results = iter(self.equations(closed.jaxpr, consts, given))
            avals = iter(closed.out_avals)
            values: list[Expr] = []
            for kind in self.trace.outputs:
                if kind is not TRACED:
                    outputs.append(Output("constant", value=kind))
                    continue
                value, aval = next(results), next(avals)
                outputs.append(Output("key" if is_key(aval) else "tensor", len(values)))
                values.append(self._as_words(value) if is_key(aval) else value)
            output = values[0] if len(values) == 1 else Tuple(tuple(values))
            self.builder.emit_func_output(emit(output))
        return Imported(
            self.builder.get(),
            self.weights,
            tuple(described),
            tuple(outputs),
            self.trace.arguments,
            self.trace.results,
            tuple(self.trace.names),
        )

    # Sizes

    def _define_sizes(self, invars: Sequence[Any]) -> None:
        """Name the variables of sizes, as the user does."""
        for var in invars:
            for size in var.aval.shape:
                for name in sorted(size._get_vars()) if is_symbolic(size) else ():
                    if name not in self.sizes.known:
                        own = SymVar(self.taken.fresh(name))
                        zero = name in self.trace.shifted
                        self.sizes.scope = size.scope
                        self.sizes.known[name] = own.dim + int(zero)
                        if not zero:
                            self.bounds[own.name] = 1

    def _check_constraints(self) -> None:
        """Check what the user said of the arguments' sizes."""
        constraints = () if self.trace.scope is None else self.trace.scope._explicit_constraints
        moved = {
            name: dim - int(name in self.trace.shifted) for name, dim in self.sizes.known.items()
        }
        sizes = Sizes()
        sizes.known = moved
        for each in constraints:
            named = {
                v for side in (each.e1, each.e2) if is_symbolic(side) for v in side._get_vars()
            }
            if (
                not named <= moved.keys()
            ):  # of a size that no argument has: it tells nothing of this program
                continue
            left, right = sizes.of(each.e1), sizes.of(each.e2)
            is_equal = each.cmp.name == "EQ"
            condition = dim_op("eq", left, right) if is_equal else dim_op("le", right, left)
            given = {dim.vars[0]: (self.bounds.get(str(dim), 0), None) for dim in moved.values()}
            site.check(self.builder, condition, each.debug_str, given, "jax-trace", None)

    def _check_differing(self) -> None:
        """Check that sizes differ that the trace took to differ."""
        given = {
            symbol: (self.bounds.get(symbol.name, 0), None)
            for size in self.sizes.known.values()
            for symbol in size.vars
        }
        for each in dict.fromkeys(self.trace.differing):
            condition = dim_op("ne", self.sizes.of(each.left), self.sizes.of(each.right))
            text = f"{each.left} != {each.right}, as the trace took it to be,"
            site.check(self.builder, condition, text, given, "jax-trace", each.span)

    # Parameters

    def _parameter(self, leaf: Leaf, aval: Any) -> Var:
        shape = self.sizes.all(aval.shape)
        name = self.taken.fresh(leaf.name)
        if is_key(aval):
            dtype_of(aval)
            return Var(name, TensorType([*shape, Dim.of(2)], "uint32"))
        return Var(name, TensorType(shape, dtype_of(aval)))

    def stored(self, value: Any, name: str | None) -> Expr:
        """An array of the program: a small one is written into it, a larger one is a weight, once for each memory."""
        dtype_of(value)
        array = array_of(value)
        if array.nbytes <= site.WRITTEN and name is None:
            return Constant(array)
        key = memory(array)
        if key not in self.weight_vars:
            name = self.taken.fresh(name or self.held.get(key, "constant"))
            self.weights[name] = array
            annotation = TensorType(array.shape, str(DType(array.dtype)))
            self.weight_vars[key] = Var(name, annotation)
        return self.weight_vars[key]

    def _store_literals(self, jaxpr: Any) -> None:
        """Make weights of the large arrays that are written in equations."""
        for eqn, _ in _equations(jaxpr):
            for each in eqn.invars:
                if _is_literal(each) and np.ndim(each.val) and not is_key(each.aval):
                    self.stored(each.val, None)
            for inner in _inner(eqn):
                for value in getattr(inner, "consts", ()):
                    self.stored(value, None)

    def _as_keys(self, value: Expr, aval: Any) -> Expr:
        """The words of keys, as they come in, as keys."""
        if not is_key(aval):
            return value
        from relaxpy.frontend.jax.random import keys_of

        if isinstance(value, Constant):
            return Constant(packed_keys(value.data))
        return keys_of(site.Site(self.builder, "key", None), value)

    def _as_words(self, value: Expr) -> Expr:
        from relaxpy.frontend.jax.random import words_of

        return words_of(site.Site(self.builder, "words", None), value)

    # Bindings

    def equations(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Bind the equations of a jaxpr that is called with these values; returns its results."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))

        def read(each: Any) -> Any:
            return self._literal(each) if _is_literal(each) else values[each]

        for eqn in jaxpr.eqns:
            found = self._equation(eqn, [read(each) for each in eqn.invars])
            for var, value in zip(eqn.outvars, found, strict=True):
                values[var] = value
        return [read(each) for each in jaxpr.outvars]

    def called(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr, with its constants if it has some."""
        if not hasattr(closed, "consts"):
            return self.equations(closed, (), args)
        pairs = zip(closed.consts, closed.jaxpr.constvars, strict=True)
        consts = [self._as_keys(self.stored(value, None), var.aval) for value, var in pairs]
        return self.equations(closed.jaxpr, consts, args)

    def _literal(self, literal: Any) -> Expr:
        if is_key(literal.aval):
            return Constant(packed_keys(array_of(literal.val)))
        if np.ndim(literal.val):
            return self.stored(literal.val, None)
        return Constant(np.asarray(literal.val, dtype_of(literal.aval).numpy))

    def _equation(self, eqn: Any, values: list[Any]) -> list[Any]:
        name = eqn.primitive.name
        outer, self.span = self.span, span_of(eqn) or self.span
        span = self.span
        try:
            if name in INLINED or name in EXPANSIONS:
                (inner,) = _inner(eqn)
                return self.called(inner, values)
            at = Site(self, eqn, span)
            found = PRIMITIVES[name](at, *values, **eqn.params)
            results = list(found) if isinstance(found, (list, tuple)) else [found]
            return [
                self._bound(at, value, var.aval)
                for value, var in zip(results, eqn.outvars, strict=True)
            ]
        except RelaxError as error:
            raise error.located(span) from None
        finally:
            self.span = outer

    def _bound(self, at: Site, value: Any, aval: Any) -> Any:
        """Bind a result, with the dtype and shape that JAX knows."""
        var = value if isinstance(value, (Var, Constant)) else at.emit(value)
        if isinstance(var, Constant):
            return var
        wanted = TensorType(self.sizes.all(aval.shape), dtype_of(aval, at.span))
        found = tensor_of(var)
        if found.dtype != wanted.dtype:
            var = at.emit(astype(var, wanted.dtype or KEY))
        if found.dims is None or tuple(found.dims) != tuple(wanted.dims or ()):
            return at.match(var, wanted)
        return var


class Site(site.Site):
    """An equation of a jaxpr."""

    def __init__(self, importer: Importer, eqn: Any, span: Span | None) -> None:
        super().__init__(importer.builder, _name_of(eqn), span)
        self.importer = importer
        self.eqn = eqn

    @property
    def aval(self) -> Any:
        """JAX's knowledge of the (first) result."""
        return self.eqn.outvars[0].aval

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result."""
        return dtype_of(self.aval, self.span)

    @property
    def shape(self) -> list[Dim]:
        """The sizes of the (first) result."""
        return self.dims(self.aval.shape)

    def dims(self, values: Sequence[Any]) -> list[Dim]:
        """Sizes of JAX as dimensions."""
        return self.importer.sizes.all(values)

    def full(self, shape: Sequence[Any], value: Any, dtype: DType | str | None = None) -> Var:
        """A tensor of one number."""
        from relaxpy.op import full

        return self.emit(full(self.dims(shape), value, dtype=DType(dtype or self.dtype)))


def _name_of(eqn: Any) -> str:
    """The name of what an equation binds: the module's that it is in, and the primitive's."""
    name = eqn.primitive.name.replace("-", "_")
    scopes = [each.name for each in eqn.source_info.name_stack.stack if hasattr(each, "name")]
    own = [scope for scope in scopes if scope.isidentifier()]
    if own:
        return f"{own[-1]}_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _is_literal(value: Any) -> bool:
    return hasattr(value, "val")


def _inner(eqn: Any) -> Iterator[Any]:
    """The jaxprs in the parameters of an equation."""
    name = eqn.primitive.name
    if name in INLINED:
        yield eqn.params[INLINED[name]]
    elif name in EXPANSIONS:
        yield expansion(eqn)
    elif eqn.params.get("branches_platforms"):
        yield eqn.params["branches"][branch_for_all(eqn.params["branches_platforms"])]
    elif name in LOOPS:
        for value in eqn.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(each, "eqns") or hasattr(each, "jaxpr"):
                    yield each


def _equations(jaxpr: Any, outer: Span | None = None) -> Iterator[tuple[Any, Span | None]]:
    """All equations that are walked, those of inner functions too, with their places: one that is in JAX's own function
    is where that is called."""
    for eqn in jaxpr.eqns:
        span = span_of(eqn) or outer
        yield eqn, span
        for inner in _inner(eqn):
            yield from _equations(getattr(inner, "jaxpr", inner), span)


def _missing(jaxpr: Any) -> Iterator[tuple[str, Span | None]]:
    for eqn, span in _equations(jaxpr):
        name = eqn.primitive.name
        if not any(name in known for known in (INLINED, EXPANSIONS, PRIMITIVES)):
            yield _shown(eqn), span


def _shown(eqn: Any) -> str:
    """The name of a primitive; of a call of foreign code, with its target."""
    target = eqn.params.get("call_target_name", eqn.params.get("target_name"))
    name = eqn.primitive.name
    return name if target is None else f"{name} {target}"


def _has_loops(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in LOOPS and not eqn.params.get("branches_platforms")
        for eqn, _ in _equations(jaxpr)
    )
