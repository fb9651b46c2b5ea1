"""The collector rests, and is put back."""

from __future__ import annotations

import gc

import pytest

from relaxpy.ir.garbage import garbage_kept


def test_the_collector_rests_and_is_put_back() -> None:
    assert gc.isenabled()
    with garbage_kept():
        with garbage_kept():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_put_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), garbage_kept():
        raise ValueError("x")
    assert gc.isenabled()


def test_who_has_turned_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with garbage_kept():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_others_may_leave_later() -> None:
    """Two builds in two threads overlap."""
    first, second = garbage_kept(), garbage_kept()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
