import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONDA = {"pytorch": "torch", "matplotlib-base": "matplotlib"}  # names that differ from PyPI's
FROM_PYPI = {"dp-accounting", "opendp"}


def split(requirement: str) -> tuple[str, str]:
    name, limits = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement).groups()
    return name, limits


@pytest.fixture(scope="module")
def recipe() -> dict:
    return yaml.safe_load((ROOT / ".packaging" / "recipe.yaml").read_text(encoding="utf-8"))


def test_the_recipe_needs_what_the_project_needs(recipe: dict) -> None:
    found = dict(split(requirement) for requirement in recipe["requirements"]["run"])
    assert found.pop("python") == PROJECT["project"]["requires-python"]
    found = {CONDA.get(name, name): limits for name, limits in found.items()}
    needed = dict(split(requirement) for requirement in PROJECT["project"]["dependencies"])
    assert found == {name: limits for name, limits in needed.items() if name not in FROM_PYPI}
    from_pypi = next(line for line in recipe["build"]["script"]["content"] if "constraints.txt" in line)
    assert from_pypi.split()[-len(FROM_PYPI) :] == sorted(FROM_PYPI)


def test_the_recipe_builds_with_what_the_project_is_built_with(recipe: dict) -> None:
    host = dict(split(requirement) for requirement in recipe["requirements"]["host"])
    built_with = dict(split(requirement) for requirement in PROJECT["build-system"]["requires"])
    assert {name: host[name] for name in built_with} == built_with


def test_versions_without_a_tag_agree(recipe: dict) -> None:
    fallback = PROJECT["tool"]["hatch"]["version"]["fallback-version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fallback
    assert f'default="{fallback}"' in recipe["context"]["version"]


def test_the_image_has_what_the_wheel_is_made_of() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n") if line[:1] == "!"}
    assert all((ROOT / name).exists() for name in kept - {".git"})  # an archive has none
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"], *PROJECT["project"]["license-files"]} <= kept
    dockerfile = (ROOT / ".packaging" / "Dockerfile").read_text(encoding="utf-8")
    assert "-c constraints.txt" in dockerfile
    assert "USER curator" in dockerfile


def test_the_wheel_is_tried_with_data_files_that_are_there() -> None:
    script = (ROOT / ".ci" / "wheels").read_text(encoding="utf-8")
    names = re.findall(r'"([^"]+)"', re.search(r"for name in \((.+)\):", script)[1])
    assert "cli/gone.json" in names
    assert all((ROOT / "torchdpcate" / name).is_file() or (ROOT / name).is_file() for name in names)


def test_each_python_that_is_promised_is_tried() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    script = (ROOT / ".ci" / "wheels").read_text(encoding="utf-8")
    assert re.search(r"for minor in ([\d. ]+);", script)[1].split() == promised
