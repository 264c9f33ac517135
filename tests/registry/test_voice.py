"""What we say: nothing before the first word, then what is due and no more."""

from registry import wire
from registry.catalog import Signed
from registry.effects import Publish
from registry.records import Heartbeat, Service, Standing, Version
from registry.settings import RegistrySettings
from registry.voice import Voice
from tests.strategies import IDENTITIES

A, B = IDENTITIES[:2]
SETTINGS = RegistrySettings()


def voice(*, epoch: int = 1) -> Voice:
    return Voice(A, SETTINGS, epoch=epoch, jitter=lambda: 0.5)


def speaking(*, epoch: int = 1) -> Voice:
    one = voice(epoch=epoch)
    one.speak(one.own, 0.0)
    return one


def said(one: Voice, now: float) -> list[Signed | Heartbeat]:
    return [wire.decode(e.frame) for e in one.tick(now) if isinstance(e, Publish)]


def test_who_has_said_nothing_says_nothing() -> None:
    assert said(voice(), 1e9) == []


def test_a_word_is_said_with_the_next_version_and_published_after_the_burst() -> None:
    one = voice(epoch=7)
    signed = one.speak(one.own, 0.0)
    assert signed.record.version == Version(7, 1)
    assert signed in said(one, SETTINGS.coalesce)


def test_a_draft_changes_what_is_given_and_nothing_else() -> None:
    one = speaking()
    draft = one.draft(services=[Service("p", "m")], reach=None, standing=Standing.DRAINING)
    assert (draft.services, draft.reach) == ((Service("p", "m"),), one.own.reach)
    assert one.own.services == ()


def test_a_word_after_a_step_past_a_version_is_newer_than_it() -> None:
    one = speaking()
    one.step_past(Version(9, 9))
    assert one.speak(one.own, 1.0).record.version > Version(9, 9)
    one.step_past(Version(1, 1))
    assert one.own.version > Version(9, 9)
