"""List the models of all nodes.

One line for each model, as the node sees the mesh now, without nodes that are lost or have left. CONTEXT is the maximum number
of tokens of a request, TAKES lists input modalities; both are shown if the workers or operators gave them. HEALTH is that of the
node's own workers.

Examples:
  modelvine models
  modelvine models --json
  modelvine models --node http://127.0.0.1:6200
  modelvine models --node gpu7
"""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from node.cli.console.options import add_json, add_node_options, add_wide


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_node_options(parser, about="the models of that node")
    add_wide(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the models."""
    from node.cli.console.node_lookup import client_and_node, node_called  # noqa: PLC0415
    from node.cli.console.text import say_json, say_table  # noqa: PLC0415
    from node.cli.console.worker_options import TYPES  # noqa: PLC0415

    node, name = client_and_node(arguments)
    nodes = node.get("/api/v1/catalog", holds="nodes")["nodes"]
    models = _grouped([node_called(nodes, name)] if name else nodes)
    if arguments.json:
        say_json(models)
        return 0
    say_table(
        ("MODEL", "TYPE", "CONTEXT", "TAKES", "NODES", "REPLICAS", "HEALTH"),
        (
            (
                f"{m['project']}/{m['model']}",
                _named(m["type"], TYPES),
                f"{m['context']:,}" if m["context"] else "-",
                ", ".join(m["takes"]) or "-",
                len(m["nodes"]),
                m["replicas"],
                "; ".join(m["health"]) or "-",
            )
            for m in models
        ),
        none="no models yet: register one with `modelvine register PROJECT MODEL URL`",
        wide=arguments.wide,
    )
    return 0


def _grouped(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turn each node's services into each model's nodes, in the order of their names."""
    models: dict[tuple[str, str, int], list[tuple[str, dict[str, Any]]]] = {}
    for node in nodes:
        for service in node["services"]:
            key = service["project"], service["model"], service["type"]
            models.setdefault(key, []).append((node["node"], service))
    return [
        {
            "project": project,
            "model": model,
            "type": kind,
            # As reported by their workers: the longest context, and every modality that any of them takes.
            "context": max(service.get("context") or 0 for _, service in replicas),
            "takes": list(
                dict.fromkeys(w for _, s in replicas for w in s.get("input_modalities", []))
            ),
            "nodes": sorted({node for node, _ in replicas}),
            "replicas": len(replicas),
            # Health of the queried node's own workers.
            "health": list(dict.fromkeys(s["health"] for _, s in replicas if "health" in s)),
        }
        for (project, model, kind), replicas in sorted(models.items())
    ]


def _named(kind: int, names: tuple[str, ...]) -> str:
    """Return the name of a type; a newer node may have types that are unknown here."""
    return names[kind] if 0 <= kind < len(names) else str(kind)
