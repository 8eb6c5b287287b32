"""Lists recipes, sweeps and methods, those of other packages included, prints a file, or explains every field.

    swep-ds recipes                                  # names, and what each is
    swep-ds recipes bert_base_squad                  # the file itself
    swep-ds recipes bert_base_squad --fields         # every field: value, type, meaning
    swep-ds recipes --schema > recipe.schema.json    # JSON schema of recipes, for editors

With `# yaml-language-server: $schema=recipe.schema.json` as the first line of a recipe, an editor with a YAML language
server completes and explains its fields.
"""

import json
import re
import shutil
import textwrap
from importlib.metadata import entry_points

from swep_ds.commands.cli import Parser
from swep_ds.common.errors import InputError
from swep_ds.common.files import PACKAGE, read_text, user_path
from swep_ds.common.settings import describe, for_editors, read_whole, sections_of, suggest, validate
from swep_ds.methods import GROUP, METHODS, summary
from swep_ds.pipeline.recipe import RECIPES, Recipe

FILES = {"recipes": sorted(RECIPES.glob("*.yaml")), "sweeps": sorted((PACKAGE / "sweeps").glob("*.yaml"))}
REQUIRED = "required"  # in place of a field that a recipe leaves open


def recipes() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a recipe or a sweep, or the path of one")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--fields", action="store_true", help="explain every field of the recipe (default: quickstart)")
    text = "print the JSON schema of such files, for editors (default: recipe)"
    what.add_argument("--schema", nargs="?", const="recipe", choices=["recipe", "sweep"], help=text)
    arguments = parser.parse_args()
    name = arguments.name
    if arguments.schema and name:
        raise InputError(f"NAME {name}: --schema is for all files alike: leave out NAME")
    if arguments.schema:
        from swep_ds.sweeps.sweep import Sweep  # imports NumPy and Arrow

        model = {"recipe": Recipe, "sweep": Sweep}[arguments.schema]
        print(json.dumps(for_editors(model), indent=2, ensure_ascii=False))
    elif arguments.fields:
        explain(name or "quickstart")
    elif name:
        path = user_path(name)
        shipped = [*FILES["recipes"], *FILES["sweeps"]]
        files = [path] if path.suffix else [file for file in shipped if file.stem == name]
        if not files:
            raise InputError(f"NAME {name}: no such recipe or sweep{suggest(name, {file.stem for file in shipped})}")
        print(*(f"# {file}\n{read_text(file)}" for file in files), sep="\n", end="")
    else:
        list_all()


def list_all() -> None:
    """Prints the name of every recipe and sweep, and the first sentence of its file's head behind its command; and of
    every method with what it does and, if another package has it, that package."""
    listed: dict[str, dict[str, str]] = {}
    for kind, files in FILES.items():
        heads = {file.stem: re.match(r"(#.*\n)+", read_text(file))[0].split("\n#\n", 1)[1] for file in files}
        words = {name: " ".join(line.lstrip("# ") for line in head.splitlines()) for name, head in heads.items()}
        listed[kind] = {name: re.match(r".*?[.?](?=\s|$)|.*", text)[0] for name, text in words.items()}
    packages = {point.module.partition(".")[0]: point.dist.name for point in entry_points(group=GROUP)}
    listed["methods"] = {}
    for name, settings in METHODS.items():
        package = packages.get(settings.__module__.partition(".")[0])
        if package:
            listed["methods"][name] = f"{summary(settings.model_construct())} (package {package})"
        else:
            listed["methods"][name] = settings.model_json_schema()["properties"]["name"]["description"]
    width = shutil.get_terminal_size((120, 0)).columns
    for kind, meaning_of in listed.items():
        print(f"{kind}:")
        indent = 4 + max(map(len, meaning_of))
        for name, meaning in meaning_of.items():
            print(textwrap.fill(f"  {name}".ljust(indent) + meaning, width, subsequent_indent=" " * indent))


def explain(name: str) -> None:
    """Prints every field of a recipe, as its JSON schema describes it."""
    path, tree = read_whole(name, RECIPES, "NAME", Recipe)
    for section, info in Recipe.model_fields.items():
        kinds = sections_of(Recipe, section)
        given = tree.get(section) or {}
        if kinds and isinstance(given, dict) and (given or info.is_required()):
            fields = kinds[0].model_fields.items()
            tree[section] = {name: REQUIRED for name, field in fields if field.is_required()} | given
    recipe = validate(Recipe, tree, path)
    for field in describe(recipe):
        value = REQUIRED if field.value == REQUIRED else json.dumps(field.value, ensure_ascii=False)
        print(f"{field.name}: {value}")
        print(f"    {field.type}; default: {field.default}")
        if field.meaning:  # another package's method may leave it out
            print(textwrap.indent(textwrap.fill(field.meaning, 116), "    "))
