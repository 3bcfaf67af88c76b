#!/bin/sh
# Builds benchmarks/.venv: this package beside the four peers it is measured against.
#
#   sh benchmarks/setup_peers.sh            (PYTHON=python3.12 to choose another interpreter)
#
# torch comes first and every later install passes the same constraints, so that no peer can bring
# another torch. torchscale and fairscale ask for old or unavailable companions (timm needs
# torchvision), so both come without their dependencies; the one function that torchscale imports
# from timm is provided by benchmarks/timm_stand_in, which is copied into this environment alone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python="$here/.venv/bin/python"

[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$here/.venv"
install() { "$python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "$@"; }

install torch
install numpy setuptools
install pytest hypothesis pytorch-optimizer # gpu.sh runs tests/gpu by this environment
install transformers==5.23.0 x-transformers==2.31.10 einops
install --no-deps torchscale==0.3.0 fairscale==0.4.13
install -e "$root"

site=$("$python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
rm -rf "$site/timm"
cp -R "$here/timm_stand_in" "$site/timm"
"$python" "$here/versions.py"
