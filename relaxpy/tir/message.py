"""TVM's errors in the terms of the script: without traces, conditions and classes of C++."""

from __future__ import annotations

import re


def informative(error: Exception | str) -> str:
    """The message of an error of TVM or of Python in it, as users of the script know its terms."""
    text = str(error).partition("\nError in pass:")[0]  # then comes the program, with carets
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _NO_TEXT.match(line)]
    if not lines:
        return type(error).__name__
    text = _PREFIX.sub("", next((line for line in reversed(lines) if _CHECK in line), lines[-1]))
    if "kDLBool" in text and text.endswith("is false:"):
        return "bools are expected here: compare the value, x != 0"
    if "kDLFloat" in text and text.endswith("is false:"):
        return "a number is expected here: cast the value"
    text = re.sub(
        r"^\(.*\) is false: (?=.)", "", text
    )  # a failed check: the text after the condition
    text = re.sub(r"^.* \(\S+ vs\. \S+\) : (?=.)", "", text)
    for pattern, meaning in _RULES:
        found = pattern.fullmatch(text)
        if found is not None:
            return meaning.format_map(_Fields(found)).replace(", is", " is")
    value = re.fullmatch(r"Cannot automatically inference the type\. value=(.*)", text)
    if value is not None:
        return f"{informative(value[1])} is not a value of a tensor program"
    # Python objects by their names, without addresses
    text = re.sub(
        r"<(?:class|function|built-in function|bound method) '?<?([\w.]+)>?[^<>]*>", r"\1", text
    )
    text = re.sub(r"<(?:bound )?(?:function|method) (.+?) at 0x\w+>", r"\1", text)
    text = re.sub(r"<([\w.]+) object at 0x\w+>", r"\1", text)
    text = re.sub(
        r"\b(?:tvm|script|tirx|s_tir|ir|ffi)(?:\.\w+)*\.([A-Za-z_]\w*)",
        lambda m: _class(m[1]),
        text,
    )
    return f"there is no {text}" if isinstance(error, KeyError) else text


_CHECK = "Check failed: "
_INTERNAL = re.compile(r"\b(?:tvm|script|tirx|s_tir|ir|ffi)(?:\.\w+)*\.([A-Za-z_]\w*)")
"""A name in TVM's namespaces."""
_PREFIX = re.compile(r"^((\w*Error): |Check failed: )+")
_NO_TEXT = re.compile(r"[\^~|\s]+$|File \".*\", line \d+|Traceback ")

_WORDS = {
    "Expr": "a scalar", "PrimExpr": "a scalar", "IntImm": "an integer", "FloatImm": "a number",
    "StringImm": "a string", "TensorRegion": "a part of a buffer (is an index missing?)",
    "TensorLoad": "an element of a buffer", "BufferRegion": "a part of a buffer (is an index missing?)",
    "BufferLoad": "an element of a buffer", "Var": "a buffer", "Buffer": "a buffer", "Call": "a call",
    "PrimType": "a dtype", "Type": "a dtype", "Span": "nothing", "SmallStr": "a string", "String": "a string",
    "str": "a string", "SmallBytes": "bytes", "Bytes": "bytes", "OpaquePyObject": "a Python object",
    "Array": "a tuple", "Map": "a dict", "Function": "a function", "int": "an integer", "float": "a number",
    "bool": "a truth value", "NoneType": "None", "Object": "a value", "Tuple": "a tuple", "list": "a list",
    "BigInt": "an integer beyond int64 (is T.uint64 missing?)", "Range": "a range", "PrimFunc": "a program",
    "GlobalVar": "a function", "IterVar": "an axis", "Target": "a target", "dict": "a dict", "Add": "a scalar",
    "ForFrame": "a loop", "SSBlockFrame": "a block", "SBlockFrame": "a block", "Cast": "T.Cast",
    "Select": "T.Select",
}  # fmt: skip
"""TVM's classes, by the words of users of the script."""
_SCALARS = frozenset(
    (
        "Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "And", "Or", "Not", "EQ", "NE", "LT",
        "LE", "GT", "GE", "Ramp", "Broadcast",
    )
)  # fmt: skip
"""TVM's classes of expressions."""


