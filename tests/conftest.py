"""How hard do properties try? Few examples at the desk, more where nobody waits; the same ones every time."""

import os

from hypothesis import HealthCheck, settings

# Reproducible: a change that breaks a law fails here every time, and no run fails for another reason.
_COMMON = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("desk", _COMMON, max_examples=60)
settings.register_profile("ci", _COMMON, max_examples=300)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
