"""What docs/add_a_scheme.md shows is what one gets: its scheme, its module and its check run as they stand there."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from torch import nn

from deepnet.schemes import pre_ln
from deepnet.schemes.base import Learned, SitePlan, Stream, ValueStream
from deepnet.testing import SchemeCase
from deepnet.testing.scheme_checks import check_equation

PAGE = (Path(__file__).parents[2] / "docs" / "add_a_scheme.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


GATED = {"Stream": Stream}
exec(re.search(r"^class Gated\(Stream\).*?(?=^```)", PAGE, re.DOTALL | re.MULTILINE)[0], GATED)


class Tripling(nn.Module):
    """A gate without parameters: x + 3 y."""

    def forward(self, x, y):
        """Return x + 3 y."""
        return x + 3 * y


@dataclass(frozen=True, kw_only=True)
class Scheme(pre_ln.Scheme):
    """Pre-LN with the page's stream around that gate."""

    def site(self, context, site):
        """Return Pre-LN's site with the gate."""
        return replace(super().site(context, site), extra={"gate": Tripling})

    def stream(self, context):
        """Return the page's stream."""
        return GATED["Gated"]()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the reader's, with the files of the page, as the command finds it."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def run(folder, *words):
    """Run Python in the folder as the reader does."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_check_of_the_page_holds_its_scheme(folder):
    ended = run(folder, "check_shrunk.py")
    said = "shrunk:Scheme is what was claimed\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


def test_the_gate_of_the_page_is_handed_the_skip_and_what_the_branch_gave():
    def equation(x, stack):
        for part in stack.sites:
            x = x + 3 * part.f(part.residual.pre(x))
        return stack.ends.final(x)

    check_equation(SchemeCase(name=f"{__name__}:Scheme", equation=equation, coefficients={}))


def test_the_check_of_the_page_finds_a_wrong_exponent(folder):
    scheme = folder / "shrunk.py"
    assert "num_layers**-self.power" in scheme.read_text()
    scheme.write_text(scheme.read_text().replace("**-self.power", "**(-self.power / 2)"))
    ended = run(folder, "check_shrunk.py")
    assert ended.returncode == 1
    assert "SchemeError: shrunk:Scheme: the encoder of an encoder_decoder computes" in ended.stderr


def test_the_scheme_of_the_page_has_a_name_in_commands(folder, cli):
    text = cli("schemes", "shrunk:Scheme").out
    assert "    x <- x + L^(-power) * f(LN(x)),   L the layers of the stack;" in text
    assert "norms        pre; final" in text
    # 2 * 512 at the end of each of two stacks
    assert "parameters   +2,048 beside post_ln's" in text
    words = "coefficients --scheme shrunk:Scheme --encoder-layers 16 scheme.power=0.25 --json"
    sites = json.loads(cli(*words.split()).out)["sites"]
    assert {site["branch"] for site in sites} == {0.5}  # 16^(-1/4)


def test_the_module_of_the_page_can_be_a_norm_of_a_scheme(folder):
    (folder / "own.py").write_text(
        FILES["shrunk.py"]
        .replace("pre=context.norm()", "pre=Norm(SoftSign)")
        .replace("from dataclasses", "from soft import SoftSign\nfrom dataclasses", 1)
    )
    check = FILES["check_shrunk.py"].replace("shrunk:Scheme", "own:Scheme")
    # SoftSign has d numbers where a layer norm has 2 d: one per site
    assert "return 2 * config.d_model * stacks" in check
    sites = "2 * (n + m) + (m if n else 0)"
    (folder / "check_own.py").write_text(
        check.replace(
            "return 2 * config.d_model * stacks",
            "n, m = config.encoder_layers, config.decoder_layers\n"
            f"    return config.d_model * (2 * stacks - ({sites}))",
        )
    )
    ended = run(folder, "check_own.py")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_stream_of_the_page_computes_what_the_page_says(folder):
    (folder / "check_echo.py").write_text(
        FILES["check_shrunk.py"]
        .replace("shrunk:Scheme", "echo:Scheme")
        .replace(
            "    for part in stack.sites:\n",
            "    first = x\n"
            "    for part in stack.sites:\n"
            "        x = x + 0.1 * first if part.site.first_in_layer else x\n",
        )
        .replace(" / num_layers**0.5", "")
    )
    ended = run(folder, "check_echo.py")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_values_of_the_page_are_what_the_page_says(folder):
    (folder / "check_bias.py").write_text(
        FILES["check_shrunk.py"]
        .replace("shrunk:Scheme", "token_bias:Scheme")
        .replace(
            "        x = x + part.f(part.residual.pre(x)) / num_layers**0.5\n",
            "        n, values = part.residual.pre(x), None\n"
            "        if part.site.kind == 'self':\n"
            "            numbers = part.residual.extra['table'].weight[part.inputs.ids]\n"
            "            values = part.branch.v(n) + numbers\n"
            "        x = x + part.f(n, values)\n",
        )
        .replace("import SchemeCase, ", "import SchemeCase, glorot_std, ")
        .replace(
            "equation=equation,\n",
            "equation=equation,\n"
            "        std=lambda stack, role, layer: (\n"
            "            0.1 if role == 'embedding' and layer else glorot_std(stack, role, layer)\n"
            "        ),\n",
        )
        .replace(
            "    return 2 * config.d_model * stacks\n",
            "    layers = config.encoder_layers + config.decoder_layers\n"
            "    return 2 * config.d_model * stacks + config.vocab_size * layers\n",
        )
    )
    ended = run(folder, "check_bias.py")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("answer", [SitePlan, Learned, SchemeCase], ids=lambda kind: kind.__name__)
def test_the_page_names_everything_that_may_be_answered_or_claimed(answer):
    missing = [one.name for one in fields(answer) if not re.search(rf"\b{one.name}\b", PAGE)]
    assert not missing, f"docs/add_a_scheme.md does not say what {answer.__name__} has: {missing}"


def test_the_page_names_what_a_stream_of_values_may_do():
    own = [name for name, value in vars(ValueStream).items() if callable(value)]
    assert own == ["values"]
    assert "    def values(self" in FILES["token_bias.py"]


def test_the_page_names_what_a_stream_may_do():
    own = [name for name, value in vars(Stream).items() if callable(value)]
    assert own
    assert all(f"    def {name}(self" in FILES["echo.py"] for name in own)
