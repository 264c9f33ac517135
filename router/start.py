"""Start of a request: chosen and sent at once if it need not wait."""

from collections.abc import Mapping

from router.answer import Answer
from router.attempt import Attempt
from router.choice import Choosing
from router.desk import Desk, as_asked
from router.dialects import Dialect, Starter
from router.requests import Request
from router.select.policy import Policy
from router.settings import RouterSettings
from router.slot_lending import needs_slot


class _Starters(dict[str, Starter | None]):
    """The dialects that send requests at once, by name; `None` for one that cannot."""

    def __init__(self, dialects: Mapping[str, Dialect]) -> None:
        super().__init__()
        self._dialects = dialects

    def __missing__(self, name: str) -> Starter | None:
        dialect = self._dialects.get(name)
        self[name] = starter = dialect if isinstance(dialect, Starter) else None
        return starter


class Starting:
    """Starts first attempts."""

    def __init__(
        self, desk: Desk, choosing: Choosing, policy: Policy, settings: RouterSettings
    ) -> None:
        self._desk = desk
        self._choosing = choosing
        self._policy = policy
        self._second_attempts = settings.attempts > 1
        self._max_answer_bytes = settings.max_answer_bytes
        self._starters = _Starters(desk.dialects)

    def start(self, request: Request) -> Attempt | None:
        """Choose a candidate, and send the request now if that is possible; see `Router.start`."""
        ordered = self._choosing.at_once(request)
        if ordered is None:
            return None
        desk, candidate = self._desk, ordered[0]
        # The process that lends slots has to be asked for one.
        if desk.ledger.lent is not None and needs_slot(candidate):
            return None
        self._policy.begun(request)
        others = ordered[1:] if self._second_attempts else ()
        attempt = Attempt(desk, request, candidate, number=1, others=others, holds_slot=False)
        starter, asked = self._starters[candidate.dialect], request
        if others or attempt.trace is not None:
            asked = as_asked(attempt)
        call = None if starter is None else starter.prepare(asked, candidate)
        connection = None if call is None else call.place.idle()
        # Booked at once, so that the next choice counts this attempt.
        attempt.begin()
        desk.ledger.asked(attempt.began)
        if call is not None and connection is not None:
            if candidate.in_flight:
                desk.discover_slots(attempt)
            attempt.reply = connection.begin(call.head, call.body, call.place.batch)
        return attempt

    def whole(self, first: Attempt) -> Answer | None:
        """Return the answer, if it has come in one piece and only needs to be passed on."""
        starter, reply = self._starters[first.candidate.dialect], first.reply
        if starter is None or reply is None:
            return None
        answer = starter.whole(first.candidate, reply)
        if answer is None or len(answer.first) > self._max_answer_bytes:
            return None
        return answer
