"""Typed settings from YAML: sections, `extends`, `--set`, and errors that name the file, the field and the fix."""

from swep_ds.common.settings.messages import FieldFault, join, open_fields, shown, suggest
from swep_ds.common.settings.reading import inherit, lay_sections, load, parse_yaml, read_settings, read_whole
from swep_ds.common.settings.sections import Section, differences, flatten, validate, without, without_paths

__all__ = [
    "FieldFault",
    "Section",
    "differences",
    "flatten",
    "inherit",
    "join",
    "lay_sections",
    "load",
    "open_fields",
    "parse_yaml",
    "read_settings",
    "read_whole",
    "shown",
    "suggest",
    "validate",
    "without",
    "without_paths",
]
