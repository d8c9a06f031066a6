"""POST /tokenize and /detokenize."""

from __future__ import annotations

from aiohttp import web

from pagewire.ipc.errors import InvalidRequest

from ..tokenizer.tokenizer import Tokenizer
from .bodies.json_body import JsonBody, json_response
from .bodies.responses import DetokenizeResponse, TokenizeResponse
from .bodies.schema import DetokenizeRequest, TokenizeRequest
from .messages import render_messages
from .serving import SERVING, request_id

_TOKENIZE_BODY = JsonBody(TokenizeRequest)
_DETOKENIZE_BODY = JsonBody(DetokenizeRequest)


async def tokenize(request: web.Request) -> web.Response:
    """Return the token ids of a text, or of messages as the chat endpoint renders them."""
    serving = request.app[SERVING]
    body = await _TOKENIZE_BODY.read(request)
    serving.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("Send either prompt or messages.", param="prompt")
    if body.prompt is not None:
        text, adds_special = body.prompt, body.add_special_tokens is not False
    else:
        # The template prints the begin-of-text token itself.
        text, adds_special = await render_messages(serving.chats, body), bool(body.add_special_tokens)
    token_ids = await serving.encode_prompt(text, add_special_tokens=adds_special)
    spellings: list[str] | None = None
    if body.return_token_strs:
        spell = serving.tokenizer.token_spelling
        spellings = await serving.tokenizer.in_thread(lambda: [spell(token_id) for token_id in token_ids])
    return json_response(
        TokenizeResponse(
            count=len(token_ids),
            max_model_len=serving.info.max_model_len,
            tokens=token_ids,
            token_strs=spellings,
        ),
        request_id(request),
    )


async def detokenize(request: web.Request) -> web.Response:
    """Return the text of token ids, control tokens included."""
    serving = request.app[SERVING]
    body = await _DETOKENIZE_BODY.read(request)
    serving.check_model(body.model)
    serving.check_prompt_size(body.tokens, param="tokens")
    text = await serving.tokenizer.in_thread(lambda: _decode(serving.tokenizer, body.tokens))
    return json_response(DetokenizeResponse(prompt=text), request_id(request))


def _decode(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidRequest(
                f"tokens[{position}] is {token_id}; ids go from 0 to {tokenizer.vocab_size - 1}.",
                param=f"tokens[{position}]",
            )
    return tokenizer.decode(token_ids, skip_special_tokens=False)
