from typing import Any

_ffi_api: Any
