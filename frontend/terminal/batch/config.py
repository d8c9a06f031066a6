"""What `pagewire run-batch` can be told; flags are made from these fields."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

from ..address import checked_url

STANDARD_STREAM = "-"


class BatchConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The batch: a file of requests, a file of answers."""

    input_file: Annotated[
        str, Meta(description="Requests, a JSON object a line, as OpenAI's batches have them; - for standard input.")
    ]
    output_file: Annotated[str, Meta(description="Where answers go, a line each as they end; - for standard output.")]
    url: Annotated[
        str | None, Meta(description="A server that runs, like http://host:8000, instead of an engine of its own.")
    ] = None
    api_key: Annotated[
        str | None, Meta(description="Bearer key to send. Default: PAGEWIRE_API_KEY, VLLM_API_KEY or OPENAI_API_KEY.")
    ] = None
    max_concurrency: Annotated[int, Meta(ge=1, description="Most requests under way at once.")] = 256
    resume: Annotated[
        bool, Meta(description="Keep the answers that OUTPUT-FILE has, and send the requests without one.")
    ] = False
    overwrite: Annotated[bool, Meta(description="Begin anew, though OUTPUT-FILE has answers.")] = False
    disable_tqdm: Annotated[bool, Meta(description="No progress bar.")] = False

    def __post_init__(self) -> None:
        if self.url is not None:
            checked_url(self.url)
        if self.resume and self.overwrite:
            raise ConfigError("--resume keeps the answers that are there and --overwrite drops them; give one.")
        if self.resume and self.output_file == STANDARD_STREAM:
            raise ConfigError("--resume needs a file with answers: give --output-file FILE.")
