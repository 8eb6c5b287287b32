"""The templates of this folder."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def template(name: str) -> Template:
    """It escapes every text of a page (`.html.jinja`), and fails on a missing one."""
    loader = FileSystemLoader(Path(__file__).parent)
    options = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=loader, autoescape="html" in name, **options).get_template(name)
