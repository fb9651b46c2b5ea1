"""Values of data types in Python."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.runtime.data import CLASSES, FUNCTIONS, MOST_SHOWN, Types, fields_of, replaced
from relaxpy.runtime.tensor import Tensor

CONS, NIL = "List.Cons(head, tail)", "List.Nil()"
TYPES = Types({"List": [NIL, CONS]})
List = TYPES.List


def test_fields_by_position_name_and_match() -> None:
    x = np.arange(3, dtype=np.float32)
    value = List.Cons(x, tail=List.Nil())
    assert value.head.numpy().tolist() == [0, 1, 2]
    x[0] = 5
    assert value.head.numpy()[0] == 5  # it shares the array's memory
    match value:
        case List.Cons(head, List.Nil()):
            assert head is value.head
        case _:
            raise AssertionError
    assert not isinstance(value, List.Nil)


@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), ((1,), {}), ((1, 2, 3), {}), ((1, 2), {"head": 3}), ((1,), {"tial": 2})],
)
def test_wrong_fields(args: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"List\.Cons takes head, tail"):
        List.Cons(*args, **named)


def test_it_is_no_tuple_to_its_users() -> None:
    value = List.Cons(1, List.Nil())
    with pytest.raises(TypeError, match="by its name"):
        value[0]
    with pytest.raises(TypeError, match="by its name"):
        list(value)
    with pytest.raises(AttributeError):
        value.head = 2
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(value)
    assert value != List.Cons(1, value.tail)
    assert len({value, value}) == 1


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="did you mean 'List'"):
        _ = TYPES.Lst
    with pytest.raises(AttributeError, match="has no constructor Con: did you mean 'Cons'"):
        _ = List.Con
    assert dir(TYPES) == ["List"]
    with pytest.raises(RuntimeCheckError, match="is no constructor"):
        _ = CLASSES["import os"]


def test_printing_ends() -> None:
    value = List.Nil()
    for number in range(3):
        value = List.Cons((number, True), value)
    assert (
        repr(value)
        == "List.Cons((2, True), List.Cons((1, True), List.Cons((0, True), List.Nil())))"
    )
    for number in range(100_000):
        value = List.Cons(number, value)
    assert repr(value).count("Cons") <= MOST_SHOWN
    assert "…" in repr(value)
    big = List.Cons(np.zeros((9, 9)), List.Nil())
    assert repr(big) == "List.Cons(tensor(9, 9), List.Nil())"


def test_the_functions_of_programs() -> None:
    make, is_made_by, field = (
        FUNCTIONS[f"relaxpy.data.{each}"] for each in ("make", "is", "field")
    )
    value = make(CONS, 7, make(NIL))
    assert type(value) is List.Cons
    assert is_made_by(CONS, value)
    assert not is_made_by(NIL, value)
    assert not is_made_by(NIL, 3)
    assert field(CONS, value, 0) == 7
    with pytest.raises(
        RuntimeCheckError, match=r"expected a value of List\.Nil\(\), got List\.Cons"
    ):
        field(NIL, value, 0)
    with pytest.raises(RuntimeCheckError, match="got int"):
        field(NIL, 3, 0)


def test_fields_are_replaced_at_any_depth() -> None:
    value = List.Nil()
    for number in range(5000):
        value = List.Cons(number, value)
    assert replaced(value, lambda field: field) is value
    changed = replaced(value, lambda field: field + 1)
    heads = []
    while isinstance(changed, List.Cons):
        heads.append(changed.head)
        changed = changed.tail
    assert heads == list(range(5000, 0, -1))


def test_arrays_in_tuples_become_tensors() -> None:
    value = List.Cons((np.ones(2), 3), List.Nil())
    first = fields_of(value)[0]
    assert isinstance(first[0], Tensor)
    assert first[1] == 3
