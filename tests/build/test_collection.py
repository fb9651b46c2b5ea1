"""The garbage collector is as it was, whoever leaves first."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import relaxpy
from relaxpy.build.collection import collection_paused
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RelaxError
from relaxpy.ir import IRModule
from relaxpy.transform.base import Pass, PassContext, module_pass

MODULE = """
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    y = R.exp(x)
    return y
"""


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_is_put_back(enabled: bool) -> None:
    """Nested, and after an error."""
    if not enabled:
        gc.disable()
    with collection_paused():
        with pytest.raises(ValueError, match="inner"), collection_paused():
            raise ValueError("inner")
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_others_may_leave_later() -> None:
    """Two builds in two threads overlap."""
    first, second = collection_paused(), collection_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_passes_run_without_it() -> None:
    """And a build that fails leaves it on."""
    seen: list[bool] = []

    def looking(fails: bool) -> Pass:
        @module_pass("looking")
        def look(mod: IRModule, ctx: PassContext) -> IRModule:
            seen.append(gc.isenabled())
            if fails:
                raise ValueError("inside")
            return mod

        return look

    mod = relaxpy.parse(MODULE)
    pipeline = default_pipeline()
    relaxpy.build(mod, pipeline=pipeline.before("normalize", looking(False)), cache=False)
    with pytest.raises(RelaxError, match="inside"):
        relaxpy.build(mod, pipeline=pipeline.before("normalize", looking(True)), cache=False)
    assert seen == [False, False]
    assert gc.isenabled()
