"""Start of a request: chosen and sent at once if it need not wait."""

from router.attempt import Attempt
from router.choice import Choosing
from router.desk import Desk, as_asked
from router.dialects import Answer, Starter
from router.policies import Policy
from router.requests import Request
from router.select.candidates import Candidate
from router.settings import RouterSettings


class Starting:
    """Starts first attempts."""

    def __init__(
        self, desk: Desk, choosing: Choosing, policy: Policy, settings: RouterSettings
    ) -> None:
        self._desk = desk
        self._choosing = choosing
        self._policy = policy
        self._settings = settings
        self._starters: dict[str, Starter | None] = {}

    def start(self, request: Request) -> Attempt | None:
        """Choose whom to ask, and send the request now where that can be done; see `Router.start`."""
        ordered = self._choosing.at_once(request)
        if ordered is None:
            return None
        self._policy.begun(request)
        desk, candidate = self._desk, ordered[0]
        desk.ledger.asked()
        others = tuple(ordered[1:]) if self._settings.attempts > 1 else ()
        attempt = Attempt(desk, request, candidate, number=1, others=others, holds_slot=False)
        starter = self._starter(candidate)
        call = None if starter is None else starter.prepare(as_asked(attempt), candidate)
        connection = None if call is None else call.place.idle()
        # Whoever is chosen next is chosen by books that have this one.
        attempt.begin()
        if call is not None and connection is not None:
            desk.inquire(attempt)
            attempt.reply = connection.begin(call.head, call.body)
        return attempt

    def whole(self, first: Attempt) -> Answer | None:
        """Return the answer that has come, if it came in one piece and only needs to be passed on."""
        starter, reply = self._starter(first.candidate), first.reply
        if starter is None or reply is None:
            return None
        answer = starter.whole(first.candidate, reply)
        short = answer is not None and len(answer.first) <= self._settings.max_answer_bytes
        return answer if short else None

    def _starter(self, candidate: Candidate) -> Starter | None:
        """Return what sends requests to a candidate at once, if its dialect can."""
        name = candidate.dialect
        if name not in self._starters:
            dialect = self._desk.dialects.get(name)
            self._starters[name] = dialect if isinstance(dialect, Starter) else None
        return self._starters[name]
