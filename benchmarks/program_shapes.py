"""Programs of many shapes and any size, for the growth of compile time: each is a text of about `count` operators.

`SHAPES` maps the name of a row of `benchmarks/compile.py --shapes` to a function that writes its program. Chains exist
for every elementary function that takes floats, in float32 and bfloat16: the operators say which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter

Program = Callable[[int], str]

_HEADER = "@I.ir_module\nclass Module:\n"
_X = 'R.Tensor(("n", 64), "{dtype}")'


def function(
    lines: Iterable[str], result: str, params: str, *, name: str = "main", dataflow: bool = True
) -> str:
    """A function of the module from the lines of its body, in one dataflow block where `dataflow` says so."""
    head = (
        f"    @R.function{'' if name == 'main' else '(private=True)'}\n    def {name}({params}):\n"
    )
    if not dataflow:
        body = "".join(f"        {line}\n" for line in lines)
        return f"{head}        cls = Module\n{body}        return {result}\n"
    body = "".join(f"            {line}\n" for line in lines)
    block = (
        f"        with R.dataflow():\n{body}            out = {result}\n            R.output(out)\n"
    )
    return f"{head}        cls = Module\n{block}        return out\n"


def _param(dtype: str = "float32", name: str = "x") -> str:
    return f"{name}: {_X.format(dtype=dtype)}"


def chain(spelling: str, dtype: str = "float32") -> Program:
    """`count` calls, each of the result before it; `spelling` has `{x}` for that."""

    def program(count: int) -> str:
        lines = [f"x = {spelling.format(x='x')}" for _ in range(count)]
        return _HEADER + function(lines, "x", f"{_param(dtype)}, {_param(dtype, 'y')}")

    return program


def fan_out(count: int) -> str:
    """One value that `count` operators read; all results are returned."""
    lines = ["base = R.exp(x)"] + [f"y{i} = base * {i + 2}.0" for i in range(count)]
    return _HEADER + function(lines, f"({', '.join(f'y{i}' for i in range(count))},)", _param())


def fan_in_sum(count: int) -> str:
    """The sum of `count / 3` exponentials, added one after the other."""
    lines = ["total = x"]
    for i in range(count // 3):
        lines += [f"e = R.exp(x * {i + 1}.0)", "total = total + e"]
    return _HEADER + function(lines, "total", _param())


def fan_in_tree(count: int) -> str:
    """The same sum as a balanced tree."""
    lines = [f"e{i} = R.exp(x * {i + 1}.0)" for i in range(count // 3)]
    names, level = [f"e{i}" for i in range(count // 3)], 0
    while len(names) > 1:
        pairs = list(zip(names[::2], names[1::2], strict=False))
        lines += [f"s{level}_{i} = {a} + {b}" for i, (a, b) in enumerate(pairs)]
        names = [f"s{level}_{i}" for i in range(len(pairs))] + names[2 * len(pairs) :]
        level += 1
    return _HEADER + function(lines, names[0], _param())


def concat_of_values(count: int) -> str:
    """`concat` of `count` values that were computed just before."""
    lines = [f"e{i} = R.exp(x * {i + 1}.0)" for i in range(count // 2)]
    joined = ", ".join(f"e{i}" for i in range(count // 2))
    return _HEADER + function(
        [*lines, f"joined = R.concat(({joined},), axis=0)"], "joined", _param()
    )


def concat_of_concats(count: int) -> str:
    """A value that grows: `concat` with itself's last part, `count` times."""
    lines = ["grown = x"] + ["grown = R.concat((grown, x), axis=0)" for _ in range(count)]
    return _HEADER + function(lines, "grown", _param())


