#!/usr/bin/env bash
# Make a folder of wheels to install from without internet: wheels.sh FOLDER [PYTHON_VERSION].
# The wheels are those of 64-bit Linux, for Python 3.12 (Kaggle's) unless another version is given.
set -euo pipefail

folder=${1:?usage: bash scripts/wheels.sh FOLDER [PYTHON_VERSION]}
python3 -m pip wheel --quiet --no-deps --wheel-dir "$folder" .
platforms=()
# pip compares these literally: a package may be built for any of them, and each runs on the images of today.
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do
  platforms+=(--platform "${platform}_x86_64")
done
python3 -m pip download --quiet --dest "$folder" --only-binary :all: --python-version "${2:-3.12}" \
  "${platforms[@]}" "$folder"/colabstage-*.whl
ls "$folder"
