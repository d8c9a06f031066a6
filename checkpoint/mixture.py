"""What a mixture of experts is: feed-forward blocks among which a router chooses a few for each token."""

from __future__ import annotations

import msgspec

# Far beyond any model. What a damaged file states is checked against it before anything is made per expert.
MAX_EXPERTS = 10_000


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """The mixtures of a model, all alike.

    Attributes:
        num_experts: blocks of each.
        num_chosen: of them, so many compute a token.
        intermediate_size: channels between an expert's projections.
        is_renormalized: a token's weights are those of its experts, divided by their sum; otherwise what the router
            gives each of all experts.
        layers: which layers have a mixture, ascending; the others have one block of the model's intermediate_size.
    """

    num_experts: int
    num_chosen: int
    intermediate_size: int
    is_renormalized: bool
    layers: tuple[int, ...]