def _class(name: str) -> str:
    """A class of TVM, without its namespace."""
    known = _WORDS.get(name)
    if known is not None:
        return known
    if name in _SCALARS:
        return "a scalar"
    if name.islower():
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    return "a statement" if name.endswith("Frame") else f"T.{name}"


def type_in_words(text: str) -> str:
    """A type as TVM writes it, `Optional<Array<ir.Expr>>`, in words."""
    text = text.strip()
    inner = re.fullmatch(r"(Optional|Array|Variant|Tuple|List|Map)[<\[](.*)[>\]]", text)
    if inner is None:
        at = re.fullmatch(r"index \d+: (.*)", text)
        return type_in_words(at[1]) if at else _class(text.rpartition(".")[2])
    kind, rest = inner.groups()
    first = _first(rest)
    if kind in ("Optional", "Variant"):
        return type_in_words(first)
    if kind == "Map":
        return "a dict"
    of = type_in_words(first)
    return f"a tuple with {of} in it" if first.startswith("index") else f"a tuple, each item {of},"


def _first(types: str) -> str:
    """The first of types separated by commas."""
    depth = 0
    for i, char in enumerate(types):
        depth += (char in "<[") - (char in ">]")
        if char == "," and depth == 0:
            return types[:i]
    return types


def _called(name: str) -> str:
    """A function, as it is written after `T.`."""
    name = name.replace("BufferProxy", "Buffer").replace("DtypeConstructor", "dtype")
    owner, _, method = name.rpartition(".")
    return f"T.{owner}" if method in ("__init__", "__call__") else f"T.{name}"


class _Fields(dict[str, str]):
    """The fields of a template: `{g1}` is a group of the match, `{type1}` a type in words, `{class1}` a class of Python
    in words, `{call1}` a function as scripts write it, `{names1}` names without quotes."""

    def __init__(self, found: re.Match[str]) -> None:
        self.found = found

    def __missing__(self, key: str) -> str:
        text = self.found[int(key[-1])]
        match key[:-1]:
            case "type":
                return type_in_words(text)
            case "class":
                return _class(text.rpartition(".")[2])
            case "call":
                return _called(text)
            case "dim":
                return re.sub(r"^T\.(?:int64\((.*)\)|(\w+))$", r"\1\2", text)
            case "names":
                return text.replace("'", "")
            case _:
                return text


