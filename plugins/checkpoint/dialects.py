"""How the vendors of S3-compatible storage spell "create, do not overwrite", and what else of S3 they leave out."""

from dataclasses import dataclass

from rerail.policies.errors import UsageError

STANDARD_HEADER = "If-None-Match"


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One vendor's way.

    Attributes:
        name: What RERAIL_S3_DIALECT takes.
        header: Sent with a PutObject that must not overwrite.
        value: The header's value.
        hosts: Endings of endpoint hosts that speak it.
        checksums: Whether ``x-amz-checksum-*`` and DeleteObjects work; else Content-MD5 and single deletes are used.
    """

    name: str
    header: str
    value: str
    hosts: tuple[str, ...]
    checksums: bool


AWS = Dialect("aws", STANDARD_HEADER, "*", ("amazonaws.com", "amazonaws.com.cn"), checksums=True)

DIALECTS = {
    dialect.name: dialect
    for dialect in (
        AWS,
        Dialect("gcs", "x-goog-if-generation-match", "0", ("storage.googleapis.com",), checksums=False),
        Dialect("oss", "x-oss-forbid-overwrite", "true", ("aliyuncs.com",), checksums=False),
        Dialect("cos", "x-cos-forbid-overwrite", "true", ("myqcloud.com", "tencentcos.cn"), checksums=False),
    )
}

EXISTS_CODES = frozenset({"PreconditionFailed", "FileAlreadyExists", "ObjectAlreadyExists"})
"""Error codes that say "the key exists": OSS and COS answer 409 FileAlreadyExists where AWS answers 412."""


def find_dialect(endpoint_host: str, name: str | None) -> Dialect:
    """The dialect asked for by ``name``, else the one of the host, else that of AWS.

    Raises:
        UsageError: No dialect has this name.
    """
    if name:
        if name not in DIALECTS:
            known = ", ".join(sorted(DIALECTS))
            raise UsageError(f"RERAIL_S3_DIALECT={name!r} is not known; use one of {known}, or unset it")
        return DIALECTS[name]
    host = endpoint_host.lower().rstrip(".")
    for dialect in DIALECTS.values():
        if any(host == ending or host.endswith(f".{ending}") for ending in dialect.hosts):
            return dialect
    return AWS
