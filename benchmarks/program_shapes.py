"""Programs of many shapes and any size, for the growth of compile time: each is a text of about `count` operators.

`SHAPES` maps the name of a row of `benchmarks/compile.py --shapes` to a function that writes its program. Chains exist
for every elementary function that takes floats, in float32 and bfloat16: the operators say which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from itertools import pairwise

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


def _symbols_of(main: str, *names: str) -> str:
    """The module of one function, which names these variables first."""
    lines = "".join(f"{name} = T.int64()\n        " for name in names)
    return _HEADER + main.replace("cls = Module", lines + "cls = Module")


def parameters(count: int) -> str:
    """The sum of `count` parameters."""
    params = ", ".join(_param(name=f"x{i}") for i in range(count))
    lines = ["x = x0", *(f"x = x + x{i}" for i in range(1, count))]
    return _HEADER + function(lines, "x", params)


def arguments(count: int) -> str:
    """A call of a function of `count` parameters, which are results."""
    params = ", ".join(_param(name=f"x{i}") for i in range(count))
    inner = function(
        ["x = x0", *(f"x = x + x{i}" for i in range(1, count))], "x", params, name="many"
    )
    lines = [f"x{i} = R.exp(x * {i}.0)" for i in range(count)]
    lines.append(f"y = cls.many({', '.join(f'x{i}' for i in range(count))})")
    return _HEADER + inner + "\n" + function(lines, "y", _param(), dataflow=False)


def deep_branches(count: int) -> str:
    """Branches, each inside of the one before."""
    lines = ["    " * level + "if c:" for level in range(count)]
    lines.append("    " * count + "x1 = R.exp(x)")
    for level in reversed(range(count)):
        lines += ["    " * level + "else:", "    " * level + "    x1 = R.tanh(x)"]
    params = f'{_param()}, c: R.Tensor((), "bool")'
    return _HEADER + function(lines, "x1", params, dataflow=False)


def chosen_branches(count: int) -> str:
    """A chain of `elif`."""
    lines: list[str] = []
    for level in range(count):
        lines += [f"{'elif' if level else 'if'} c == {level}:", f"    z = x * {level}.0"]
    lines += ["else:", "    z = R.exp(x)"]
    return _HEADER + function(lines, "z", f'{_param()}, c: R.Tensor((), "int64")', dataflow=False)


def closures(count: int) -> str:
    """Functions, each inside of the one before."""
    lines: list[str] = []
    for level in range(count):
        pad = "    " * level
        lines += [
            f"{pad}@R.function",
            f"{pad}def f{level}(x{level + 1}: {_X.format(dtype='float32')}):",
        ]
    lines.append("    " * count + f"y = R.exp(x{count}) + x0")
    lines.append("    " * count + "return y")
    for level in reversed(range(1, count)):
        lines.append("    " * level + f"r{level} = f{level}(x{level})")
        lines.append("    " * level + f"return r{level}")
    lines.append("r0 = f0(x0)")
    return _HEADER + function(lines, "r0", _param(name="x0"), dataflow=False)


def one_expression(count: int) -> str:
    """Calls, each an argument of the next."""
    return _HEADER + function(["y = " + "R.exp(" * count + "x" + ")" * count], "y", _param())


def wide_tuple(count: int) -> str:
    """A tuple of `count` results, of which every one is read."""
    lines = [f"x{i} = R.exp(x * {i}.0)" for i in range(count)]
    lines.append(f"t = ({', '.join(f'x{i}' for i in range(count))},)")
    lines += ["s = t[0]", *(f"s = s + t[{i}]" for i in range(1, count))]
    return _HEADER + function(lines, "s", _param())


def wide_tuple_parameter(count: int) -> str:
    """A parameter that is a tuple of `count` tensors of sizes of their own."""
    fields = ", ".join(f'R.Tensor(("n{i}", 64), "float32")' for i in range(count))
    lines = [f"y{i} = R.exp(t[{i}])" for i in range(count)]
    result = f"({', '.join(f'y{i}' for i in range(count))},)"
    return _HEADER + function(lines, result, f"t: R.Tuple({fields})")


def deep_tuple(count: int) -> str:
    """Tuples, each in the next."""
    lines = ["t0 = (x, x)", *(f"t{i} = (t{i - 1}, x)" for i in range(1, count))]
    lines += [f"u{count - 1} = t{count - 1}[0]"]
    lines += [f"u{i - 1} = u{i}[0]" for i in reversed(range(1, count))]
    return _HEADER + function(lines, "u0" if count > 1 else "t0[0]", _param())


def sum_of_sizes(count: int) -> str:
    """A size that is a sum of `count` symbols."""
    params = ", ".join(f'x{i}: R.Tensor(("n{i}",), "float32")' for i in range(count))
    size = " + ".join(f"n{i}" for i in range(count))
    main = function([f'y = R.zeros(R.shape([{size}]), "float32")'], "y", params)
    return _symbols_of(main, *(f"n{i}" for i in range(count)))


def joined(count: int) -> str:
    """`concat` of `count` parameters of sizes of their own, flattened and cut."""
    params = ", ".join(f'x{i}: R.Tensor(("n{i}", 4), "float32")' for i in range(count))
    all_of = ", ".join(f"x{i}" for i in range(count))
    lines = [f"c = R.concat(({all_of}), axis=0)", "f = R.flatten(c)", "y = R.exp(f)"]
    return _HEADER + function(lines, "y", params)


def casts_of_known(count: int) -> str:
    """`match_cast` to the same symbols again and again."""
    lines = ["x = R.match_cast(x, R.Tensor((n, 64), 'float32'))"]
    for _ in range(count):
        lines += ["x = R.exp(x)", "x = R.match_cast(x, R.Tensor((n, 64), 'float32'))"]
    return _symbols_of(function(lines, "x", 'x: R.Tensor(ndim=2, dtype="float32")'), "n")


def casts_of_sums(count: int) -> str:
    """`match_cast` to sums of a new symbol and the one before."""
    lines = ["x = R.match_cast(x, R.Tensor((m0, 64), 'float32'))"]
    for i in range(1, count):
        lines += [
            "x = R.concat((x, z), axis=0)",
            f"x = R.match_cast(x, R.Tensor((m{i}, 64), 'float32'))",
        ]
    params = 'x: R.Tensor(ndim=2, dtype="float32"), z: R.Tensor(ndim=2, dtype="float32")'
    return _symbols_of(function(lines, "x", params), *(f"m{i}" for i in range(count)))


def _program(params: str, body: Iterable[str]) -> str:
    lines = "".join(f"        {line}\n" for line in body)
    return f"    @T.prim_func(private=True)\n    def k({params}):\n        n = T.int64()\n{lines}\n"


_IN_OUT = 'x: T.Buffer(("n", 64), "float32"), y: T.Buffer(("n", 64), "float32")'


def _of_program(body: Iterable[str]) -> str:
    main = function(
        ['y = R.call_tir(cls.k, (x,), out_ty=R.Tensor((n, 64), "float32"))'], "y", _param()
    )
    return (
        _HEADER
        + _program(_IN_OUT, body)
        + main.replace("cls = Module", "n = T.int64()\n        cls = Module")
    )


def _of_block(lines: Iterable[str]) -> str:
    head = [
        "for i, j in T.grid(n, 64):",
        '    with T.sblock("b"):',
        '        v, w = T.axis.remap("SS", [i, j])',
    ]
    return _of_program([*head, *(f"        {line}" for line in lines)])


def let_chain(count: int) -> str:
    """Names in a tensor program, each the sum of the one before and itself."""
    lets = [
        "a0: T.let = v",
        *(f"a{i}: T.let = (a{i - 1} + a{i - 1} + 1) % n" for i in range(1, count)),
    ]
    return _of_block([*lets, f"y[v, w] = x[a{count - 1}, w]"])


def values_in_program(count: int) -> str:
    """A value with `count` parts, each around the one before."""
    value = "x[v, w]"
    for i in range(min(count, 450)):
        value = f"({value} * T.float32({i}))"
    return _of_block([f"y[v, w] = {value}"])


def nests(count: int) -> str:
    """A tensor program of `count` nests of loops, each over the result of the one before."""
    body: list[str] = []
    for number in range(count):
        source = "y" if number else "x"
        body += [f"for i{number}, j{number} in T.grid(n, 64):", f'    with T.sblock("b{number}"):']
        body += [f'        v, w = T.axis.remap("SS", [i{number}, j{number}])']
        body += [f"        y[v, w] = {source}[v, w] * T.float32({number + 1})"]
    return _of_program(body)


def stores(count: int) -> str:
    """A block that stores `count` times."""
    return _of_block([f"y[v, w] = x[v, w] * T.float32({i})" for i in range(count)])


def buffers(count: int) -> str:
    """A tensor program with `count` buffers of its own."""
    body = [f'b{i} = T.sblock_alloc_buffer((n, 64), "float32")' for i in range(count)]
    names = ["x", *(f"b{i}" for i in range(count)), "y"]
    for i, (source, to) in enumerate(pairwise(names)):
        body += [f"for i{i}, j{i} in T.grid(n, 64):", f'    with T.sblock("b{i}"):']
        body += [
            f'        v, w = T.axis.remap("SS", [i{i}, j{i}])',
            f"        {to}[v, w] = T.exp({source}[v, w])",
        ]
    return _of_program(body)


def different_programs(count: int) -> str:
    """`count` tensor programs, each called once."""
    kernels, lines = [], []
    for i in range(count):
        loop = [
            "for i, j in T.grid(n, 64):",
            '    with T.sblock("b"):',
            '        v, w = T.axis.remap("SS", [i, j])',
            f"        y[v, w] = x[v, w] * T.float32({i + 1})",
        ]
        kernels.append(_program(_IN_OUT, loop).replace("def k(", f"def k{i}("))
        lines.append(f'x = R.call_tir(cls.k{i}, (x,), out_ty=R.Tensor((n, 64), "float32"))')
    main = function(lines, "x", _param())
    return (
        _HEADER
        + "".join(kernels)
        + main.replace("cls = Module", "n = T.int64()\n        cls = Module")
    )


def loops(count: int) -> str:
    """Loops, one after the other."""
    lines: list[str] = []
    for i in range(count):
        lines += [f"for i{i} in range(2):", "    x = R.exp(x)"]
    return _HEADER + function(lines, "x", _param(), dataflow=False)


def deep_loops(count: int) -> str:
    """Loops, each inside of the one before."""
    lines = ["    " * i + f"for i{i} in range(1):" for i in range(count)]
    lines.append("    " * count + "x = R.exp(x)")
    return _HEADER + function(lines, "x", _param(), dataflow=False)


def dead(count: int) -> str:
    """Operators whose results nobody reads, each of the one before."""
    lines = ["d = x", *("d = R.exp(d)" for _ in range(count)), "y = R.tanh(x)"]
    return _HEADER + function(lines, "y", _param())


def repeated(count: int) -> str:
    """The same operators again and again, as common subexpressions."""
    lines = ["s = x"]
    for _ in range(count // 2):
        lines += ["e = R.exp(x)", "s = s + e"]
    return _HEADER + function(lines, "s", _param())


def updates(count: int) -> str:
    """Updates of rows, in place."""
    lines = ["y = R.exp(x)"]
    lines += ["y = R.scatter_elements(y, i, z, axis=0, reduction='add')" for _ in range(count)]
    params = f'{_param()}, i: R.Tensor((1, 64), "int64"), z: R.Tensor((1, 64), "float32")'
    return _HEADER + function(lines, "y", params)


def products_of_weights(count: int) -> str:
    """Products of one value with `count` weights, which are joined."""
    params = ", ".join(f'w{i}: R.Tensor((64, 8), "float32")' for i in range(count))
    lines = [f"y{i} = R.matmul(x, w{i})" for i in range(count)]
    return _HEADER + function(
        lines, f"({', '.join(f'y{i}' for i in range(count))},)", f"{_param()}, {params}"
    )


def deep_shapes() -> Mapping[str, Program]:
    """Row → its program: deep and wide ones, of which a build may refuse the largest."""
    return {
        "parameters": parameters,
        "arguments": arguments,
        "branches, deep": deep_branches,
        "branches, elif": chosen_branches,
        "closures, deep": closures,
        "one expression": one_expression,
        "tuple, wide": wide_tuple,
        "tuple, wide parameter": wide_tuple_parameter,
        "tuple, deep": deep_tuple,
        "sizes: a sum": sum_of_sizes,
        "sizes: joined": joined,
        "match_cast, known": casts_of_known,
        "match_cast, sums": casts_of_sums,
        "program: names": let_chain,
        "program: values": values_in_program,
        "program: nests": nests,
        "program: stores": stores,
        "program: buffers": buffers,
        "programs, different": different_programs,
        "loops": loops,
        "loops, deep": deep_loops,
        "dead": dead,
        "repeated": repeated,
        "updates": updates,
        "products of weights": products_of_weights,
    }
