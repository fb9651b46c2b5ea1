from typing import Any

from tvm.runtime import Object

class Target(Object):
    def __init__(self, target: Any, host: Any = ...) -> None: ...

codegen: Any
