"""Writes a checkpoint of a model's first layers: `python -m tools.first_layers MODEL 4 /tmp/draft`.

It has the model's own embedding, final norm, output layer and tokenizer, so that it can guess for the model, which
tests and measurements of draft models need. It writes a directory of a directory, and a file of a GGUF file.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from pagewire.checkpoint.resolve import resolve_model
from pagewire.checkpoint.safetensors_index import read_tensor_table

_LAYER_OF_TENSOR = re.compile(r"model\.layers\.(\d+)\.|blk\.(\d+)\.")


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.first_layers", description=__doc__)
    parser.add_argument("model", help="a directory, a GGUF file, a hub id or the packaged model's name")
    parser.add_argument("num_layers", type=int, help="how many layers are kept, from the first on")
    parser.add_argument("path", type=Path, help="the directory or file to write")
    arguments = parser.parse_args(argv)
    try:
        write_first_layers(resolve_model(arguments.model).path, arguments.num_layers, arguments.path)
    except ValueError as error:
        parser.error(str(error))
    print(arguments.path)


def write_first_layers(model: Path, num_layers: int, path: Path) -> Path:
    """Write a model of another one's first layers, and return where it is.

    Args:
        model: a local directory with safetensors, or a GGUF file in one piece.
        num_layers: to keep.
        path: what to write; files of the same names are replaced.

    Raises:
        ValueError: the model has fewer layers.
    """
    if model.is_file():
        from tools.first_layers_gguf import write_gguf  # needs the extra "dev", which directories do without

        write_gguf(model, num_layers, path)
        return path
    path.mkdir(parents=True, exist_ok=True)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    check_number(num_layers, config["num_hidden_layers"])
    config["num_hidden_layers"] = num_layers
    if config.get("layer_types") is not None:
        config["layer_types"] = config["layer_types"][:num_layers]
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for file in model.iterdir():
        is_weight = file.suffix in (".safetensors", ".bin") or file.name.endswith(".safetensors.index.json")
        if file.is_file() and not is_weight and file.name != "config.json":
            shutil.copy(file, path / file.name)
    kept = {}
    for name, location in read_tensor_table(model).items():
        if is_kept(name, num_layers):
            with safe_open(location.path, framework="pt") as opened:
                kept[name] = opened.get_tensor(name)
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    return path


def is_kept(name: str, num_layers: int) -> bool:
    """Say whether a tensor belongs to the first layers, or to none."""
    match = _LAYER_OF_TENSOR.match(name)
    return match is None or int(match[1] or match[2]) < num_layers


def check_number(num_layers: int, num_there: int) -> None:
    """Refuse a number of layers that a model does not have.

    Raises:
        ValueError: naming it.
    """
    if not 1 <= num_layers <= num_there:
        raise ValueError(f"{num_layers} layers of a model that has {num_there}: give 1 to {num_there}")


if __name__ == "__main__":
    main()
