"""The methods by name. Importing this imports no PyTorch: a method's own file is imported when it is built."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar, get_type_hints

from swep_ds.common.errors import InputError
from swep_ds.common.plugins import check_free
from swep_ds.methods.rivals.settings import SHIPPED
from swep_ds.methods.settings import Settings

if TYPE_CHECKING:
    from swep_ds.methods.base import Method

METHODS: dict[str, type[Settings]] = {settings.model_fields["name"].default: settings for settings in SHIPPED}
GROUP = "swep_ds.methods"  # the entry points' group
_classes: dict[type[Settings], type["Method"]] = {}  # those that `method` registered
M = TypeVar("M", bound=type["Method"])


def method(name: str) -> Callable[[M], M]:
    """Registers a `Method` under `name`, for recipes and commands.

    The class or the constructor has the annotation `settings: ITS_SETTINGS`: a `Settings` class with the field
    `name: Literal["NAME"] = "NAME"`. A constructor takes (settings, hidden_size, embedding_size).

    Raises TypeError: the class is not such a method, or the name is taken.
    """
    if not isinstance(name, str):
        raise TypeError('method: it needs a name: write @sd.method("NAME")')

    def register(cls: M) -> M:
        annotations = get_type_hints(cls.__init__) | inspect.get_annotations(cls, eval_str=True)
        settings = annotations.get("settings")
        fields = getattr(settings, "model_fields", {})
        if "name" not in fields or fields["name"].default != name:
            raise TypeError(
                f"method {name!r}: {cls.__name__} needs the annotation settings: ITS_SETTINGS, a Settings class with "
                f'the field name: Literal["{name}"] = "{name}"'
            )
        check_free(name, METHODS.get(name), settings)
        _classes[settings] = cls
        METHODS[name] = settings
        return cls

    return register


def _class_of(settings: Settings) -> type["Method"]:
    kind = type(settings)
    if kind in _classes:
        return _classes[kind]
    package = kind.__module__.rpartition(".")[0]
    return getattr(import_module(f"{package}.{settings.name}"), kind.__name__.removesuffix("Settings"))


def summary(settings: Settings) -> str:
    """What the method does, in the first paragraph of the docstring of its class or, without one, of its file."""
    cls = _class_of(settings)
    text = cls.__doc__
    if text is None and cls.__module__ != "__main__":  # a notebook, whose docstring is not its author's
        text = sys.modules[cls.__module__].__doc__
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return " ".join(paragraphs[0].split())


def build(settings: Settings, hidden_size: int, embedding_size: int) -> "Method":
    """The method that `settings` describe, for a model of these widths (h and word embeddings).
    Raises TypeError: none of its passes trains. InputError: it perturbs embeddings of a width that has no noise."""
    method = _class_of(settings)(settings, hidden_size, embedding_size)
    passes = method.passes(0.0)
    if not any(pass_.trains for pass_ in passes):
        raise TypeError(f"method {settings.name}: none of its passes trains")
    if embedding_size % 4 and any(pass_.perturb for pass_ in passes):
        fault = f"needs word embeddings of a multiple of 4 dimensions, and the model's have {embedding_size}"
        raise InputError(f"method {settings.name}: {fault}: name another model, or method mle")
    return method
