import numpy as np
import pytest

from relaxpy.narrow import is_list, is_mapping, is_ndarray, is_sequence, is_tuple


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        ((1,), {is_tuple, is_sequence}),
        ([], {is_list, is_sequence}),
        ({}, {is_mapping}),
        (np.zeros(2), {is_ndarray}),
        ("text", set()),
        (None, set()),
    ],
)
def test_each_class_is_told_from_the_others(value, holds):
    checks = {is_list, is_mapping, is_ndarray, is_sequence, is_tuple}
    assert {check for check in checks if check(value)} == holds
