"""What each metric of the report means: its unit, its definition in one or two sentences, and where that comes from."""

from typing import Final

from rerail.policies.documents import Value

_ANCHOR = "Rerail"
_META = "Meta, Revisiting Reliability in Large-Scale ML Research Clusters (ETTR)"
_LLAMA = "Llama 3, ByteRobust (ETTR without the queue)"
_GOOGLE = "Google ml-goodput-measurement (BadputType)"
_NVIDIA = "NVIDIA CRE GoodputMeasurement"
_HUAWEI = "Huawei MindCluster resume model, with detection added"


class MetricDefinition(Value):
    """One line of the table.

    Attributes:
        unit: ``s``, ``steps``, ``ratio``, ``percent``, ``count`` or ``step``.
        definition: What is measured, from when to when.
        source: Whose definition it is, or whose it maps onto.
    """

    name: str
    title: str
    unit: str
    definition: str
    source: str


_ROWS = (
    MetricDefinition(
        name="mttd_s",
        title="Time to detect",
        unit="s",
        definition="From the fault's first effect to the first classified event the supervisor saw. Worst incident.",
        source=_ANCHOR,
    ),
    MetricDefinition(
        name="mttr_s",
        title="Time to recover",
        unit="s",
        definition="From the fault's first effect to the first new step: one that the run had not done before. Worst "
        "recovered incident; the spread ranks incidents without recovery after all others.",
        source=_HUAWEI,
    ),
    MetricDefinition(
        name="mttr_phases_s",
        title="Phases of recovery",
        unit="s",
        definition="Detect, decide, save, end the gang, start the next attempt, load, first step. They add up to the "
        "time to recover; what one phase did while a later one ran already is not counted again.",
        source=_HUAWEI,
    ),
    MetricDefinition(
        name="rpo_steps",
        title="Work at risk",
        unit="steps",
        definition="Finished steps between the commit that was resumed from and the fault. Worst incident.",
        source=_ANCHOR,
    ),
    MetricDefinition(
        name="rpo_s",
        title="Work at risk in time",
        unit="s",
        definition="Training time between the commit that was resumed from and the fault. Worst incident.",
        source=_ANCHOR,
    ),
    MetricDefinition(
        name="lost_steps",
        title="Lost steps",
        unit="steps",
        definition="Steps that had to be run again, over all incidents.",
        source=_ANCHOR,
    ),
    MetricDefinition(
        name="gpu_waste_ratio",
        title="GPU waste",
        unit="ratio",
        definition="GPUs held x (rollback + recovery + save stalls) / GPU-seconds held. Rollback is the time of work "
        "that was thrown away; recovery is held time between a fault and the next attempt's first step.",
        source=_ANCHOR,
    ),
    MetricDefinition(
        name="ettr_run",
        title="Effective training time, run",
        unit="ratio",
        definition="Productive time / time in which the run held GPUs. Productive is training that was kept, without "
        "save stalls.",
        source=_LLAMA,
    ),
    MetricDefinition(
        name="ettr_job",
        title="Effective training time, job",
        unit="ratio",
        definition="Productive time / time since submission: queue, back-off and waits for capacity count.",
        source=_META,
    ),
    MetricDefinition(
        name="restarts",
        title="Restarts",
        unit="count",
        definition="Attempts after the first, in new gangs or in place.",
        source=_ANCHOR,
    ),
    MetricDefinition(
        name="resumed_from_step",
        title="Resumed from",
        unit="step",
        definition="Completed optimizer steps in the commit that the newest resumed attempt loaded.",
        source=_ANCHOR,
    ),
    MetricDefinition(
        name="saving_overhead_percent",
        title="Overhead of saving",
        unit="percent",
        definition="Training time spent waiting for saves / time in which the run held GPUs.",
        source=_ANCHOR,
    ),
    MetricDefinition(
        name="goodput",
        title="Goodput",
        unit="ratio",
        definition="Productive time / time since submission; the rest is split into the buckets of BadputType, which "
        "together with it add up to the whole.",
        source=_GOOGLE,
    ),
    MetricDefinition(
        name="nvidia_goodput",
        title="Runtime goodput",
        unit="ratio",
        definition="(t_w - t_ch - t_rm - t_re - t_save) / (t_w - t_re): the whole time without lost work, resume, "
        "reschedule and save, over the whole time without reschedule.",
        source=_NVIDIA,
    ),
    MetricDefinition(
        name="unrecovered",
        title="Without recovery",
        unit="count",
        definition="Incidents after which no new step was made, yet or ever. They are never left out of the spread.",
        source=_ANCHOR,
    ),
)

METRICS: Final[dict[str, MetricDefinition]] = {row.name: row for row in _ROWS}
"""Metric name to definition, in the order of the report."""
