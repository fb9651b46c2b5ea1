"""Attributes that are not there: the message says where to look, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.runtime.absent import declare_absent, present
from relaxpy.runtime.packed_tensor import PackedTensor
from relaxpy.runtime.tensor import Tensor, empty


class Box:
    __slots__ = ("inside",)
    inside: int

    __dir__ = present


declare_absent(Box, ["inside", "outside"], lambda name, box: f"no {name} of {box.inside}")


def test_a_name_has_its_message() -> None:
    box = Box()
    box.inside = 3
    with pytest.raises(AttributeError, match=r"^no outside of 3$"):
        getattr(box, "outside")  # noqa: B009
    with pytest.raises(AttributeError, match=r"^type object 'Box' has no attribute 'outside'$"):
        getattr(Box, "outside")  # noqa: B009


def test_what_is_there_stays() -> None:
    box = Box()
    box.inside = 3
    assert box.inside == 3
    assert "inside" in dir(box)


def test_it_is_as_if_there_were_no_attribute() -> None:
    assert not hasattr(Box, "outside")
    assert not hasattr(Box(), "outside")
    assert "outside" not in dir(Box())


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("reshape", "use t.numpy().reshape(…)"),
        ("mean", "use t.numpy().mean(…)"),
        ("T", "use t.numpy().T"),
        ("cpu", "use t.numpy(), or torch.from_dlpack(t)"),
    ],
)
def test_a_tensor_says_where_its_numbers_are(name: str, advice: str) -> None:
    tensor = empty((2, 3), "float32")
    with pytest.raises(AttributeError) as error:
        getattr(tensor, name)
    assert str(error.value) == f"a Tensor has no attribute {name!r}: {advice}"
    assert not hasattr(tensor, name)
    assert set(dir(np.ndarray)) & set(dir(tensor)) >= {"shape", "dtype", "nbytes"}
    assert name not in dir(tensor)


def test_a_packed_weight_names_its_sources() -> None:
    weight: Any = PackedTensor(empty((2, 3), "float32"), "layout", ("w", "v"))
    for name in ("shape", "numpy", "reshape"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'.*its sources, w, v$"):
            getattr(weight, name)


def test_access_to_attributes_is_direct() -> None:
    """A `__getattr__` would slow down every access."""
    assert not hasattr(Tensor, "__getattr__")
    assert not hasattr(PackedTensor, "__getattr__")