def splits(count: int) -> str:
    """`split` into parts, an operator on each, `concat` of them, again and again (eight parts a time)."""
    lines = []
    for _ in range(max(1, count // 10)):
        lines.append("parts = R.split(x, 8, axis=1)")
        lines += [f"p{i} = R.tanh(parts[{i}])" for i in range(8)]
        lines.append(f"x = R.concat(({', '.join(f'p{i}' for i in range(8))}), axis=1)")
    return _HEADER + function(lines, "x", _param())


def symbols(count: int) -> str:
    """A chain of products of matrices, with a symbol a matrix."""
    params = ", ".join(f'w{i}: R.Tensor(("n{i}", "n{i + 1}"), "float32")' for i in range(count))
    lines = [f"x = R.matmul(x, w{i})" for i in range(count)]
    return _HEADER + function(lines, "x", f'x: R.Tensor(("m", "n0"), "float32"), {params}')


def separate_symbols(count: int) -> str:
    """`count` parameters, each of a length of its own, and an operator on each."""
    params = ", ".join(f'x{i}: R.Tensor(("n{i}",), "float32")' for i in range(count))
    lines = [f"y{i} = R.exp(x{i})" for i in range(count)]
    return _HEADER + function(lines, f"({', '.join(f'y{i}' for i in range(count))},)", params)


def layers(count: int) -> str:
    """Layers of a network: product, bias, relu, norm of rows."""
    number = max(1, count // 4)
    params = ", ".join(
        f'w{i}: R.Tensor((64, 64), "float32"), b{i}: R.Tensor((64,), "float32")'
        for i in range(number)
    )
    lines = []
    for i in range(number):
        lines += [f"x = R.nn.relu(R.matmul(x, w{i}) + b{i})", "x = R.nn.softmax(x)"]
    return _HEADER + function(lines, "x", f"{_param()}, {params}")


def residuals(count: int) -> str:
    """Every result is read by the next operator and by the one after the next."""
    lines = ["a = x", "b = R.exp(x)"]
    for _ in range(count // 2):
        lines += ["c = R.tanh(b) + a", "a = b", "b = c"]
    return _HEADER + function(lines, "b", _param())


def rows(count: int) -> str:
    """Reductions and what broadcasts them, alternating."""
    lines = []
    for _ in range(count // 2):
        lines += ["x = x - R.max(x, axis=1, keepdims=True)"]
    return _HEADER + function(lines, "x", _param())


def relayouts(count: int) -> str:
    """Transposes and reshapes with an operator between them."""
    lines = []
    for _ in range(max(1, count // 3)):
        lines += ["t = R.exp(R.permute_dims(x))", "x = R.permute_dims(t)"]
    return _HEADER + function(lines, "x", _param())


def branches(count: int) -> str:
    """Branches one after the other, with an operator in each arm."""
    lines = []
    for _ in range(max(1, count // 3)):
        lines += ["if c:", "    z = R.exp(x)", "else:", "    z = R.tanh(x)", "x = z"]
    params = f'{_param()}, c: R.Tensor((), "bool")'
    return _HEADER + function(lines, "x", params, dataflow=False)


def nested_branches(count: int) -> str:
    """Branches inside of branches, 50 deep, as many such as there are operators for."""
    lines, depth = [], 50
    for _ in range(max(1, count // depth)):
        for level in range(depth):
            lines.append("    " * level + "if c:")
        lines.append("    " * depth + "x1 = R.exp(x)")
        for level in reversed(range(depth)):
            tail = "    " * level
            lines += [f"{tail}else:", f"{tail}    x1 = R.tanh(x)"]
        lines.append("x = x1")
    params = f'{_param()}, c: R.Tensor((), "bool")'
    return _HEADER + function(lines, "x", params, dataflow=False)


def calls(count: int) -> str:
    """`main` calls `count / 2` functions of two operators."""
    number = max(1, count // 2)
    parts = [
        function([f"y = R.exp(x * {i + 1}.0)"], "y", _param(), name=f"f{i}") for i in range(number)
    ]
    lines = [f"x = cls.f{i}(x)" for i in range(number)]
    return _HEADER + "\n".join([*parts, function(lines, "x", _param(), dataflow=False)])


def call_chain(count: int) -> str:
    """Functions of which each calls the next."""
    number = max(1, count // 2)
    parts = []
    for i in range(number):
        last = [f"y = cls.f{i + 1}(y)"] if i + 1 < number else []
        lines = [f"y = R.exp(x * {i + 1}.0)", *last]
        name = "main" if i == 0 else f"f{i}"
        parts.append(function(lines, "y", _param(), name=name, dataflow=False))
    return _HEADER + "\n".join(parts)


def programs(count: int) -> str:
    """`count` calls of tensor programs that the module has, ten of them."""
    kernels = "".join(
        f"""    @T.prim_func(private=True)
    def k{i}(x: T.Buffer(("n", 64), "float32"), y: T.Buffer(("n", 64), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 64):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32({i + 1})

"""
        for i in range(10)
    )
    lines = [
        f'x = R.call_tir(cls.k{i % 10}, (x,), out_ty=R.Tensor((n, 64), "float32"))'
        for i in range(count)
    ]
    main = function(lines, "x", _param()).replace(
        "cls = Module", "n = T.int64()\n        cls = Module"
    )
    return _HEADER + kernels + main


def casts(count: int) -> str:
    """`match_cast` after every operator, each naming a dimension anew."""
    lines = []
    for i in range(max(1, count // 2)):
        lines += ["x = R.exp(x)", f'x = R.match_cast(x, R.Tensor(("m{i}", 64), "float32"))']
    return _HEADER + function(lines, "x", 'x: R.Tensor(ndim=2, dtype="float32")')


def tuples(count: int) -> str:
    """Tuples made and taken apart around every operator."""
    lines = []
    for _ in range(max(1, count // 2)):
        lines += ["t = (x, y)", "x = R.exp(t[1])", "y = t[0]"]
    return _HEADER + function(lines, "x", f"{_param()}, {_param(name='y')}")


def shapes_computed(count: int) -> str:
    """Reshapes whose sizes are expressions of a symbol."""
    lines = []
    for i in range(max(1, count // 2)):
        lines += [f"x = R.reshape(x, R.shape([n * {64 // (2 ** (i % 7))}, {2 ** (i % 7)}]))"]
        lines += ["x = R.exp(x)"]
    main = function(lines, "x", _param()).replace(
        "cls = Module", "n = T.int64()\n        cls = Module"
    )
    return _HEADER + main


def outputs(count: int) -> str:
    """A chain of which every value is returned."""
    lines = ["y0 = R.exp(x)"] + [f"y{i} = R.tanh(y{i - 1})" for i in range(1, count)]
    return _HEADER + function(lines, f"({', '.join(f'y{i}' for i in range(count))},)", _param())


def constants(count: int) -> str:
    """Operators on numbers that are known when building, and a use of them."""
    lines = ['c = R.const(1.0, "float32")'] + ["c = R.exp(c) * 0.1" for _ in range(count // 2)]
    return _HEADER + function([*lines, "y = x * c"], "y", _param())


def nested_indices(count: int) -> str:
    """A tensor program whose index has `count / 16` remainders, each of the one before, called `count` times."""
    index = "v"
    for _ in range(max(1, count // 16)):
        index = f"({index} + 1) % n"
    kernel = f"""    @T.prim_func(private=True)
    def k(x: T.Buffer(("n", 64), "float32"), y: T.Buffer(("n", 64), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 64):
            with T.sblock("b"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = x[{index}, w]

"""
    lines = [
        'x = R.call_tir(cls.k, (x,), out_ty=R.Tensor((n, 64), "float32"))' for _ in range(count)
    ]
    main = function(lines, "x", _param()).replace(
        "cls = Module", "n = T.int64()\n        cls = Module"
    )
    return _HEADER + kernel + main


def functions_of_floats() -> dict[str, str]:
    """Elementary functions of one float tensor to floats, without other arguments → how a call of them is written, from
    the table of operators."""
    from relaxpy.ir import DType
    from relaxpy.op.base import Op
    from relaxpy.op.elementwise import Unary

    found: dict[str, str] = {}
    waiting: list[type[Op]] = [Unary]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        name = getattr(kind, "name", "")
        if not name or kind.gives_bool or not kind.accepts(DType("float32")):
            continue
        if all(parameter.default is not Parameter.empty for parameter in kind.parameters()[1:]):
            found[name] = f"R.{name}({{x}})"
    return dict(sorted(found.items()))


def shapes() -> Mapping[str, Program]:
    """Row of the table → its program."""
    found: dict[str, Program] = {}
    for dtype in ("float32", "bfloat16"):
        spellings = functions_of_floats() | {
            "x + y": "{x} + y",
            "x * 2": "{x} * 2.0",
            "maximum": "R.maximum({x}, y)",
            "where": "R.where({x} < y, {x}, y)",
            "clip": "R.clip({x}, -1, 1)",
            "silu of silu": "R.nn.silu(R.nn.silu({x}))",
            "mish": "{x} * R.tanh(R.log(1.0 + R.exp({x})))",
        }
        found |= {f"chain: {name}, {dtype}": chain(text, dtype) for name, text in spellings.items()}
    return found | {
        "fan-out": fan_out,
        "fan-in: sum": fan_in_sum,
        "fan-in: tree": fan_in_tree,
        "concat of values": concat_of_values,
        "concat, growing": concat_of_concats,
        "split and concat": splits,
        "symbols: products": symbols,
        "symbols: parameters": separate_symbols,
        "layers": layers,
        "residuals": residuals,
        "rows": rows,
        "relayouts": relayouts,
        "branches": branches,
        "branches, 50 deep": nested_branches,
        "functions": calls,
        "functions, a chain": call_chain,
        "tensor programs": programs,
        "match_cast": casts,
        "tuples": tuples,
        "shapes": shapes_computed,
        "outputs": outputs,
        "constants": constants,
        "remainders of integers": chain("{x} % y", "int64"),
        "quotients of integers": chain("{x} // y", "int32"),
        "indices of remainders": nested_indices,
    }
