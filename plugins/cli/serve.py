"""``rerail serve``: programs that stay and answer.

``extender`` lets Volcano ask before it evicts a training gang; ``drains`` empties nodes for other healers.
"""

import logging
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rerail.plugins.cli.evict import positive_s
from rerail.policies.errors import RefusedError, UsageError
from rerail.policies.starvation import STARVE_S

serve = typer.Typer(
    name="serve", help="Programs that stay and answer.", no_args_is_help=True, rich_markup_mode="markdown"
)


class Print(StrEnum):
    """What is printed instead of serving."""

    MANIFESTS = "manifests"
    NETWORK_POLICY = "network-policy"
    SCHEDULER_CONF = "scheduler-conf"


def register(app: typer.Typer) -> None:
    """Add ``serve`` to the ``rerail`` command."""
    app.add_typer(serve, name="serve")


@serve.callback()
def _serve() -> None:
    """Programs that stay and answer."""


@serve.command("extender")
def extender(
    *,
    listen: Annotated[
        str, typer.Option("--listen", help="HOST:PORT. Nobody has to log in: do not open it to others.")
    ] = "127.0.0.1:8765",
    hold_s: Annotated[
        float, typer.Option("--hold-s", help="The most that an evictor waits for one gang's save, in seconds.")
    ] = 120.0,
    locks: Annotated[
        bool, typer.Option("--locks", help="Also open preemption locks (rerail.dev/preemption-lock) for who starves.")
    ] = False,
    starve_s: Annotated[
        float, typer.Option("--starve-s", help="With --locks: how long a PodGroup waits for room before it starves.")
    ] = STARVE_S,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="[default: KUBECONFIG, ~/.kube/config, the pod's account]")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="Only gangs of this one. [default: all]")] = None,
    printed: Annotated[
        Print | None,
        typer.Option("--print", help="Do not serve: print YAML for kubectl, or for the scheduler's configuration."),
    ] = None,
    image: Annotated[str, typer.Option("--image", help="Of the Deployment that --print manifests prints.")] = "rerail",
    store_secret: Annotated[
        str, typer.Option("--store-secret", help="Secret with the AWS variables, for --print manifests.")
    ] = "",
) -> None:
    """Answer Volcano's scheduler: a gang may be evicted once it saved, or at a deadline."""
    if not 0 < hold_s < 1e6:  # noqa: PLR2004 - eleven days
        raise UsageError(f"--hold-s {hold_s:g} is not usable: give seconds, more than 0 and below 1000000")
    if not 0 <= starve_s < 1e6:  # noqa: PLR2004 - the same
        raise UsageError(f"--starve-s {starve_s:g} is not usable: give seconds, at least 0 and below 1000000")
    address, starve = parse_address(listen), starve_s if locks else None
    if printed is not None:
        _print(printed, namespace or "rerail", image, hold_s=hold_s, starve_s=starve, store_secret=store_secret)
        return
    from rerail.plugins.evict.extender_service import serving
    from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi, Patience

    stop = _until_asked_to_stop()
    # One try, soon over: the loops behind the answers repeat what failed.
    api = KubeApi.connect(kubeconfig, patience=Patience(request_s=10.0, total_s=0.0))
    try:
        with serving(api, address, hold_s=hold_s, starve_s=starve, namespace=namespace or ALL_NAMESPACES) as server:
            host, port = server.server_address[:2]
            typer.echo(f"extender: http://{host!s}:{port}, holds for {hold_s:g} s at most", err=True)
            while not stop.wait(1.0):
                if server.broken():
                    raise RefusedError("the work behind the answers broke, see the log above; start it again")
    except OSError as error:
        raise RefusedError(f"--listen {listen}: {error}; choose another address") from None
    finally:
        api.close()


class PrintDrains(StrEnum):
    """What ``drains`` prints instead of serving."""

    MANIFESTS = "manifests"


