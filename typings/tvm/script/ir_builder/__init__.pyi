from typing import Any

IRBuilder: Any
