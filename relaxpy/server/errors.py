"""Mistakes of requests, as answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaxpy.errors import UsageError

_STATUS = {
    "queue-full": 429,
    "engine": 503,
    "not-a-number": 500,
    "out-of-memory": 503,
    "extra-missing": 501,
    "time-limit": 408,
}
"""The status of errors that are not the request's fault; others are 400."""
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}


class ApiError(Exception):
    """A request that is not answered."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self._headers = headers or {}

    @classmethod
    def of(cls, error: UsageError) -> ApiError:
        """The answer to a mistake that relaxpy found."""
        help = f" ({error.help})" if error.help else ""
        code = "context_length_exceeded" if error.code == "bad-length" else error.code
        return cls(error.message + help, status=_STATUS.get(error.code, 400), code=code)

    @property
    def type(self) -> str:
        """The kind of the error, by OpenAI's names."""
        return _TYPES.get(self.status, "server_error")

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the answer."""
        if self._headers:
            return self._headers
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.code == "time-limit":
            return {"x-should-retry": "false"}  # their clients send requests again after a 408
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    def openai(self) -> dict[str, Any]:
        """As OpenAI writes it."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic(self) -> dict[str, Any]:
        """As Anthropic writes it."""
        kind = {"server_error": "api_error", "timeout_error": "timeout_error"}.get(
            self.type, self.type
        )
        if self.status == 503:
            kind = "overloaded_error"
        return {"type": "error", "error": {"type": kind, "message": self.message}}
