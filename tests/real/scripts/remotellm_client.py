"""Program that asks for everything that RemoteLLM's own client can ask for, and writes the answers as JSON."""

import asyncio
import json
import sys

from remote_llm.client import ClientLLM

HOST, PORT, KEY, *PROMPTS = sys.argv[1:]


async def main() -> None:
    """Ask, and write the answers."""
    client = ClientLLM(HOST, int(PORT), api_key=KEY)
    answer = await client.generate_text(PROMPTS, stop=[])
    result = {
        "name": await client.llm_name(),
        "texts": [[generation.text for generation in prompt] for prompt in answer.generations],
    }
    try:
        guts = await client.generational_guts(PROMPTS[0], response_type="dict")
        result["guts"] = [len(guts["tokens"]), len(guts["generations"])]
    except Exception as error:  # noqa: BLE001 (which class it is, is what is asked)
        result["refused"] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
