"""Structs whose callers are people: a field that there is not is named, with the nearest that there is."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from msgspec import StructMeta

from .errors import InvalidRequest


class NamesUnknownFields(StructMeta):
    """Metaclass of a struct that refuses an unknown keyword as a bad value of a known one is refused."""

    if not TYPE_CHECKING:  # checkers know the fields from the struct itself

        def __call__(self, *args: Any, **values: Any) -> Any:  # Any: whatever the struct's fields take
            try:
                return super().__call__(*args, **values)
            except TypeError:
                unknown = [name for name in values if name not in self.__struct_fields__]
                if not unknown:
                    raise
            raise _refusal(self.__name__, unknown[0], self.__struct_fields__)


def _refusal(struct: str, name: str, known: tuple[str, ...]) -> InvalidRequest:
    nearest = get_close_matches(name, known, n=1)
    remedy = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known)}."
    return InvalidRequest(f"{struct} has no {name}; {remedy}", param=name)
