"""Errors of the server in the shape of the OpenAI protocol."""

import dataclasses

from ..errors import CancelledError, NumericsError, RequestError, one_line
from ..requests.options import Options


class ServeError(Exception):
    """A request that gets an error as its answer.

    Attributes:
      status: the status code of HTTP.
      message: one sentence that names the problem and the mend.
      param: the field of the request that is wrong, or None.
      code: a word for programs, or None.
      headers: headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = one_line(message)
        self.code = code
        self.headers = headers
        self.param = param and one_line(param)

    def as_dict(self) -> dict:
        """The body of the answer."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class EndedError(CancelledError):
    """The server has ended a request, whose answer is the error ``problem``."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.problem = ServeError(status, message)


def out_of_time(seconds: float | None) -> EndedError:
    """The error of a request that its ``timeout`` has ended."""
    return EndedError(504, f"the request did not end in its timeout of {seconds:g} s; give it more, or ask for less")


_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "service_unavailable_error", 504: "timeout_error"}
_OPTIONS = {field.name for field in dataclasses.fields(Options)}


def error_of(error: Exception) -> ServeError:
    """The server's error for an error of the engine."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, EndedError):
        return error.problem
    message = one_line(error)
    if isinstance(error, RequestError):
        name = message.partition(" ")[0].rstrip(":,")
        return ServeError(400, message, param=name if name in _OPTIONS else None)
    if isinstance(error, CancelledError):
        return ServeError(503, "the request was ended; send it again")
    if isinstance(error, NumericsError):
        return ServeError(500, message, code="numerics")
    return ServeError(500, f"the request failed ({type(error).__name__}: {message[:200]}); send it again")
