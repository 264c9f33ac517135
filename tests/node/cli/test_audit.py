"""`modelvine audit`: what was changed, for people and machines, and whether the chains are whole."""

import json
from dataclasses import asdict, replace

import pytest

from node.auth.audit import NOTHING, AuditEntry, chained
from tests.node.cli.stand_in import PEER, Said

AUDIT = "GET_/api/v1/audit"


def chain(length=3):
    rows, before = [], NOTHING
    for number in range(1, length + 1):
        entry = AuditEntry(PEER, number, 1_790_000_000.0 + number, "ann", "drain", "", before)
        before = chained(entry)
        rows.append(asdict(replace(entry, hash=before)))
    return rows


def test_entries_are_a_table(modelvine, node):
    node(**{AUDIT: Said({"audit": chain()})})
    head, first, *_ = modelvine("audit").out.splitlines()
    assert head.split() == ["WHEN", "NODE", "WHO", "WHAT"]
    shown, *rest = first.split()[2:]
    assert rest == ["ann", "drain"]
    # What `--node` and `x-modelvine-node` take.
    assert PEER.startswith(shown.removesuffix("…"))


def test_json_output_has_every_field_of_each_entry(modelvine, node):
    server = node(**{AUDIT: Said({"audit": chain()})})
    assert json.loads(modelvine("audit", "--number", "7", "--json").out) == chain()
    assert server.heard[0].path.endswith("?number=7")


def test_an_intact_chain_is_reported_with_its_last_hash(modelvine, node):
    node(**{AUDIT: Said({"audit": chain()})})
    ended = modelvine("audit", "--verify")
    assert ended.code == 0
    assert (
        ended.out
        == f"3 entries: none was changed, none is missing; the last hash is {chain()[-1]['hash']}\n"
    )


@pytest.mark.parametrize("how", ["changed", "missing"])
def test_a_broken_chain_fails_and_says_where(modelvine, node, how):
    rows = chain()
    if how == "changed":
        rows[1]["who"] = "bob"
    else:
        del rows[1]
    node(**{AUDIT: Said({"audit": rows})})
    ended = modelvine("audit", "--verify")
    assert (ended.code, how in ended.out) == (1, True)
    assert json.loads(modelvine("audit", "--verify", "--json").out)["faults"]


def test_an_empty_audit_log_says_that_nothing_was_changed(modelvine, node):
    node(**{AUDIT: Said({"audit": []})})
    assert modelvine("audit").out == "no changes yet\n"
    assert modelvine("audit", "--verify").out == "0 entries: none was changed, none is missing\n"


def test_an_invalid_entry_and_a_negative_number_are_refused(modelvine, node):
    node(**{AUDIT: Said({"audit": [{"who": "ann"}]})})
    assert modelvine("audit", "--verify").code == 1
    assert modelvine("audit", "--number", "-1").code == 2
    assert modelvine("audit", "--number", "0").code == 2
