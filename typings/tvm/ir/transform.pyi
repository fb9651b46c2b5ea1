from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, overload

from tvm.ir import IRModule
from tvm.runtime import Object

class PassContext(Object):
    def __init__(
        self,
        opt_level: int = ...,
        required_pass: Sequence[str] | None = ...,
        disabled_pass: Sequence[str] | None = ...,
        instruments: Sequence[Any] | None = ...,
        config: Mapping[str, Any] | None = ...,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, ptype: Any, value: Any, trace: Any) -> None: ...
    @staticmethod
    def current() -> PassContext: ...

class Pass(Object):
    def __call__(self, mod: IRModule) -> IRModule: ...

class Sequential(Pass):
    def __init__(self, passes: Sequence[Pass] | None = ..., opt_level: int = ..., name: str = ...) -> None: ...

@overload
def module_pass(
    pass_func: Callable[[IRModule, PassContext], IRModule], opt_level: int, name: str | None = ...
) -> Pass: ...
@overload
def module_pass(
    pass_func: None = ..., *, opt_level: int, name: str | None = ...
) -> Callable[[Callable[[IRModule, PassContext], IRModule]], Pass]: ...
