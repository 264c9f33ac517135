"""Samples of queues and refusals of the last hour: which reports count, and which do not."""

from node.auth.usage_history import BUCKET, UsageHistory
from node.observe.queue_samples import FRESH, QueueSamples
from node.observe.recent import RecentRequests
from registry.records import Load, PeerId, Service
from router.state.remote_load import Report, Reports
from tests.node.auth.test_usage_history import Time, row

OWN, OTHER = PeerId("own"), PeerId("other")
TINY, LARGE = Service("p", "tiny"), Service("p", "large")


class Workers:
    def __init__(self):
        self.loads = {}

    def busy(self):
        return dict(self.loads)


class Scene:
    def __init__(self):
        self.time = Time()
        self.history, self.workers, self.reports = UsageHistory(self.time), Workers(), Reports()
        self.recent = RecentRequests(self.time)
        self.samples = QueueSamples(
            self.history,
            self.recent,
            own=OWN,
            busy=self.workers,
            reports=self.reports,
            now=self.time,
        )

    def hear(self, service, queued):
        self.reports.hear(OTHER, service, Report(Load(1, queued), 0, self.time.now))


def test_the_longest_queue_of_each_bucket_is_kept():
    scene = Scene()
    for queued in (2, 5, 0):
        scene.workers.loads = {TINY: Load(1, queued)}
        scene.samples.look()
    scene.time.now += BUCKET
    scene.workers.loads = {TINY: Load(1, 3)}
    scene.samples.look()
    assert [one.queued for one in scene.history.buckets("tiny", OWN)[-2:]] == [5, 3]
    assert scene.history.total("tiny", OWN).queued == 5
    assert scene.history.total("tiny", OWN).requests == 0


def test_a_report_of_another_node_counts_while_fresh_and_only_for_models_asked_here():
    scene = Scene()
    scene.history.add(row("tiny", OTHER))
    scene.hear(TINY, 4)
    scene.hear(LARGE, 9)
    scene.samples.look()
    assert scene.history.total("tiny", OTHER).queued == 4
    assert scene.history.pairs() == [("tiny", OTHER)]
    scene.hear(TINY, 8)
    scene.time.now += FRESH + 1
    scene.samples.look()
    assert scene.history.total("tiny", OTHER).queued == 4


def test_refusals_are_counted_once():
    scene = Scene()
    scene.recent.refused["tiny", OTHER] += 2
    scene.samples.look()
    scene.samples.look()
    assert scene.history.total("tiny", OTHER).refused == 2
    assert scene.history.buckets("tiny", OTHER)[-1].refused == 2


def test_a_model_name_that_a_caller_made_up_is_not_kept():
    scene = Scene()
    scene.workers.loads = {TINY: Load(1, 0)}
    scene.recent.refused["tiny", OWN] += 1
    scene.recent.refused["made up", OWN] += 1
    scene.samples.look()
    assert scene.history.pairs() == [("tiny", OWN)]
