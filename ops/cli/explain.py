"""`m4ops explain`: what a kind of finding means, from the catalogue."""

from __future__ import annotations

import click

from ops.cli import session
from ops.cli.session import json_option


@click.command()
@click.argument("kind", required=False)
@json_option
def explain(kind: str | None, as_json: bool) -> None:
    """What a finding or a reason of Slurm's means, how to make sure, what to do, and who says so.

    KIND as m4ops check names it (loss-nan), or a reason as squeue names it (BadConstraints). Without KIND: all kinds.
    """
    import json

    from msgspec import to_builtins

    from ops.catalogue import kinds, waiting
    from ops.views.explain import kind_text, list_text

    known = kinds()
    shown = list(known.values()) if kind is None else [waiting(kind) or known[_near(kind, list(known))]]
    if as_json:
        plain = [{**to_builtins(k), "severity": k.severity.name} for k in shown]
        return session.out(json.dumps(plain if kind is None else plain[0], indent=2, ensure_ascii=False))
    text = list_text(shown, session.color(), session.width()) if kind is None else ""
    session.out(text or kind_text(shown[0], session.color(), session.width()))


def _near(kind: str, known: list[str]) -> str:
    """The kind that is meant: capitals do not matter, and a code of NVIDIA's that is not known is an `xid`.

    Raises BadInput with the names that are like it.
    """
    import re

    kind = kind.strip().lower()
    if kind in known:
        return kind
    if re.fullmatch(r"xid[- ]?\d+", kind):
        return next((name for name in known if name == f"xid-{kind[3:].strip('- ')}"), "xid")
    import difflib

    from ops.errors import BadInput

    like = difflib.get_close_matches(kind, known, n=3)
    hint = f"did you mean {' or '.join(like)}?" if like else "m4ops explain lists them"
    raise BadInput(f"no kind of finding is called {kind}", hint=hint)
