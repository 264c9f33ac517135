"""A node's own record: nothing is published before it is first announced, then what is due and no more."""

from registry import wire
from registry.catalog import Signed
from registry.effects import Publish
from registry.own_record import OwnRecord
from registry.records import Heartbeat, Load, LoadNote, Service, Standing, Version
from registry.settings import RegistrySettings
from tests.strategies import IDENTITIES

A, B = IDENTITIES[:2]
SETTINGS = RegistrySettings()


def voice(*, epoch: int = 1) -> OwnRecord:
    return OwnRecord(A, SETTINGS, epoch=epoch, jitter=lambda: 0.5)


def speaking(*, epoch: int = 1) -> OwnRecord:
    own_record = voice(epoch=epoch)
    own_record.sign_next_version(own_record.own, 0.0)
    return own_record


def said(own_record: OwnRecord, now: float) -> list[Signed | Heartbeat]:
    return [wire.decode(e.frame) for e in own_record.tick(now) if isinstance(e, Publish)]


def test_a_node_that_has_announced_nothing_publishes_nothing() -> None:
    assert said(voice(), 1e9) == []


def test_a_record_gets_the_next_version_and_is_published_after_the_burst() -> None:
    own_record = voice(epoch=7)
    signed = own_record.sign_next_version(own_record.own, 0.0)
    assert signed.record.version == Version(7, 1)
    assert signed in said(own_record, SETTINGS.coalesce)


def test_the_next_heartbeat_is_due_by_the_size_of_the_mesh_as_it_is_now() -> None:
    own_record = speaking()
    assert len(said(own_record, 1.0)) == 2
    # Due a minute later in the mesh of one that it was; ten minutes in the mesh of fifty that it turned out to be.
    assert own_record.tick(2.0, rarity=10.0) == []
    assert own_record.next_due() == 1.0 + 10 * SETTINGS.heartbeat
    assert own_record.tick(1.0 + 2 * SETTINGS.heartbeat, rarity=10.0) == []
    assert len(own_record.tick(1.0 + 2 * SETTINGS.heartbeat, rarity=2.0)) == 1


def test_a_heartbeat_out_of_turn_is_not_put_off_by_a_growing_mesh() -> None:
    own_record = speaking()
    said(own_record, 1.0)
    own_record.schedule_heartbeat(2.0, due_at=3.0)
    assert len(own_record.tick(3.0, rarity=50.0)) == 1


def test_a_draft_changes_what_is_given_and_nothing_else() -> None:
    own_record = speaking()
    draft = own_record.draft(services=[Service("p", "m")], reach=None, standing=Standing.DRAINING)
    assert (draft.services, draft.reach) == ((Service("p", "m"),), own_record.own.reach)
    assert own_record.own.services == ()


def test_a_record_after_a_step_past_a_version_is_newer_than_that_version() -> None:
    own_record = speaking()
    own_record.step_past(Version(9, 9))
    assert own_record.sign_next_version(own_record.own, 1.0).record.version > Version(9, 9)
    own_record.step_past(Version(1, 1))
    assert own_record.own.version > Version(9, 9)


LLAMA, QWEN = Service("p", "llama"), Service("p", "qwen")


def test_a_load_takes_the_next_beat_number_and_names_replicas_by_their_place() -> None:
    own_record = voice()
    own_record.sign_next_version(
        own_record.draft(services=[QWEN, LLAMA], reach=None, standing=None), 0.0
    )
    [*_, heartbeat] = said(own_record, SETTINGS.coalesce)
    assert isinstance(heartbeat, Heartbeat)
    [publish] = own_record.publish_load({LLAMA: Load(3)}, 1.0)
    assert isinstance(publish, Publish)
    rows = ((1, Load(3)),)
    expected = LoadNote(A.peer, own_record.own.version, heartbeat.beat + 1, rows)
    assert wire.decode(publish.frame) == expected


def test_no_load_is_reported_before_the_record_that_names_the_replicas_is_published() -> None:
    own_record = voice()
    assert own_record.publish_load({LLAMA: Load(3)}, 0.0) == []
    own_record.sign_next_version(own_record.draft(services=[LLAMA], reach=None, standing=None), 0.0)
    assert own_record.publish_load({LLAMA: Load(3)}, 0.0) == []
    said(own_record, SETTINGS.coalesce)
    assert own_record.publish_load({LLAMA: Load(3)}, SETTINGS.coalesce)


def test_no_load_is_reported_of_a_replica_that_the_record_does_not_name() -> None:
    own_record = speaking()
    said(own_record, SETTINGS.coalesce)
    assert own_record.publish_load({LLAMA: Load(3)}, 1.0) == []
