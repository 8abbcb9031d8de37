#!/usr/bin/env bash
# carry.sh [preset]: collects the programs of a build (default: portable) in carry/, with the shared libraries that
# another Linux x86-64 machine may lack. There, from the project root: carry/run_tests.sh runs every test.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-portable}
build=build/$preset

cmake --preset "$preset" > /dev/null
cmake --build --preset "$preset" -j "$(nproc)"

rm -rf carry
mkdir -p carry/lib
for folder in tests tools tutorials bench; do
    [ -d "$build/$folder" ] || continue
    mkdir -p "carry/$folder"
    find "$build/$folder" -type f -executable -not -path '*/CMakeFiles/*' -not -name '*.so*' -not -name error_coverage \
        -exec install --strip -t "carry/$folder" {} +
done

# What tests and bench/compare.py load themselves.
find "$build/tests" \( -name 'libfake_*.so' -o -name 'libunknown_kernels.so' \) -exec install -t carry/lib {} +

# All but glibc, which every such machine has.
find carry -type f -exec ldd {} + | awk '$3 ~ /^\// && !/\/(libc|libm|libdl|librt|libpthread)\.so/ {print $3}' |
    sort -u | xargs -r cp -L -t carry/lib

cat > carry/run_tests.sh << 'END'
#!/usr/bin/env bash
# run_tests.sh [GoogleTest option]...: runs every test program, from the project root; closes with the ones that failed.
cd "$(dirname "$0")/.."
failed=()
for test in carry/tests/*; do
    echo "== ${test##*/}"
    "$test" --gtest_brief=1 "$@" || failed+=("${test##*/}")
done
[ ${#failed[@]} -eq 0 ] && echo "all tests passed" && exit 0
echo "failed: ${failed[*]}"
exit 1
END
chmod +x carry/run_tests.sh
du -sh carry
