"""Print what the package needs, and extras by name: the images install it before the code, as a layer of its own."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = [requirement for extra in sys.argv[1:] for requirement in project["optional-dependencies"][extra]]
print(*project["dependencies"], *extras, sep="\n")
