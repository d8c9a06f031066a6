"""Attach to an engine without HTTP: `python examples/embedded_client.py [ADDRESS]`.

`pagewire engine --listen ipc:///tmp/pagewire.sock` runs one.
"""

import asyncio
import sys

from pagewire import AsyncEngineClient, EngineClient, SamplingParams

PROMPT = [504, 3575, 282, 4649, 314]  # token ids: text is the client's own business
PARAMS = SamplingParams(temperature=0, max_tokens=8)


def one_after_the_other(address: str) -> list[int]:
    """Blocking code."""
    with EngineClient(address) as client:
        print("serves", client.info.model, "up to", client.info.max_model_len, "tokens")
        return [token for delta in client.generate(PROMPT, PARAMS) for token in delta.token_ids]


async def several_at_once(address: str) -> list[list[int]]:
    """Code on an event loop; the requests share their steps."""
    async with await AsyncEngineClient.connect(address) as client:

        async def ask(prompt: list[int]) -> list[int]:
            return [token async for delta in client.generate(prompt, PARAMS) for token in delta.token_ids]

        return await asyncio.gather(ask(PROMPT), ask(PROMPT[:3]), ask(PROMPT[:4]))


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "ipc:///tmp/pagewire.sock"
    alone = one_after_the_other(address)
    print(alone)
    together = asyncio.run(several_at_once(address))
    print(together)
    print("the same alone and in company:", together[0] == alone)


if __name__ == "__main__":
    main()
