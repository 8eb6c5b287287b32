"""The templates of this package."""

from collections.abc import Callable

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from swep_ds.common.files import PACKAGE


def template(name: str, **filters: Callable) -> Template:
    """The template of this path in the package. It includes others of its folder, escapes every text of a page
    (`.html.jinja`), and fails on a missing one."""
    file = PACKAGE / name
    options = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(loader=FileSystemLoader(file.parent), autoescape="html" in name, **options)
    environment.filters |= filters
    return environment.get_template(file.name)