_RULES = tuple(
    (re.compile(pattern), meaning)
    for pattern, meaning in (
        (
            r".*Literal value (?P<dim1>-?\d+) exceeds (?:range|maximum) of (?P<dim2>\w+)",
            "sizes or indices are multiplied to {dim1}, which {dim2} does not hold",
        ),
        (
            r"The dimension mismatched between source region and .*, got (.*) vs\. (.*)\.",
            "the part of the buffer has {dim1} elements along an axis where the match has {dim2}",
        ),
        (
            r"Dimension of source .* but got (\d+) vs\. (\d+)",
            "the part of the buffer has {g1} dimensions, and the match {g2}",
        ),
        (
            r"MatchBuffer buffer data type mismatch:\s*(.*) vs\. (.*)",
            "the match is of {dim1}, and the buffer of {dim2}",
        ),
        (
            r"MatchBuffer buffer scope mismatch:\s*(.*) vs\. (.*)",
            "the match is in {g1}, and the buffer in {g2}",
        ),
        (
            r"Expected integer argument as .HS of (\S+) operator .* of type (.*)",
            "{g1} is of integers, got {dim2}",
        ),
        (
            r"Incompatible types in BufferStore: LHS is `(.*?)`, RHS is `(.*?)`.*",
            "{dim2} cannot be stored in {dim1}",
        ),
        (
            r"kinds\.size\(\) == bindings\.size\(\) \((\d+) vs\. (\d+)\) :",
            "{g1} kinds of axes are given {g2} loops",
        ),
        (
            r"Failed to vectorize loop with extent (.*) for target .*",
            "a vectorised loop must have a known extent, got {g1}",
        ),
        (
            r"Cannot find intrinsic declaration, .*llvm\.(.*)",
            "{g1} is not defined for this dtype: cast the value",
        ),
        (
            r'unknown intrinsic .*name="[\w.]*?(\w+)".*',
            "{g1} is not defined for this dtype: cast the value",
        ),
        (r"Divide by zero", "a number is divided by a literal 0"),
        (r"not implemented", "a function that the program calls does not exist on this target"),
        (r"unknown dtype `ubool`", "a number is expected here: cast the value"),
        (r"%\d+ = .*", "an operation is not defined for its dtype (is a condition no comparison?)"),
        (r".* is false:|.* \(\S+ vs\. \S+\) :", "this is not valid here"),
        (r".*ill-formed: (buffer \w+) is used at .*", "the {g1} is used, and not declared"),
        (
            r"BufferVar (\w+) is (\d+)-dimensional, cannot be indexed with the (\d+)-dimensional .*",
            "{g1} has {g2} dimensions, and {g3} indices are given",
        ),
        (
            r"PrimType cannot represent an opaque pointer.*",
            "elements of a buffer cannot be handles",
        ),
        (r"module '.*' has no attribute '(\w+)'", "the namespace T has no {g1}"),
        (
            r"Mismatched type on argument .* Expected `.*Span.*` but got .*",
            "there are too many arguments",
        ),
        (
            r"Mismatched type on argument .* Expected `(.*)` but got `(.*)`",
            "{type1} is expected, got {type2}",
        ),
        (r"Cannot convert from type `(.*)` to `(.*)`", "{type2} is expected, got {type1}"),
        (r"Unexpected type for TIR Arg: (.*)", "{type1} is not the type of a parameter"),
        (
            r"First argument to .*const must be .* type code (.*)",
            "a number is expected, got {type1}",
        ),
        (
            r"IntImm supports only .* type, but (.*) was supplied\.?",
            "an integer dtype is expected, got {g1}",
        ),
        (
            r"FloatImm supports only .* type, but (.*) was supplied\.?",
            "a float dtype is expected, got {g1}",
        ),
        (
            r"'?([\w.]+)'? object has no attribute '(?:expr_ty|ty|dtype)'",
            "{class1} is not a value of a tensor program",
        ),
        (r"'?([\w.]+)'? object has no attribute '(\w+)'", "{class1} has no attribute {g2}"),
        (r"type object '(\w+)' has no attribute '(\w+)'", "T.{g1} has no attribute {g2}"),
        (r"'?([\w.]+)'? object is not callable(?:; .*)?", "{class1} cannot be called"),
        (r"'?([\w.]+)'? object is not subscriptable(?:; .*)?", "{class1} cannot be indexed"),
        (r"Type (\S+) does not support subscript", "only buffers can be indexed"),
        (r"'?([\w.]+)'? object is not iterable", "{class1} cannot be iterated over"),
        (r"cannot unpack non-iterable (\w+) object", "{class1} cannot be unpacked"),
        (r"object of type '([\w.]+)' has no len\(\)", "{class1} has no length"),
        (
            r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'",
            "{call1} has no argument {g2}",
        ),
        (r"([\w.]+)\(\) got multiple values for argument '(\w+)'", "{call1} got {g2} twice"),
        (
            r"([\w.]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.*)",
            "{call1} needs {names2}",
        ),
        (
            r"([\w.]+)\(\) takes (?:from \d+ to )?(\d+) positional arguments? but (\d+) .*",
            "{call1} takes at most {g2} arguments, got {g3}",
        ),
    )
)
"""Patterns of messages, and what they mean."""
