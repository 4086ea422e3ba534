"""prepare >> train >> evaluate, where training survives its hardware.

Prints the workflow as YAML; with Argo's server at hand, ``w.create()`` submits it.
"""

import sys

from hera.workflows import DAG, Container, Parameter, Task, Workflow

from rerail.workflows import guarded_step, resilient_gang

IMAGE = "registry.example/llama:1"
RERAIL = "registry.example/rerail:0.1.0"
STORE = "s3://checkpoints/runs"

with Workflow(generate_name="llama-", entrypoint="pipeline", service_account_name="rerail-reader") as w:
    prepare = Container(
        name="prepare",
        image=IMAGE,
        command=["python", "prepare.py"],
        args=["--tokens", "s3://data/tokens"],
    )
    evaluate = Container(
        name="evaluate",
        image=IMAGE,
        command=["python", "evaluate.py"],
        args=["--store", STORE, "--run", "{{inputs.parameters.run}}"],
        inputs=[Parameter(name="run")],
    )
    with DAG(name="pipeline"):
        before = Task(name="prepare", template=prepare)
        train = resilient_gang(
            "train",
            store=STORE,
            image=IMAGE,
            command=["python", "train.py", "--tokens", "s3://data/tokens"],
            replicas=4,
            gpus_per_replica=8,
            queue="default",
            policy={"save_within_s": "90s"},
        )
        after = guarded_step(
            "score",
            template="evaluate",
            arguments={"run": "{{tasks.train.outputs.parameters.run}}"},
            inline=w,
            rerail_image=RERAIL,
        )
        before >> train >> after

if __name__ == "__main__":
    sys.stdout.write(w.to_yaml(width=100_000))
