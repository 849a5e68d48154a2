#!/usr/bin/env bash
# Builds the workspace for Apple silicon, on Linux, against the Metal package of MLX, and checks the program's
# load commands. Nothing is installed: a compiler with the sources of Rust's standard library comes from Debian's
# packages, the C++ compiler and linker from PyPI, both unpacked into the per-user cache. Where they can't be had
# it says so and succeeds, unless the first argument is `--required`.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${FORERUN_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/forerun}/mac
required=${1:-}
jobs=${CARGO_BUILD_JOBS:-$(nproc)}
system=14.0

skip() {
  echo "mac check: $1" >&2
  [ "$required" = --required ] && exit 1
  echo "mac check: skipped" >&2
  exit 0
}

# Runs in a fresh folder and keeps it under the given name when all went well, so that a name means complete.
unpacked() {
  local name=$1 fill=$2
  [ -d "$cache/$name" ] && return
  echo "mac check: fetching $name into $cache" >&2
  mkdir -p "$cache"
  local staging
  staging=$(mktemp -d "$cache/fetch.XXXXXX")
  if (cd "$staging" && "$fill") >"$cache/fetch.log" 2>&1; then
    mv -T "$staging" "$cache/$name" 2>/dev/null || rm -rf "$staging" # another check was faster
  else
    rm -rf "$staging"
    tail -n 5 "$cache/fetch.log" >&2
    return 1
  fi
}

debian_rust() {
  set -e
  apt-get update -qq || true
  # All that these three need, as if nothing were installed, less what is: their libraries come along even where
  # another copy of the compiler is installed.
  apt-get install --print-uris -qq --no-install-recommends -o Dir::State::status=/dev/null \
    rustc-web cargo-web rust-web-src | awk '{ print $2 }' | sed 's/_.*//' >needed
  dpkg-query -W -f '${Package}\n' | grep -vE '^(rustc|cargo|rust|libstd-rust|libllvm)' >installed
  grep -vxFf installed needed >packages
  mkdir debs && (cd debs && xargs apt-get download -qq <../packages)
  for deb in debs/*.deb; do dpkg-deb -x "$deb" .; done
  rm -r debs needed installed
  test -x usr/bin/cargo -a -x usr/bin/rustc -a -d usr/lib/rustlib/src/rust/library/std
}

zig() {
  set -e
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
    --requirement "$here/ziglang.txt" --dest wheels
  python3 -m zipfile -e wheels/*.whl .
  rm -r wheels
  chmod +x ziglang/zig
}

[ "$(uname -s)" = Linux ] || skip "this machine is no Linux; build here as usual"
for tool in apt-get apt-cache dpkg-deb python3; do
  command -v "$tool" >/dev/null || skip "needs $tool"
done
unpacked rust-web debian_rust || skip "Debian's rustc-web, cargo-web and rust-web-src can't be had"
unpacked "ziglang-$(sed -n 's/^ziglang==\([^ ]*\).*/\1/p' "$here/ziglang.txt")" zig || skip "PyPI's ziglang can't be had"

export FORERUN_ZIG FORERUN_MAC_STUBS=$here/stubs MACOSX_DEPLOYMENT_TARGET=$system SDKROOT=$here/stubs
FORERUN_ZIG=$(echo "$cache"/ziglang-*/ziglang/zig | tail -n 1)
export ZIG_GLOBAL_CACHE_DIR=$cache/zig-cache ZIG_LOCAL_CACHE_DIR=$cache/zig-cache
mkdir -p "$cache/tools"
for tool in cc c++ ar link-cc; do ln -sfn "$here/zig.sh" "$cache/tools/$tool"; done

rust=$cache/rust-web/usr
libraries=$(dirname "$(find "$rust/lib" -name 'librustc_driver-*.so' | head -n 1)")
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# The standard library is built too, and only a nightly cargo does that unasked.
export RUSTC_BOOTSTRAP=1 RUSTC=$rust/bin/rustc
export CC_aarch64_apple_darwin=$cache/tools/cc CXX_aarch64_apple_darwin=$cache/tools/c++
export AR_aarch64_apple_darwin=$cache/tools/ar CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER=$cache/tools/link-cc
export CARGO_TARGET_DIR=$cache/target CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=none CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_INCREMENTAL=0
export FORERUN_CACHE_DIR=$cache FORERUN_BACKEND=metal
unset RUSTUP_TOOLCHAIN RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTDOC

started=$SECONDS
"$rust/bin/cargo" build --locked --workspace --bins --jobs "$jobs" -Zbuild-std=std,panic_abort --target aarch64-apple-darwin \
  --manifest-path "$root/Cargo.toml"
python3 "$here/macho.py" "$CARGO_TARGET_DIR/aarch64-apple-darwin/debug/forerun" --system "$system"
echo "mac check: passed in $((SECONDS - started)) s"
