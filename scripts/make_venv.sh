#!/usr/bin/env bash
# Make a virtual environment: make_venv.sh VERSION FOLDER. A failed attempt leaves nothing behind.
set -euo pipefail

version=$1
folder=$(realpath -m "$2")
python=$(bash "$(dirname "$0")/find_python.sh" "$version") || {
  echo "Python $version is needed and was not found. Install it (python$version on the PATH) and try again." >&2
  exit 1
}
trap 'rm -rf "$folder"' ERR INT TERM

# Dependency groups came with 25.1. uv is what scripts/install.py would rather install with.
packages=('pip>=25.1' uv)
# Python's own pip installs them at once; venv would first install the pip that is bundled, for five seconds.
"$python" -m venv --without-pip "$folder" &&
  "$python" -m pip --python "$folder/bin/python" install -qq --no-compile "${packages[@]}" 2>/dev/null && exit 0

# Debian ships venv without its pip unless python3-venv is installed; uv does not need it.
"$python" -m venv "$folder" || {
  rm -rf "$folder"
  command -v uv >/dev/null || {
    echo "'$python -m venv' failed. On Debian: apt-get install python$version-venv" >&2
    false
  }
  uv venv --quiet --seed --python "$python" "$folder"
}
"$folder/bin/python" -m pip install -qq --no-compile --upgrade "${packages[@]}" ||
  "$folder/bin/python" -m pip install -qq --upgrade "${packages[0]}"
