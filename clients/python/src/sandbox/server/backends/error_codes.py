"""The numbers in an answer's `code`."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """4xxx is the caller's to mend, 5xxx is not. The order is AgentFlow's."""

    SUCCESS = 0
    INVALID_INPUT = 4000
    EXECUTION_ERROR = 5000
    INVALID_REQUEST_FORMAT = 4002
    MISSING_REQUIRED_FIELD = 4003
    INVALID_PARAMETER_TYPE = 4004
    INVALID_URL_FORMAT = 4005
    NO_RESULTS_FOUND = 4006
    RESOURCE_NOT_INITIALIZED = 4007
    BUSINESS_FAILURE = 4001
    API_KEY_NOT_CONFIGURED = 5002
    API_REQUEST_FAILED = 5003
    API_RESPONSE_PARSE_ERROR = 5004
    UNEXPECTED_ERROR = 5005
    TIMEOUT_ERROR = 5006
    CRAWLING_ERROR = 5007
    SUMMARIZATION_ERROR = 5008
    ALL_REQUESTS_FAILED = 5009
    PARTIAL_FAILURE = 5010
    BACKEND_NOT_INITIALIZED = 5011
    DEPENDENCY_FAILURE = 5012
    INTERNAL_ERROR = 5013


_MESSAGES = {
    ErrorCode.SUCCESS: "success",
    ErrorCode.INVALID_INPUT: "the input is not valid",
    ErrorCode.EXECUTION_ERROR: "the tool failed",
    ErrorCode.INVALID_REQUEST_FORMAT: "the request is not well formed",
    ErrorCode.MISSING_REQUIRED_FIELD: "a required field is missing",
    ErrorCode.INVALID_PARAMETER_TYPE: "a parameter has the wrong type",
    ErrorCode.INVALID_URL_FORMAT: "the URL is not well formed",
    ErrorCode.NO_RESULTS_FOUND: "nothing was found",
    ErrorCode.RESOURCE_NOT_INITIALIZED: "the resource is not initialized",
    ErrorCode.BUSINESS_FAILURE: "the tool could not do what was asked",
    ErrorCode.API_KEY_NOT_CONFIGURED: "no API key is configured",
    ErrorCode.API_REQUEST_FAILED: "the request to the API failed",
    ErrorCode.API_RESPONSE_PARSE_ERROR: "the answer of the API could not be read",
    ErrorCode.UNEXPECTED_ERROR: "an unexpected error",
    ErrorCode.TIMEOUT_ERROR: "the time was up",
    ErrorCode.CRAWLING_ERROR: "the page could not be fetched",
    ErrorCode.SUMMARIZATION_ERROR: "the page could not be summarized",
    ErrorCode.ALL_REQUESTS_FAILED: "all requests failed",
    ErrorCode.PARTIAL_FAILURE: "some requests failed",
    ErrorCode.BACKEND_NOT_INITIALIZED: "the backend is not initialized",
    ErrorCode.DEPENDENCY_FAILURE: "a service that the tool needs failed",
    ErrorCode.INTERNAL_ERROR: "an internal error",
}


def get_error_message(code: ErrorCode, details: str = "") -> str:
    message = _MESSAGES.get(code, f"error {int(code)}")
    return f"{message}: {details}" if details else message
