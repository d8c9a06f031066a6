"""What a request says about the form of its answer, in any of the spellings in use -> `StructuredOutputs`."""

from __future__ import annotations

import logging

from msgspec import to_builtins

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import StructuredOutputs

from .bodies.schema import GenerationRequest
from .bodies.tool_bodies import ResponseFormat

logger = logging.getLogger(__name__)

# vLLM's removed fields, to those of structured_outputs.
_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
# Any of these constrains answers to the same language.
_BACKENDS = ("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer")


def asked_format(request: GenerationRequest) -> StructuredOutputs | None:
    """Return what the answer must look like; None: anything.

    Raises:
        InvalidRequest: two fields say it, or one says it wrongly.
    """
    given = [name for name in ("response_format", "structured_outputs", *_GUIDED) if getattr(request, name) is not None]
    _check_backend(request)
    if request.response_format is not None and request.response_format.type == "text":
        _check_only_type(request.response_format)
        given.remove("response_format")
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(given)} contradict each other; send one of them.", param=given[1])
    if not given:
        return None
    if given == ["response_format"]:
        assert request.response_format is not None
        return _read_response_format(request.response_format)
    if given == ["structured_outputs"]:
        return request.structured_outputs
    logger.debug("%s is taken for structured_outputs.%s", given[0], _GUIDED[given[0]])
    return StructuredOutputs(**{_GUIDED[given[0]]: getattr(request, given[0])})


def _check_backend(request: GenerationRequest) -> None:
    backend = request.guided_decoding_backend
    if backend is not None and backend not in _BACKENDS:
        raise InvalidRequest(
            f"guided_decoding_backend must be one of {', '.join(_BACKENDS)}, or left out; got {backend[:100]!r}.",
            param="guided_decoding_backend",
        )
    if request.guided_whitespace_pattern is not None:
        raise InvalidRequest(
            "guided_whitespace_pattern is not supported: JSON is written with one space after a comma and a colon.",
            param="guided_whitespace_pattern",
        )


def _read_response_format(asked: ResponseFormat) -> StructuredOutputs:
    match asked.type:
        case "json_object":
            if asked.schema is not None:
                return StructuredOutputs(json=asked.schema)
            _check_only_type(asked)
            return StructuredOutputs(json_object=True)
        case "json_schema":
            if asked.json_schema is None or asked.json_schema.schema is None:
                raise InvalidRequest(
                    "response_format of type json_schema needs json_schema.schema.",
                    param="response_format.json_schema",
                )
            return StructuredOutputs(json=asked.json_schema.schema)
        case "structural_tag":
            fields = {name: value for name, value in to_builtins(asked).items() if value is not None}
            return StructuredOutputs(structural_tag=fields)
        case _:
            raise InvalidRequest(
                "response_format.type must be text, json_object, json_schema or structural_tag; "
                f"got {asked.type[:100]!r}.",
                param="response_format.type",
            )


def _check_only_type(asked: ResponseFormat) -> None:
    for name in asked.__struct_fields__:
        if name != "type" and getattr(asked, name) is not None:
            raise InvalidRequest(
                f"response_format.{name} says nothing with type {asked.type}.", param=f"response_format.{name}"
            )
