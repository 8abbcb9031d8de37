// Kernels of a few lines, run on every of a few seeds: what they must be reported for, or nothing.
#pragma once
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/emulator/emulator.h"

namespace tw::emulator {

using testing::HasSubstr;
using Kind = Finding::Kind;

inline std::shared_ptr<const Module> compiled(const std::string& text, std::vector<std::string> notes = {}) {
    Source source{.name = "k", .text = text, .line_notes = std::move(notes)};
    return compile({&source, 1});
}

/// A kernel `k(int* out, const int* in, int n)` with this body, run on 256 ints in and out.
struct Case {
    std::string body;
    unsigned blocks = 1;
    unsigned threads = 64;
    size_t shared_bytes = 1024;
    std::vector<int> out = std::vector<int>(256, -1), in = std::vector<int>(256);
    int n = 256;
    bool in_initialised = true;

    std::string text() const {
        return "extern \"C\" __global__ void __launch_bounds__(1024) k(int* out, const int* in, int n) {\n"  // line 1
               "    int* shared = &tw::shared_memory<int>();\n"                                              // line 2
               "    const int t = threadIdx.x;\n" +                                                          // line 3
               body +
               "\n}\n";
    }

    Launch launch(int** out_pointer, int** in_pointer) {
        std::iota(in.begin(), in.end(), 0);
        *out_pointer = out.data();
        *in_pointer = in.data();
        return {.kernel = "k",
                .grid = {blocks, 1, 1},
                .threads = threads,
                .shared_bytes = shared_bytes,
                .arguments = {out_pointer, in_pointer, &n},
                .regions = {{out.data(), out.size() * 4, "out", true, false},
                            {in.data(), in.size() * 4, "in", false, in_initialised}}};
    }

    Report run(const Options& options = {}) {
        int *out_pointer, *in_pointer;
        Launch here = launch(&out_pointer, &in_pointer);
        return emulator::run(*compiled(text()), here, options);
    }
};

inline const Finding* find(const Report& report, Kind kind) {
    for (const Finding& finding : report.findings)
        if (finding.kind == kind) return &finding;
    return nullptr;
}

inline std::string all_messages(const Report& report) {
    std::string text;
    for (const Finding& finding : report.findings) text += "\n" + finding.message;
    return text;
}

/// On every seed, a finding of this kind, at this line (0: any), that says so.
inline void expect_finding(Case one, Kind kind, int line, const std::string& message) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
        Report report = one.run({.seed = seed});
        const Finding* finding = find(report, kind);
        ASSERT_TRUE(finding) << "seed " << seed << ", no " << to_string(kind) << all_messages(report) << "\n"
                             << one.text();
        EXPECT_TRUE(line == 0 || line == finding->line) << finding->line << ": " << finding->message;
        EXPECT_THAT(finding->message, HasSubstr(message)) << "seed " << seed;
    }
}

inline void expect_silence(Case one) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
        Report report = one.run({.seed = seed});
        EXPECT_TRUE(report.ok()) << "seed " << seed << all_messages(report);
    }
}

}  // namespace tw::emulator
