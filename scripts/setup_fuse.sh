#!/usr/bin/env bash
# See to it that FUSE can be used: install Debian's packages where that is possible, say so where it is not. Never fails.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

# Not `ldconfig -p | grep -q`: grep leaves at the first match, and a busy machine then counts ldconfig's broken pipe as
# a failure.
have_fuse() { command -v fusermount3 >/dev/null && [[ $(ldconfig -p) == *libfuse.so.2* ]]; }
have_fuse && exit 0

if [ "$(id -u)" = 0 ]; then
  as_root=(env)
elif sudo -n true 2>/dev/null; then
  as_root=(sudo -n env)
fi
apt() { timeout 300 "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 "$@" </dev/null >/dev/null 2>&1; }
# Newer Debian and Ubuntu releases call libfuse2 libfuse2t64.
install() { apt install -y fuse3 libfuse2 || apt install -y fuse3 libfuse2t64; }

if [ -v as_root ] && command -v apt-get >/dev/null; then
  echo "Installing fuse3 and libfuse2 ..."
  install || { apt update && install; }
fi
have_fuse || echo "FUSE is not installed and cannot be from here: tests that need it are skipped. To have it: sudo apt-get install fuse3 libfuse2"
exit 0
