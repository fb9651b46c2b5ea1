"""Pass, Sequential: errors of passes, instruments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from relaxpy.errors import PassError
from relaxpy.ir import IRModule
from relaxpy.transform import Normalize, Pass, PassContext, Sequential


@dataclass(frozen=True)
class Broken(Pass):
    """Fails."""

    name: ClassVar[str] = "broken"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        raise ZeroDivisionError("oh")


def test_a_crash_names_the_pass_and_keeps_the_module() -> None:
    mod = IRModule({})
    with pytest.raises(PassError, match=r"pass broken failed: ZeroDivisionError: oh") as error:
        Sequential((Normalize(), Broken()))(mod)
    assert error.value.module is mod
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_instruments_see_every_pass() -> None:
    seen: list[tuple[int, str]] = []
    context = PassContext(
        instruments=[lambda i, step, _before, _after: seen.append((i, step.name))]
    )
    Sequential((Normalize(), Normalize()))(IRModule({}), context)
    assert seen == [(0, "normalize"), (1, "normalize")]
