#!/usr/bin/env bash
# Build the wheel and run the smoke tests against it from an empty folder: smoke_wheel.sh VENV WHEEL_VENV.
set -euo pipefail

root=$PWD
python=$root/$2/bin/python
rm -rf build/wheel
"$1/bin/python" -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
wheel=$(echo build/wheel/*.whl)
"$python" -m pip install --quiet --constraint constraints.txt --group test "$wheel[torch]"
# The version alone does not tell pip that this is another build.
"$python" -m pip install --quiet --no-deps --force-reinstall "$wheel"

empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
cd "$empty"
"$python" -P -c 'import colabstage, sys; assert colabstage.__file__.startswith(sys.prefix), colabstage.__file__'
"$python" -P -m pytest -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider "$root/tests/test_smoke.py"
