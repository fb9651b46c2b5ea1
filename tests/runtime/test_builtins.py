from __future__ import annotations

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import Shape
from relaxpy.runtime.builtins import FUNCTIONS
from relaxpy.runtime.tensor import from_numpy


def test_shapes_and_tensors() -> None:
    tensor = from_numpy(np.zeros((2, 3)))
    shape = FUNCTIONS["vm.builtin.shape_of"](tensor)
    assert shape == Shape((2, 3))
    as_tensor = FUNCTIONS["vm.builtin.shape_to_tensor"](shape)
    assert as_tensor.dtype == "int64"
    assert FUNCTIONS["vm.builtin.tensor_to_shape"](as_tensor) == shape


@pytest.mark.parametrize("wrong", [np.zeros((1, 1), int), np.zeros(2), np.array([-1])])
def test_what_is_no_shape(wrong: np.ndarray) -> None:
    with pytest.raises(RuntimeCheckError, match="1-d tensor of integers"):
        FUNCTIONS["vm.builtin.tensor_to_shape"](from_numpy(wrong))


def test_copies_are_apart() -> None:
    tensor = from_numpy(np.arange(6))
    copy = FUNCTIONS["vm.builtin.copy"](tensor)
    reshaped = FUNCTIONS["vm.builtin.reshape"](tensor, Shape((2, 3)))
    copy.numpy()[0] = reshaped.numpy()[0, 0] = 9
    assert tensor.numpy()[0] == 0
    assert reshaped.numpy().shape == (2, 3)
    with pytest.raises(RuntimeCheckError):
        FUNCTIONS["vm.builtin.reshape"](tensor, Shape((4,)))


def test_what_may_be_updated_is_no_constant() -> None:
    """Constants, in tuples too, are copied; everything else is itself."""
    own, constant = from_numpy(np.arange(2)), from_numpy(np.arange(2), constant=True)
    writable = FUNCTIONS["vm.builtin.writable"]
    assert writable(own) is own
    assert not writable(constant).constant
    kept, (copied, shape) = writable((own, (constant, Shape((2, 3)))))
    assert kept is own
    assert not copied.constant
    assert isinstance(shape, Shape)


def test_sizes_that_depend_on_data() -> None:
    assert FUNCTIONS["relaxpy.unique"](from_numpy(np.array([[3, 1], [3, 2]]))).numpy().tolist() == [
        1,
        2,
        3,
    ]
    assert FUNCTIONS["relaxpy.nonzero"](
        from_numpy(np.array([[0, 1], [1, 0]]))
    ).numpy().tolist() == [[0, 1], [1, 0]]
    assert FUNCTIONS["relaxpy.nonzero"](from_numpy(np.zeros((0, 2)))).shape == (2, 0)


def test_zeros_and_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert FUNCTIONS["vm.builtin.zeros"](Shape((2,)), "float32").numpy().tolist() == [0, 0]
    FUNCTIONS["vm.builtin.print"](1, "a")
    assert capsys.readouterr().out == "1\na\n"
    assert FUNCTIONS["vm.builtin.null_value"]() is None
