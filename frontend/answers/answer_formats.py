"""How one model writes calls and reasoning: seen from its chat template and its vocabulary, or said by flags."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..tokenizer.tokenizer import Tokenizer
from .reasoning import CLOSE_TAG, OPEN_TAG, ReasoningSplitter
from .tool_parsers.formats import TAGS, ToolFormat, find_format

logger = logging.getLogger(__name__)


class ReasoningFormat(enum.Enum):
    """How a model reasons; its value is the name of the flag --reasoning-parser.

    QWEN3 opens its think block itself, or the template does, or there is none. DEEPSEEK_R1 never writes the opening
    tag: all before the closing one is reasoning, unless the prompt has closed the block already.
    """

    QWEN3 = "qwen3"
    DEEPSEEK_R1 = "deepseek_r1"


class Thinking(enum.Enum):
    """Whether an answer begins with reasoning."""

    NONE = enum.auto()  # the prompt has closed the block, or the model has none
    POSSIBLE = enum.auto()  # the model may open one
    OPEN = enum.auto()  # it is open already


@dataclass(frozen=True, kw_only=True)
class AnswerFormats:
    """How the answers of one model are read.

    Attributes:
        tools: the format of its calls; None if it isn't known.
        reasoning: the format of its reasoning; None if it has none.
        special_ids: tag -> token id, of those tags that are control tokens of its vocabulary.
        reasoning_end_id: the token that closes a think block; None if it takes several.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    special_ids: Mapping[str, int] = field(default_factory=dict)
    reasoning_end_id: int | None = None

    def thinking(self, prompt: str, *, begins_answer: bool = True) -> Thinking:
        """Return whether the answer to a prompt begins with reasoning; one that goes on may go on with it."""
        if self.reasoning is None:
            return Thinking.NONE
        if not begins_answer:
            return Thinking.OPEN if prompt.rfind(OPEN_TAG) > prompt.rfind(CLOSE_TAG) else Thinking.NONE
        end = prompt.rstrip()
        if end.endswith(CLOSE_TAG):
            return Thinking.NONE
        if end.endswith(OPEN_TAG) or self.reasoning is ReasoningFormat.DEEPSEEK_R1:
            return Thinking.OPEN
        return Thinking.POSSIBLE

    def is_special(self, tool_format: ToolFormat | None, thinking: Thinking) -> bool:
        """Whether tags that are to be read are control tokens, which must stay in the text then."""
        tags = () if tool_format is None else TAGS[tool_format]
        if thinking is not Thinking.NONE:
            tags = (*tags, OPEN_TAG, CLOSE_TAG)
        return any(tag in self.special_ids for tag in tags)


def splitter(thinking: Thinking, *, shows: bool) -> ReasoningSplitter | None:
    """Return what takes the reasoning off one answer."""
    if thinking is Thinking.NONE:
        return None
    return ReasoningSplitter(starts_inside=thinking is Thinking.OPEN, shows=shows)


def find_formats(
    template: str | None, tokenizer: Tokenizer, *, tool_parser: str = "auto", reasoning_parser: str = "auto"
) -> AnswerFormats:
    """Return how a model's answers are read.

    Args:
        template: its chat template.
        tokenizer: its vocabulary.
        tool_parser: the name of a format, "auto" to look at the template, or "none".
        reasoning_parser: the same for reasoning.
    """
    tags = sorted({OPEN_TAG, CLOSE_TAG, *(tag for tags in TAGS.values() for tag in tags)})
    ids = {tag: token_id for tag in tags if (token_id := tokenizer.id_of(tag)) is not None}
    return AnswerFormats(
        tools=_tool_format(template, tool_parser),
        reasoning=_reasoning_format(template, reasoning_parser),
        special_ids={tag: token_id for tag, token_id in ids.items() if token_id in tokenizer.special_token_ids},
        reasoning_end_id=ids.get(CLOSE_TAG),
    )


def _tool_format(template: str | None, name: str) -> ToolFormat | None:
    if name == "none":
        return None
    if name == "auto":
        return find_format(template)
    if template is None or "tools" not in template:
        logger.warning(
            "--tool-call-parser %s: the chat template prints no tools, so that the model isn't told of them", name
        )
    return ToolFormat(name)


def _reasoning_format(template: str | None, name: str) -> ReasoningFormat | None:
    if name not in ("auto", "none"):
        return ReasoningFormat(name)
    if name == "none" or template is None or CLOSE_TAG not in template:
        return None
    return ReasoningFormat.QWEN3 if OPEN_TAG in template else ReasoningFormat.DEEPSEEK_R1
