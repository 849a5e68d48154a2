#!/usr/bin/env bash
# Stands in for Apple's `cc`, `c++`, `ar` and linking `cc` (by the name it is called with) on Linux. It drops what
# Apple's compiler driver is told and zig is not: zig takes the target and its oldest system in one argument.
set -euo pipefail
tool=$(basename "$0")
if [ "$tool" = ar ]; then
  exec "$FORERUN_ZIG" ar "$@"
fi
kept=()
while [ $# -gt 0 ]; do
  case $1 in
    -arch | -isysroot) shift ;;
    --target=* | -mmacosx-version-min=* | -mmacos-version-min=*) ;;
    *) kept+=("$1") ;;
  esac
  shift
done
# Asked about itself, zig leaves an empty object file where it stands.
case ${1:-} in --version | --print-search-dirs) cd "$(dirname "$0")" ;; esac
target=(-target "aarch64-macos.$MACOSX_DEPLOYMENT_TARGET" -fno-sanitize=undefined)
case $tool in
  cc) exec "$FORERUN_ZIG" cc "${target[@]}" "${kept[@]}" ;;
  c++) exec "$FORERUN_ZIG" c++ "${target[@]}" "${kept[@]}" ;;
  link-cc) exec "$FORERUN_ZIG" c++ "${target[@]}" -L"$FORERUN_MAC_STUBS" -F"$FORERUN_MAC_STUBS" "${kept[@]}" ;;
  *) echo "$tool: not a tool that zig.sh stands in for" >&2 && exit 2 ;;
esac