@serve.command("drains")
def drains(
    *,
    slot: Annotated[
        list[str] | None,
        typer.Option("--slot", help="A healer that asks: ack, nvsentinel, or one of a package of yours. Repeatable."),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SLOT.NAME=VALUE", help="Every slot has a deadline, 20m by default. Repeatable."),
    ] = None,
    save_within: Annotated[
        str,
        typer.Option("--save-within", metavar="DURATION", help="The most that a gang's commit is waited for."),
    ] = "15m",
    store: Annotated[
        str | None,
        typer.Option("--store", help="Store of the gangs' runs as seen from here. [default: as their pods say]"),
    ] = None,
    control: Annotated[
        str | None, typer.Option("--control", help="Store of control documents, where it is another one.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="[default: KUBECONFIG, ~/.kube/config, the pod's account]")
    ] = None,
    printed: Annotated[
        PrintDrains | None, typer.Option("--print", help="Do not serve: print YAML for kubectl.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="For --print manifests.")] = "rerail",
    image: Annotated[str, typer.Option("--image", help="Of the Deployment that --print manifests prints.")] = "rerail",
    store_secret: Annotated[
        str, typer.Option("--store-secret", help="Secret with the AWS variables, for --print manifests.")
    ] = "",
) -> None:
    """Empty nodes for other healers: gangs save and leave as a whole, then the healer is told that it may go on."""
    from rerail.plugins.evict.find import open_place
    from rerail.plugins.evict.slots.find import make_slots, parse_options
    from rerail.plugins.evict.slots.owner import DrainOwner
    from rerail.plugins.kube.api import KubeApi, Patience

    save_within_s = positive_s(save_within, "--save-within")
    given, names = parse_options(options or ()), tuple(slot or ())
    if printed is not None:
        _print_drains(namespace, image, names, given, save_within=save_within, store_secret=store_secret)
        return
    slots = make_slots(names, given)
    stop = _until_asked_to_stop()
    log = logging.getLogger("rerail.drains")
    api = KubeApi.connect(kubeconfig, patience=Patience(request_s=10.0, total_s=10.0))
    try:
        with DrainOwner(
            api,
            slots,
            lambda place: open_place(place, store=store, control=control),
            save_within_s=save_within_s,
            log=log.info,
        ) as owner:
            limits = ", ".join(f"{one.name} within {one.deadline_s:g} s" for one in slots)
            typer.echo(f"drains: {limits}", err=True)
            owner.serve(stop)
    finally:
        api.close()


def _until_asked_to_stop() -> threading.Event:
    """Log to stderr, and be told by a signal."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("rerail").setLevel(logging.INFO)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT.

    Raises:
        UsageError: It is something else.
    """
    host, colon, port = text.rpartition(":")
    most = 65535
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > most:
        raise UsageError(f"--listen {text!r} is not usable: give HOST:PORT, for example 127.0.0.1:8765")
    return host, int(port)


def _print(
    what: Print, namespace: str, image: str, *, hold_s: float, starve_s: float | None, store_secret: str
) -> None:
    import yaml

    from rerail.plugins.evict.extender_manifests import NAME, PORT, manifests, network_policy, scheduler_conf

    if what is Print.SCHEDULER_CONF:
        yaml.safe_dump(scheduler_conf(f"http://{NAME}.{namespace}:{PORT}"), sys.stdout, sort_keys=False)
    elif what is Print.NETWORK_POLICY:
        yaml.safe_dump(network_policy(namespace), sys.stdout, sort_keys=False)
    else:
        documents = manifests(namespace, image, hold_s=hold_s, starve_s=starve_s, store_secret=store_secret)
        yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)


def _print_drains(
    namespace: str,
    image: str,
    names: Sequence[str],
    options: Mapping[str, Mapping[str, str]],
    *,
    save_within: str,
    store_secret: str,
) -> None:
    import yaml

    from rerail.plugins.evict.slots.find import make_slots
    from rerail.plugins.evict.slots.manifests import manifests

    slots = make_slots(names, options)
    documents = manifests(namespace, image, slots, options, save_within=save_within, store_secret=store_secret)
    yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)
