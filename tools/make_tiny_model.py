"""Makes a tiny random checkpoint: `python -m tools.make_tiny_model llama /tmp/tiny` (or `--gguf Q8_0` for a file).

The functions behind it, for tests: `write_hugging_face` and `write_gguf` in tools/tiny_model/.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.spec import FAMILIES, GGUF_TYPES, TinyModelSpec


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        _write(arguments)
    except (ValueError, msgspec.ValidationError) as error:
        parser.error(str(error))
    print(arguments.path)


def _write(arguments: argparse.Namespace) -> None:
    options: dict[str, Any] = {"family": arguments.family}  # Any: each option has its own type
    for option in arguments.set:
        name, _, value = option.partition("=")
        options[name] = _value(value)
    spec = msgspec.convert(options, TinyModelSpec)
    if arguments.gguf is None:
        write_hugging_face(spec, arguments.path)
    else:
        from tools.tiny_model.gguf_writer import write_gguf  # needs the extra "dev", which directories do without

        weights = write_gguf(spec, arguments.path, arguments.gguf, num_shards=arguments.gguf_shards)
        if arguments.reference is not None:
            write_hugging_face(msgspec.structs.replace(spec, dtype="float32"), arguments.reference, weights=weights)


def _parser() -> argparse.ArgumentParser:
    fields = ", ".join(msgspec.structs.asdict(TinyModelSpec()))
    parser = argparse.ArgumentParser(prog="python -m tools.make_tiny_model", description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("path", type=Path, help="the directory (Hugging Face) or file (GGUF) to write")
    parser.add_argument("--gguf", choices=GGUF_TYPES, help="write a GGUF file whose matrices have this type")
    parser.add_argument("--gguf-shards", type=int, default=1, help="split the GGUF file into so many")
    parser.add_argument(
        "--reference", type=Path, help="with --gguf: also write the same (dequantized) weights as a directory"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help=f"one of {fields}; a value is JSON or text"
    )
    return parser


def _value(text: str) -> Any:  # Any: whatever the option takes; TinyModelSpec checks it
    is_json = re.match(r'[\[{"\d-]|true$|false$|null$', text)
    return json.loads(text) if is_json else text


if __name__ == "__main__":
    main()
