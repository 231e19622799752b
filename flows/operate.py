"""What an operator does by hand: look at nights, promote, roll back, migrate."""

import argparse
import getpass

from components.errors import PromotionRefused
from components.records import NightSummary
from components.serial import load
from flows import policies, promotion
from flows.ingest import has_new_logs
from flows.nights import check_night
from flows.report import render
from flows.resources import Resources, open_resources
from flows.settings import Settings
from store import cases, ledger, nights, promotions
from store.db import upgrade


def status(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`nightshift status`: what ran, what runs, what waits for a person."""
    with open_resources(settings) as r:
        with r.db.connect() as conn:
            recent = nights.recent(conn, settings.agent, 5)
            rows = ledger.of_night(conn, settings.agent, recent[0].night) if recent else []
            waiting = cases.count(conn, cases.CaseFilter(agent=settings.agent, verdict="open"))
        registry = policies.registry_of(r)
        print(f"agent {settings.agent}, home {settings.home}")
        for alias in ("champion", "challenger", "previous"):
            found = registry.resolve(settings.agent, alias)
            print(f"  {alias:<11}{f'version {found.version}' if found else 'none'}")
        print(f"  new logs   {'yes' if has_new_logs(r) else 'no'}")
        print(f"  {waiting} failure cases wait for review")
        for night in recent:
            print(f"night {night.night}: {night.status}")
        for row in rows:
            seconds = f"{row.seconds:.1f} s" if row.seconds is not None else "running"
            print(f"  {row.stage:<10}{row.status:<8}{seconds}  {row.cause or ''}")
    return 0


def report(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift report`: the report of a night, the last one by default."""
    with open_resources(settings) as r, r.db.connect() as conn:
        if arguments.night:
            row = nights.get(conn, settings.agent, check_night(arguments.night))
        else:
            row = next(iter(nights.recent(conn, settings.agent, 1)), None)
    if row is None or not row.summary:
        print("No such night has finished. `nightshift day && nightshift night` makes one.")
        return 1
    print(render(row.night, settings.agent, load(NightSummary, row.summary)))
    return 0


def promote(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift promote`: the challenger (or a version by number) becomes the champion."""
    with open_resources(settings) as r:
        number = arguments.version or _offered(r)
        if not arguments.override:
            promotion.check_gate(r, number)
        print(promotion.ask(r, _wish(r, "promote", number, arguments)))
    return 0


def _offered(r: Resources) -> str:
    offered = policies.registry_of(r).resolve(r.settings.agent, "challenger")
    if offered is None:
        raise PromotionRefused(
            "no challenger waits: the last night offered none. Give --version and --override to "
            "promote a version that the gate refused"
        )
    return offered.version


def rollback(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift rollback`: the previous champion serves again."""
    with open_resources(settings) as r:
        print(promotion.ask(r, _wish(r, "rollback", None, arguments)))
    return 0


def _wish(
    r: Resources, action: promotions.Action, number: str | None, arguments: argparse.Namespace
) -> promotions.Wish:
    champion = policies.registry_of(r).resolve(r.settings.agent, "champion")
    return promotions.Wish(
        agent=r.settings.agent,
        action=action,
        from_version=champion.version if champion else None,
        to_version=number,
        actor=arguments.actor or getpass.getuser(),
        reason=arguments.reason,
    )


def db(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`nightshift db upgrade`: apply the migrations that the store lacks."""
    with open_resources(settings) as r, r.db.connect() as conn:
        made = upgrade(conn)
    print(f"applied: {', '.join(made)}" if made else "the store is up to date")
    return 0
