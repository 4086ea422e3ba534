"""Kubernetes quantities: what a pod asks for, and what a gang asks for in all."""

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from rerail.policies.errors import UsageError

Amounts = dict[str, Fraction]
"""Resource name -> how much of it, exactly, in the resource's base unit (CPUs, bytes, devices)."""

_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_UNITS: Final[Mapping[str, Fraction]] = {
    **{unit: Fraction(10) ** power for unit, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)},
    **{f"{unit}i": Fraction(2) ** power for unit, power in zip("KMGTPE", range(10, 61, 10), strict=True)},
}


def quantity(value: object, where: str) -> Fraction:
    """Read a quantity such as ``500m``, ``16Gi``, ``1e3`` or ``8``.

    Args:
        value: As given; YAML may have made a number of it.
        where: Its field, for the message.

    Raises:
        UsageError: It is none.
    """
    found = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if not found or isinstance(value, bool):
        raise UsageError(f"{where} = {value!r} is no quantity; write 8, 500m or 16Gi")
    exponent = Fraction(10) ** int(found[3]) if found[3] else Fraction(1)
    return Fraction(Decimal(found[1])) * _UNITS.get(found[2] or "", Fraction(1)) * exponent


def spelled(amount: Fraction) -> str:
    """An amount as a quantity, rounded up to thousandths."""
    thousandths = math.ceil(amount * 1000)
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum, resource by resource."""
    result: Amounts = {}
    for one in amounts:
        for name, amount in one.items():
            result[name] = result.get(name, Fraction(0)) + amount
    return result


def pod_requests(pod_spec: Mapping[str, Any], where: str) -> Amounts:
    """What the scheduler has to find for a pod: its containers together, or its largest init container if that is more.

    Init containers with ``restartPolicy: Always`` go on beside the containers. A limit without a request is one.

    Raises:
        UsageError: A quantity cannot be read.
    """
    beside: Amounts = {}
    peak: Amounts = {}
    for one in pod_spec.get("initContainers") or []:
        own = _container_requests(one, where)
        if one.get("restartPolicy") == "Always":
            beside = total((beside, own))
            peak = _most(peak, beside)
        else:
            peak = _most(peak, total((beside, own)))
    containers = total(_container_requests(one, where) for one in pod_spec.get("containers") or [])
    overhead = {name: quantity(value, f"{where}: overhead.{name}") for name, value in _items(pod_spec.get("overhead"))}
    return total((_most(total((containers, beside)), peak), overhead))


def _container_requests(container: Mapping[str, Any], where: str) -> Amounts:
    resources = container.get("resources") or {}
    asked = {**dict(_items(resources.get("limits"))), **dict(_items(resources.get("requests")))}
    name = container.get("name")
    return {key: quantity(value, f"{where}: container {name!r}: {key}") for key, value in asked.items()}


def _items(amounts: Mapping[str, Any] | None) -> Iterable[tuple[str, Any]]:
    return (amounts or {}).items()


def _most(one: Amounts, other: Amounts) -> Amounts:
    return {
        name: max(one.get(name, Fraction(0)), other.get(name, Fraction(0))) for name in dict.fromkeys([*one, *other])
    }
