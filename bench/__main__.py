"""`python -m bench`: what one and two hops cost, beside bare aiohttp."""

import sys

from bench.compare import main

sys.exit(main())
