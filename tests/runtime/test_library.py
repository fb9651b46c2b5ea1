from __future__ import annotations

import numpy as np
import pytest

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime import Shape, Tensor, register_function, register_library
from relaxpy.runtime.ffi import ffi
from relaxpy.runtime.library import find_function, find_library
from relaxpy.runtime.library_call import LibraryFunction
from relaxpy.runtime.patterns import to_value
from relaxpy.runtime.tensor import empty, from_numpy


def test_decorators_and_plain_calls() -> None:
    @register_library("test.lib.one")
    def one(x: Tensor, out: Tensor) -> None:
        out.numpy()[...] = x.numpy()

    assert find_library("test.lib.one") == LibraryFunction("test.lib.one", one)
    assert register_library("test.lib.two", one) is one
    assert register_function("test.fun", len) is len
    assert find_function("test.fun") is len


def test_another_function_of_a_name_is_told() -> None:
    """The same definition may run again, as a cell of a notebook does."""

    def define(number: int) -> None:
        @register_library("test.lib.again")
        def again(x: Tensor, out: Tensor) -> None:
            out.numpy()[...] = number

    define(1)
    define(2)
    with pytest.warns(
        match=r"'test.lib.again' was .*\.again .*test_library.py.* is .*other"
    ) as told:

        @register_library("test.lib.again")
        def other(x: Tensor, out: Tensor) -> None: ...

    assert told[0].filename == __file__
    assert find_library("test.lib.again") == LibraryFunction("test.lib.again", other)


def test_the_extra_is_named() -> None:
    register_library("mkl2.", lambda: None, extra="mkl2")
    with pytest.raises(ExecutableError, match=r"relaxpy\[mkl2\]"):
        find_library("mkl2.gemm")


@pytest.mark.parametrize(("name", "func"), [("", len), (3, len), ("x", 3)])
def test_wrong_registrations(name: object, func: object) -> None:
    with pytest.raises(UsageError):
        register_library(name, func)  # type: ignore[call-overload]


def test_functions_of_tvm_ffi_take_tensors() -> None:
    """A C++ (or Python) function of tvm_ffi sees the same memory, without a copy."""
    tvm_ffi = ffi()

    @tvm_ffi.register_global_func("test.ffi_double", override=True)
    def double(x: object, out: object) -> None:
        np.from_dlpack(out)[...] = np.from_dlpack(x) * 2

    x, out = from_numpy(np.arange(3, dtype=np.float32)), empty((3,), "float32")
    find_library("test.ffi_double")(x, out)
    np.testing.assert_array_equal(out.numpy(), [0, 2, 4])


def test_functions_of_tvm_ffi_may_return_what_they_were_given() -> None:
    ffi().register_global_func("test.ffi_both", lambda x, s: [x, s], override=True)
    x = from_numpy(np.arange(3, dtype=np.float32))
    back, shape = to_value(find_function("test.ffi_both")(x, Shape((1, 2))))
    assert back.pointer == x.pointer
    assert shape == Shape((1, 2))
    assert type(shape) is Shape
    del x
    _ = [np.ones(3, np.float32) for _ in range(10)]
    np.testing.assert_array_equal(back.numpy(), [0, 1, 2])


def test_unknown() -> None:
    with pytest.raises(ExecutableError, match="register_function"):
        find_function("test.nothing")


@pytest.mark.parametrize(
    "name", ["runtime.ModuleLoadStaticLibrary", "ffi.ModuleLoadFromFile", "relaxpy.out_of_range"]
)
def test_what_tvm_is_made_of_is_not_registered(name: str) -> None:
    """A program that is read from a text would load files with it."""
    for find in (find_library, find_function):
        with pytest.raises(ExecutableError, match="is not registered"):
            find(name)
