"""Prints what is installed in the environment that runs it."""

from measuring import versions

for name, version in versions().items():
    print(f"{name} {version}")
