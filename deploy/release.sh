#!/usr/bin/env bash
# Makes a release page as a folder: the bundle, the Python wheel, NOTES.md from the changelog, and SHA256SUMS.
#   deploy/release.sh                            builds //deploy:bundle and writes release/VERSION
#   deploy/release.sh --out FOLDER               writes FOLDER, which must not exist yet
#   deploy/release.sh --bundle ARCHIVE.tar.xz    takes a built bundle, and may be repeated; the first gives the wheel
# shellcheck disable=SC1091,SC2154
out="" bundles=()
fail() {
  echo "release.sh: $*" >&2
  exit "${code:-1}"
}
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      sed -n '2,5s/^# //p' "$0"
      exit 0
      ;;
    --out | --bundle)
      if [ -z "${2:-}" ]; then code=2 fail "$1 needs a value"; fi
      if [ "$1" = --out ]; then out=$(realpath -m "$2"); else bundles+=("$(realpath -m "$2")"); fi
      shift 2
      ;;
    *) code=2 fail "unknown argument '$1': there are --out and --bundle" ;;
  esac
done

. "$(dirname "$0")/common.sh"

absent() { [ ! -e "$1" ] || fail "$1 exists: remove it, or name another folder with --out"; }
if [ -n "$out" ]; then absent "$out"; fi

built=""
if [ ${#bundles[@]} -eq 0 ]; then
  say "build"
  trap 'bazel_ shutdown >/dev/null 2>&1 || true' EXIT
  use_build_cache
  bazel_ build "${quiet[@]}" //deploy:bundle
  bundles=("$(bazel_ info bazel-bin 2>/dev/null)"/deploy/bundle/*.tar.xz)
  built="Built from commit $(git describe --always --dirty), by $(ldd --version | head -n 1)."$'\n'
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"; if [ -n "$built" ]; then bazel_ shutdown >/dev/null 2>&1 || true; fi' EXIT
mkdir "$folder/page"
version=""
for bundle in "${bundles[@]}"; do
  name=$(basename "$bundle")
  [ -f "$bundle" ] || fail "there is no file $bundle"
  [ ! -e "$folder/page/$name" ] || fail "two bundles have the name $name"
  mkdir "$folder/$name"
  tar -xf "$bundle" -C "$folder/$name" --strip-components=1 2>"$folder/tar" ||
    fail "$bundle is no packed tar archive: $(tr '\n' ' ' <"$folder/tar")"
  contents=$folder/$name/share/doc/iris/CONTENTS
  [ -f "$contents" ] || fail "$bundle is no bundle of Iris: it has no share/doc/iris/CONTENTS"
  its=$(sed -n '1s/^Iris \([^ ]*\) for .*/\1/p' "$contents")
  [ "${version:=$its}" = "$its" ] || fail "$bundle has Iris $its, and the bundle before it $version"
  cp "$bundle" "$folder/page/"
done
first=$folder/$(basename "${bundles[0]}")
out=${out:-release/$version}
absent "$out"

python3 "$first/share/iris/wheel.py" "$first" "$folder/page" >/dev/null

# The part of the changelog below "## [NAME]".
changes() { awk -v head="## [$1]" '/^## / { on = index($0, head) == 1; next } on' CHANGELOG.md; }

text=$(changes "$version")
title="Changes in $version"
if [ -z "$text" ]; then text=$(changes Unreleased) title="Changes, not released yet"; fi
[ -n "$text" ] || fail "CHANGELOG.md has neither a section [$version] nor [Unreleased]"
# readelf fails on the files that are no programs.
glibc=$({ find "$first/bin" "$first/lib" -type f -exec readelf -W --dyn-syms {} + 2>/dev/null || true; } |
  grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
{
  cat <<END
# Iris $version

For Linux on x86-64. Its programs and libraries use symbols up to ${glibc/GLIBC_/glibc }; a bundle
unpacks anywhere, and the wheel is installed with \`pip install\`.
$built
| file | bytes | what it has |
|---|---|---|
END
  for path in "$folder/page"/*; do
    name=$(basename "$path")
    what="the package \`iris\` for Python, with irisd"
    if [ -d "$folder/$name" ]; then
      what=$(paste -sd ' ' "$folder/$name/share/doc/iris/CONTENTS")
      if [ ! -e "$folder/$name/bin/iris-gpu-check" ]; then what+=" Without tests and benchmarks."; fi
    fi
    echo "| $name | $(stat -c %s "$path") | $what |"
  done
  printf '\n%s\n' "\`sha256sum -c SHA256SUMS\` checks the files." "## $title"
  echo "$text"
} >"$folder/NOTES.md"
mv "$folder/NOTES.md" "$folder/page/"
(cd "$folder/page" && sha256sum -- * >"$folder/SHA256SUMS" && mv "$folder/SHA256SUMS" .)

mkdir -p "$(dirname "$out")"
mv "$folder/page" "$out"
chmod 755 "$out"
chmod 644 "$out"/*
du -b "$out"/*
