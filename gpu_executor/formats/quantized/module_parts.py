"""The stored tensors of one quantized layer, by what they are called there; each is taken once."""

from __future__ import annotations

from pagewire.ipc.errors import ConfigError

from ..safetensors import SafetensorsTensor


class ModuleParts:
    """Hands a layer's tensors to whoever reads its packing; what is left over is no part of it.

    Args:
        module: name of the layer ("model.layers.0.mlp.down_proj").
        location: the checkpoint's directory, for error texts.
        tensors: the layer's tensors by the last part of their names ("qweight").
    """

    def __init__(self, module: str, location: str, tensors: dict[str, SafetensorsTensor]) -> None:
        self.module = module
        self._location = location
        self._tensors = dict(tensors)

    def take(self, name: str) -> SafetensorsTensor:
        """Return a tensor that the packing can't do without.

        Raises:
            ConfigError: if the checkpoint lacks it.
        """
        tensor = self.take_optional(name)
        if tensor is None:
            raise ConfigError(f"{self._location}: the checkpoint lacks {self.module}.{name}")
        return tensor

    def take_optional(self, name: str) -> SafetensorsTensor | None:
        """Return a tensor if it is there."""
        return self._tensors.pop(name, None)

    def rest(self) -> list[SafetensorsTensor]:
        """Return what has not been taken."""
        return list(self._tensors.values())


def check_shape(tensor: SafetensorsTensor, *shapes: tuple[int, ...]) -> None:
    """Compare a tensor's shape with those that its layer allows.

    Raises:
        ConfigError: if it has none of them.
    """
    if tensor.shape not in shapes:
        allowed = " or ".join(str(list(shape)) for shape in shapes)
        raise ConfigError(
            f"{tensor.source}: has shape {list(tensor.shape)}, the layer and its quantization_config ask for {allowed}"
        )


def check_dtype(tensor: SafetensorsTensor, *dtypes: str) -> None:
    """Compare a tensor's stored type, by its name in the file ("I32"), with those that its format allows.

    Raises:
        ConfigError: if it has none of them.
    """
    if tensor.stored_as not in dtypes:
        raise ConfigError(
            f"{tensor.source}: is stored as {tensor.stored_as}; the format asks for {' or '.join(dtypes)}"
        )
