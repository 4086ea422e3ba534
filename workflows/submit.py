"""``rerail submit``: a Workflow of the library, through the Kubernetes API; argo-server is not needed."""

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from rerail.plugins.cli.output import Output, OutputOption, emit

if TYPE_CHECKING:
    from rerail.plugins.kube.api import KubeApi
    from rerail.workflows.submission import Known

VERDICT_FAIL = 1
INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("submit")(submit)


def submit(
    manifest: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="Your vcjob, or a Run; - reads it from stdin."),
    ] = None,
    *,
    store: Annotated[
        str | None, typer.Option("--store", envvar="RERAIL_STORE", help="Store address. [default: the manifest's]")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", "-r", help="Name of the run; one that exists goes on with take-over=true.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of the template, as in Argo's form."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE.yaml", help="Recovery policy of a new run.")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", help="WorkflowTemplate. [default: this version's rerail-train]")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the Workflow. [default: made after the run]")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Of the Workflow. [default: the kubeconfig's]")
    ] = None,
    account: Annotated[
        str | None, typer.Option("--account", help="ServiceAccount of its steps. [default: the template's]")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Tell what happens until it is over. Ctrl-C leaves it running.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the parameters, print the Workflow, and create nothing.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a Workflow that trains a gang: rerail submit job.yaml --store s3://BUCKET/PREFIX.

    Without a FILE: rerail submit -p image=IMAGE -p command='python train.py' -p replicas=4 --store ...

    Parameters are checked here as the Workflow's first step would.

    Exit codes: 0 submitted, and with --wait succeeded; 1 it did not succeed; 2 bad input; 3 no answer; 4 no such
    template.
    """
    from rerail.workflows.naming import versioned
    from rerail.workflows.submission import check_parameters, check_run, known_of, read_template, workflow

    train = versioned("rerail-train")
    chosen = template or train
    given = _parameters(param or [], manifest=manifest, policy=policy, store=store, run=run)
    with ExitStack() as held:
        if dry_run:
            known = _packaged(chosen)
        else:
            from rerail.plugins.kube.api import KubeApi

            api = KubeApi.connect(namespace=namespace)
            held.callback(api.close)
            known = known_of(read_template(api, chosen))
        check_parameters(known, given, f"WorkflowTemplate {chosen}")
        if chosen.startswith("rerail-train-"):
            check_run(given)
        body = workflow(chosen, given, name=name, account=account)
        if namespace:
            body["metadata"]["namespace"] = namespace
        if dry_run:
            emit(body, Output.YAML if output is Output.TABLE else output)
            return
        from rerail.plugins.steps.workflow import WORKFLOWS

        made = api.create(WORKFLOWS, body, namespace=api.namespace)
        own = str(made["metadata"]["name"])
        document = {"workflow": own, "namespace": api.namespace, "uid": made["metadata"].get("uid")}
        if not wait:
            emit(document, output)
            return
        sys.stderr.write(f"workflow {api.namespace}/{own} was submitted\n")
        _follow(api, own, document, output)


def _packaged(template: str) -> "tuple[Known, ...]":
    """The parameters of a template of this version."""
    from rerail.policies.errors import NotFoundError
    from rerail.workflows.library import all_templates
    from rerail.workflows.render import documents
    from rerail.workflows.submission import known_of

    library = documents(all_templates())
    if template not in library:
        raise NotFoundError(f"template {template!r} is not of this version, which has: {', '.join(library)}")
    return known_of(library[template])


def _follow(api: "KubeApi", own: str, document: dict[str, object], output: Output) -> None:
    """Tell what becomes of the Workflow, and leave with its verdict."""
    from rerail.workflows.submission import SUCCEEDED, reason_of, wait

    left: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        left.append(number)

    before = {one: signal.signal(one, leave) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        ended = wait(api, own, say=lambda line: typer.echo(line, err=True), until=lambda: bool(left))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended is None:
        sys.stderr.write(f"workflow {own} goes on without this command\n")
        emit(document, output)
        raise typer.Exit(INTERRUPTED)
    phase = str((ended.get("status") or {}).get("phase"))
    emit({**document, "phase": phase, "reason": reason_of(ended) or None}, output)
    if phase != SUCCEEDED:
        raise typer.Exit(VERDICT_FAIL)


def _parameters(
    named: list[str], *, manifest: Path | None, policy: Path | None, store: str | None, run: str | None
) -> dict[str, str]:
    """All parameters that were given, each once."""
    from rerail.policies.errors import UsageError

    given: dict[str, str] = {}
    for one in named:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--param {one!r} is not NAME=VALUE (for example --param replicas=4)")
        if name in given:
            raise UsageError(f"--param {name} is given twice")
        given[name] = value
    text = _read(manifest, "a vcjob, or a rerail.dev/v1alpha1 Run") if manifest else None
    for name, option, told in (
        ("manifest", "FILE", text),
        ("policy", "--policy", _read(policy, "a YAML file of policy fields") if policy else None),
        ("store", "--store", store),
        ("run", "--run", run),
    ):
        if told is None:
            continue
        if name in given:
            if option == "--store":
                continue  # the environment's, and --param was meant
            raise UsageError(f"{option} and --param {name} say the same: give one of them")
        given[name] = told
    if given.get("manifest"):
        _refuse_beside_manifest(given)
    if text is not None:
        given |= _said_by(text, manifest, run, given)
    return given


def _refuse_beside_manifest(given: dict[str, str]) -> None:
    from rerail.policies.errors import UsageError

    for one in ("queue", "replicas", "gpus-per-replica"):
        if one in given:
            raise UsageError(f"--param {one}={given[one]} stands beside a manifest, which has its own: leave one out")


def _said_by(text: str, path: Path | None, run: str | None, given: dict[str, str]) -> dict[str, str]:
    """Where a manifest's run is kept, as far as nobody says otherwise."""
    from rerail.policies.workloads.reading import parse_manifest, read_workload

    found = read_workload(parse_manifest(text, str(path)), str(path), run=run)
    said = {"store": found.store, "control": found.control}
    return {name: told for name, told in said.items() if told and not given.get(name)}


def _read(path: Path, what: str) -> str:
    from rerail.policies.errors import UsageError

    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}; pass {what}") from None
