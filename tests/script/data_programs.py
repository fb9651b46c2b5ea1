"""A module with data types, for tests."""

SOURCE = """
@I.ir_module
class Module:
    @R.type
    class List:
        A = R.type_param()

        def Nil(): ...
        def Cons(head: A, tail: "List[A]"): ...

    @R.type
    class Tree:
        def Leaf(x: R.Tensor(("n",), "float32")): ...
        def Node(left: "Tree", right: "Tree"): ...

    @R.type
    class Rose:
        A = R.type_param()

        def Branch(value: A, children: "Forest[A]"): ...

    @R.type
    class Forest:
        A = R.type_param()

        def Empty(): ...
        def More(first: "Rose[A]", rest: "Forest[A]"): ...

    @R.type
    class Pair:
        def Both(a: R.Tensor(("n", 3), "float32"), b: R.Tensor((3, "n * 2"), "float32"), k: R.Prim("int64", value="k")): ...

    @R.function
    def total(t: Tree) -> R.Tensor((), "float32"):
        cls = Module
        match t:
            case Tree.Leaf(x):
                y = R.sum(x) / n
            case Node(Leaf(a), Leaf(b)):
                y = R.sum(a) * R.sum(b)
            case Node(l, r):
                y = cls.total(l) + cls.total(r)
        return y

    @R.function
    def build(k: R.Prim("int64"), x: R.Tensor((2,), "float32")) -> List[R.Tensor((2,), "float32")]:
        xs = List[R.Tensor((2,), "float32")].Nil()
        for i in range(k):
            xs = List.Cons(x, xs)
        return xs

    @R.function
    def twice(xs: List[R.Tensor((2,), "float32")], out: List[R.Tensor((2,), "float32")]) -> List[R.Tensor((2,), "float32")]:
        cls = Module
        match xs:
            case Nil():
                r = out
            case Cons(h, t):
                r = cls.twice(t, List.Cons(h * 2, out))
        return r

    @R.function
    def length(xs: List[R.Tensor((2,), "float32")], k: R.Prim("int64")) -> R.Prim("int64", value=None):
        cls = Module
        match xs:
            case Nil():
                r = R.prim_value(k)
            case Cons(_, t):
                r = cls.length(t, k + 1)
        return r

    @R.function
    def literals(p: R.Tuple(List[R.Prim("int64", value=None)], R.Prim("bool"))) -> R.Prim("int64", value=None):
        match p:
            case (Cons(0, Nil()), True):
                r = R.prim_value(10)
            case (Cons(head=-1), _):
                r = R.prim_value(20)
            case (Cons(k, Cons(j, _) as rest), False):
                r = j
            case (Cons(k, _), False):
                r = k
            case _:
                r = R.prim_value(-1)
        return r

    @R.function
    def scalar(x: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
        match x:
            case 0:
                y = x + 5
            case other:
                y = other * 2
        return y

    @R.function
    def rose(t: Rose[R.Tensor((), "float32")]) -> R.Tensor((), "float32"):
        cls = Module
        match t:
            case Branch(v, c):
                s = v + cls.forest(c)
        return s

    @R.function
    def forest(f: Forest[R.Tensor((), "float32")]) -> R.Tensor((), "float32"):
        cls = Module
        match f:
            case Empty():
                s = R.const(0.0)
            case More(a, b):
                s = cls.rose(a) + cls.forest(b)
        return s

    @R.function
    def both(x: R.Tensor(("m", 3), "float32"), y: R.Tensor((3, "m * 2"), "float32")) -> R.Tensor(("m", "m * 2"), "float32"):
        m = T.int64()
        with R.dataflow():
            p = Pair.Both(x, y, k=7)
            R.output(p)
        match p:
            case Both(b=b, a=a):
                z = R.matmul(a, b)
        return R.reshape(z, (m, m * 2))
"""
