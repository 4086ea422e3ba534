"""Where ``rerail`` begins: a package of an extra that is not installed is told in a sentence."""

import sys

from rerail.policies.errors import UsageError

_PACKAGES = ("hera", "jinja2", "kubernetes", "numpy", "rich", "typer", "yaml")


def main() -> None:
    """Run the command line; see ``rerail.plugins.cli.main``."""
    try:
        from rerail.plugins.cli.main import main as command

        command()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        sys.stderr.write(
            f"Missing package: this command needs {package!r}, which is not installed; "
            "install Rerail with all its commands: pip install 'rerail[all]', or '.[all]' in a checkout\n"
        )
        sys.exit(UsageError.exit_code)
