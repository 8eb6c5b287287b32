"""Installs a file of `requirements/` and this checkout into the environment of the interpreter that runs it.

    .venv/bin/python tools/install.py requirements/lock.txt

uv takes a fifth of pip's time, but reads none of pip's settings. Those that say where packages come from are handed on.
Where uv cannot be had or fails, pip installs the same versions.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = "uv==0.13.9"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

# pip's setting, the variable that tells uv, and what separates several values there (pip: white space)
HANDED_ON = [
    ("index-url", "UV_DEFAULT_INDEX", " "),
    ("extra-index-url", "UV_INDEX", " "),
    ("find-links", "UV_FIND_LINKS", ","),
    ("constraint", "UV_CONSTRAINT", " "),
    ("trusted-host", "UV_INSECURE_HOST", " "),
    ("cert", "SSL_CERT_FILE", " "),
    ("client-cert", "SSL_CLIENT_CERT", " "),
    ("proxy", "HTTP_PROXY", " "),
    ("proxy", "HTTPS_PROXY", " "),
    ("timeout", "UV_HTTP_TIMEOUT", " "),
    ("default-timeout", "UV_HTTP_TIMEOUT", " "),
]


def pip_settings(listing: str) -> dict[str, str]:
    """The settings of `pip install`, from what `pip config list` prints: lines such as `global.index-url='https://...'`.

    As in pip, a setting of the command replaces a global one, and an environment variable replaces both.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        if section in sections:
            sections[section][name] = ast.literal_eval(value)
    return sections["global"] | sections["install"] | sections[":env:"]


def uv_variables(settings: dict[str, str]) -> dict[str, str]:
    """The environment variables by which uv takes packages from where pip with these `settings` takes them."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: the best version of all indexes, not of the first
    for setting, variable, separator in HANDED_ON:
        if setting in settings:
            values = settings[setting].split()
            if setting == "find-links":
                values = [os.path.expanduser(value) for value in values]
            variables[variable] = separator.join(values)
    return variables


def install_with_uv(requirements: str) -> None:
    """Raises CalledProcessError: uv cannot be had, or fails. It has written the reason to stderr."""
    subprocess.run([*PIP, "install", "--quiet", UV], check=True)
    listing = subprocess.run([*PIP, "config", "list"], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    settings = pip_settings(listing)
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on", "t", "y"):
        uv.append("--no-index")  # the only one of these without a variable
    environment = os.environ | uv_variables(settings)
    subprocess.run([*uv, "--requirement", requirements, "--editable", ROOT], check=True, env=environment)


def main() -> None:
    requirements = sys.argv[1]
    try:
        install_with_uv(requirements)
    except (subprocess.CalledProcessError, OSError, ValueError, SyntaxError):
        print("uv failed: pip installs the same versions, which takes some minutes", file=sys.stderr)
        pip = [*PIP, "install", "--quiet", "--requirement", requirements, "--editable", ROOT]
        sys.exit(subprocess.run(pip, check=False).returncode)


if __name__ == "__main__":
    main()
