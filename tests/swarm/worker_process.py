"""The stand-in worker as a process of its own, so that it can be killed: `python -m tests.swarm.worker_process`."""

import argparse
import asyncio
import signal

from tests.workers.openai_worker import running


async def _serve(faults: dict[str, object]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with running() as worker:
        worker.fail(**faults)
        print(f"ready url={worker.url}", flush=True)
        await ended.wait()


def main() -> None:
    """Serve until SIGTERM; delays are seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-first", type=float, default=0.0)
    parser.add_argument("--delay-between", type=float, default=0.0)
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--finish")
    parser.add_argument("--key", default="")
    parser.add_argument(
        "--calls", nargs=2, action="append", default=[], metavar=("TOOL", "ARGUMENTS")
    )
    asyncio.run(_serve(vars(parser.parse_args())))


if __name__ == "__main__":
    main()
