"""Entry point of `python -m bench`: the cost of one and two hops, compared with bare aiohttp."""

import sys

from bench.compare import main

sys.exit(main())
