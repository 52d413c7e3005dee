#!/usr/bin/env bash
# Print the path of a Python of the given version (for example 3.13) that really runs; fail when there is none.
set -euo pipefail

version=$1
runs() { [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null)" = "$version" ]; }

# A name on the PATH may be a version manager's stand-in for something that is not there.
for candidate in \
  "$(command -v "python$version" || true)" \
  "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/"$version"*/bin/"python$version" \
  "$(uv python find --no-python-downloads "$version" 2>/dev/null </dev/null || true)"; do
  if [ -x "$candidate" ] && runs "$candidate"; then
    "$candidate" -c 'import sys; print(sys.executable)'
    exit 0
  fi
done
exit 1
