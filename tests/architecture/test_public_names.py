"""What `import deepnet` offers, what it costs, and that Python can do whatever the command can."""

import importlib
import subprocess
import sys

import pytest
import typer

import deepnet
from deepnet.cli.main import build_app

PYTHON_FOR = {
    "demo": "deepnet.pipeline.demo:run_demo",
    "doctor": "deepnet.doctor:examine_recipe",
    "prepare": "deepnet.pipeline.preparing:prepare_data",
    "grow": "deepnet.growth.grow_run:grow_run",
    "plan": "deepnet.pipeline.plan_run:plan_run",
    "train": "deepnet:train",
    "translate": "deepnet:translate",
    "score": "deepnet.decoding.translate:score",
    "evaluate": "deepnet.pipeline.evaluating:evaluate",
    "compare": "deepnet.evaluation.significance:paired_bootstrap",
    "audit": "deepnet:audit",
    "average": "deepnet.pipeline.average_run:average_run",
    "probe": "deepnet.pipeline.probe_run:probe_run",
    "prune": "deepnet.growth.prune_run:prune_run",
    "recipes": "deepnet.pipeline.recipe_table:recipe_table",
    "report": "deepnet:write_report",
    "reproduce": "deepnet.experiments.reproduce:reproduce",
    "scaling-law": "deepnet:scaling_law",
    "schemes": "deepnet.survey:scheme_catalogue",
    "coefficients": "deepnet:coefficients",
    "data": "deepnet.data.listing:corpus_table",
    "version": "deepnet.record:environment",
}


def test_every_public_name_exists():
    assert len(set(deepnet.__all__)) == len(deepnet.__all__)
    for name in deepnet.__all__:
        assert vars(deepnet).get(name) or deepnet.__getattr__(name) is not None
    assert dir(deepnet) == sorted(deepnet.__all__)


def test_other_names_do_not():
    with pytest.raises(AttributeError, match="no_such_name"):
        deepnet.no_such_name  # noqa: B018


def test_importing_deepnet_imports_no_torch():
    code = "import sys, deepnet, deepnet.cli.main; print({'torch', 'pydantic', 'rich'} & {*sys.modules})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_what_the_command_can_python_can():
    verbs = typer.main.get_command(build_app()).commands
    assert set(verbs) == set(PYTHON_FOR)
    for target in PYTHON_FOR.values():
        module, _, name = target.partition(":")
        assert callable(
            vars(importlib.import_module(module)).get(name) or deepnet.__getattr__(name)
        )
