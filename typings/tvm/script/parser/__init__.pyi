"""TVM's parser of scripts, of which relaxpy changes inner parts: untyped."""

from typing import Any

core: Any
ir: Any
tirx: Any
