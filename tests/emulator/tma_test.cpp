// Barriers that count bytes, and bulk copies: each rule broken once.
#include <optional>

#include "runtime/emulator/units/tensor_map_bits.h"
#include "tests/emulator/small_kernels.h"

namespace tw::emulator {
namespace {

/// A kernel `k(const TensorMap map, const TensorMap out_map, int* out)` of 64 threads. `map` is of in [32, 32] int,
/// which holds 0, 1, 2, ...; boxes of [8, 32] without swizzle: 1024 bytes; out_map is of out, likewise.
struct TmaCase {
    std::string body;  // from line 8 on
    unsigned cluster = 1;
    bool init = true;

    std::string text() const {
        const std::string begin = init ? "if (t == 0) { tw::mbarrier_init(s.full, 1); tw::mbarrier_init(s.empty, 64); "
                                         "tw::fence_mbarrier_init(); }\n__syncthreads();\n"
                                       : "\n\n";
        return "struct Shared { alignas(1024) int a[2][256]; tw::Barrier full, empty; };\n"
               "extern \"C\" __global__ void __launch_bounds__(64) k(const __grid_constant__ tw::TensorMap map,\n"
               "    const __grid_constant__ tw::TensorMap out_map, int* out) {\n"
               "    Shared& s = tw::shared_memory<Shared>();\n"
               "    const int t = threadIdx.x;\n" +
               begin + body + "\n}\n";
    }

    std::vector<int> out = std::vector<int>(1024, -1);
    std::optional<TensorMapBits> other = {};  // in place of `map`, of the same memory
    uint64_t out_columns = 32;                // of those that lie in out

    Report run(const Options& options) {
        alignas(16) static int in[1024];
        std::iota(in, in + 1024, 0);
        int* out_pointer = out.data();
        TensorMapBits map{.base = reinterpret_cast<uint64_t>(in),
                          .sizes = {32, 32},
                          .strides = {128},
                          .box = {32, 8},
                          .rank = 2,
                          .element = TensorElement::S32,
                          .swizzle_span = 16};
        map.magic = TensorMapBits::Magic;
        TensorMapBits out_map = map;
        if (other) {
            other->base = map.base;
            map = *other;
        }
        out_map.base = reinterpret_cast<uint64_t>(out_pointer);
        out_map.sizes[0] = out_columns;
        struct alignas(64) Padded {
            TensorMapBits bits;
            char rest[128 - sizeof(TensorMapBits)];
        } maps[2] = {{map, {}}, {out_map, {}}};
        Launch launch{.kernel = "k", .grid = {cluster, 1, 1}, .threads = 64, .cluster = cluster, .shared_bytes = 4096};
        launch.arguments = {&maps[0], &maps[1], &out_pointer};
        launch.regions = {{in, sizeof in, "in", false, true}, {out.data(), out.size() * 4, "out", true, true}};
        return emulator::run(*compiled(text()), launch, options);
    }
};

void expect_finding(TmaCase one, Kind kind, const std::string& message) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        Report report = one.run({.seed = seed});
        const Finding* finding = find(report, kind);
        ASSERT_TRUE(finding) << "seed " << seed << ", no " << to_string(kind) << all_messages(report) << "\n"
                             << one.text();
        EXPECT_THAT(finding->message, HasSubstr(message)) << "seed " << seed;
    }
}

void expect_silence(TmaCase one) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        Report report = one.run({.seed = seed});
        ASSERT_TRUE(report.ok()) << "seed " << seed << all_messages(report) << one.text();
    }
}

const std::string Load =
    "if (t == 0) { tw::mbarrier_expect_tx(s.full, 1024); tw::tma_load<2>(s.a[0], map, 0, 8, s.full); }\n";
const std::string Wait = "tw::mbarrier_wait(s.full, 0);\n";
const std::string Use = "out[t] = s.a[0][t];\n";
const std::string Fence = "tw::fence_proxy_async();\n", Sync = "__syncthreads();\n";

TEST(Tma, LoadsArriveBehindTheWait) {
    expect_silence({Load + Wait + Use});
    TmaCase one{Load + Wait + "for (int i = t; i < 256; i += 64) out[i] = s.a[0][i];"};
    for (uint64_t seed = 0; seed < 8; ++seed) {
        EXPECT_TRUE(one.run({.seed = seed}).ok());
        for (int i = 0; i < 256; ++i) ASSERT_EQ(one.out[size_t(i)], 256 + i);
    }
    // What lies outside of the tensor comes as zeros, and counts.
    one.body =
        "if (t == 0) { tw::mbarrier_expect_tx(s.full, 1024); tw::tma_load<2>(s.a[0], map, -16, 30, s.full); }\n" +
        Wait + "for (int i = t; i < 256; i += 64) out[i] = s.a[0][i];";
    EXPECT_TRUE(one.run({}).ok());
    for (int i = 0; i < 256; ++i) {
        const int row = 30 + i / 32, column = i % 32 - 16;
        EXPECT_EQ(one.out[size_t(i)], row < 32 && column >= 0 ? row * 32 + column : 0) << i;
    }
}

TEST(Tma, LoadsMustBeWaitedFor) {
    expect_finding({Load + Use + Wait}, Kind::Race, "the tma_load of thread (0,0,0)");
    expect_finding({Load + "__syncthreads();\n" + Use + Wait}, Kind::Race, "race on shared memory");
    // Whoever was told by one who waited need not wait.
    expect_silence({Load + "if (t == 0) " + Wait + "__syncthreads();\n" + Use});
    expect_finding({Load + "if (t == 0) " + Wait + "if (t < 32) __syncwarp();\n" + Use}, Kind::Race,
                   "race on shared memory");
}

TEST(Tma, NoBlockEndsBeforeItsCopies) {
    expect_finding({Load}, Kind::Misuse, "");
    expect_finding({Load + "if (t == 0) return;\n"}, Kind::Misuse, "shared memory");
    expect_silence({Load + "if (t == 3) " + Wait});
}

TEST(Tma, BytesMustAgree) {
    auto with_bytes = [](const std::string& bytes) {
        return TmaCase{"if (t == 0) { tw::mbarrier_expect_tx(s.full, " + bytes +
                       "); tw::tma_load<2>(s.a[0], map, 0, 8, s.full); }\n" + Wait + Use};
    };
    expect_finding(
        with_bytes("2048"), Kind::Deadlock,
        "for phase 0 of the barrier at byte 2048 of shared memory, whose phase 0 has 1 of 1 arrivals and 1024 "
        "bytes to come");
    expect_finding(with_bytes("512"), Kind::Deadlock, "-512 bytes to come");
    expect_finding(with_bytes("1 << 20"), Kind::Misuse, "leaves 1048576 bytes to come");
    expect_finding({Load + "tw::mbarrier_wait(s.full, 1);\n" + Use}, Kind::Race, "race on shared memory");
}

TEST(Tma, RowsOfBoxesBeginAtMultiplesOf16Bytes) {
    expect_finding(
        {"if (t == 0) { tw::mbarrier_expect_tx(s.full, 1024); tw::tma_load<2>(s.a[0], map, 2, 8, s.full); }\n" + Wait},
        Kind::Misuse, "an innermost coordinate of 2, byte 8 of a row; it takes multiples of 16 bytes");
}

TEST(Tma, BuffersAreFreeBehindTheReaders) {
    const std::string again =
        "if (t == 0) { tw::mbarrier_expect_tx(s.full, 1024); tw::tma_load<2>(s.a[0], map, 0, 0, s.full); }\n";
    const std::string arrive = "tw::mbarrier_arrive(s.empty);\n", wait = "if (t == 0) tw::mbarrier_wait(s.empty, 0);\n";
    const std::string end = "tw::mbarrier_wait(s.full, 1);\n";
    expect_silence({Load + Wait + Use + Fence + arrive + wait + again + end});
    // Reads that are still under way may be overtaken: seen on an H200.
    expect_finding({Load + Wait + Use + arrive + wait + again + end}, Kind::Unfenced,
                   "read at k.cu:10; fence_proxy_async must");
    expect_finding({Load + Wait + Use + arrive + wait + "if (t == 0) " + Fence + again + end}, Kind::Unfenced,
                   "writes 4 bytes at byte");
    expect_finding({Load + Wait + Use + again + end}, Kind::Race,
                   "the tma_load of thread (0,0,0) of block (0,0,0) writes");
    expect_finding({Load + Wait + arrive + Use + wait + again + end}, Kind::Race, "race on shared memory");
    expect_finding({Load + Wait + Use + "if (t != 5) " + arrive + wait + again + end}, Kind::Deadlock,
                   "63 of 64 arrivals");
    expect_finding({Load + Wait + Use + arrive +
                    "__syncthreads();\nif (t == 5) tw::mbarrier_expect_tx(s.empty, 16);\n__syncthreads();\n"
                    "for (int i = 0; i < 64; ++i) tw::mbarrier_arrive(s.empty);"},
                   Kind::Misuse, "at which all 64 of phase 1 have arrived and 16 bytes are to come");
}

TEST(Tma, BarriersBeginWithInit) {
    TmaCase none{Load + Wait + Use};
    none.init = false;
    expect_finding(none, Kind::Misuse, "where mbarrier_init has made none");
    none.body = "if (t == 0) { tw::mbarrier_init(s.full, 1); tw::fence_mbarrier_init(); }\n" + Wait;
    for (uint64_t seed = 0; seed < 8; ++seed) EXPECT_FALSE(none.run({.seed = seed}).ok());
    none.body = "if (t == 0) tw::mbarrier_init(s.full, 1);\n__syncthreads();\n" + Load + Wait + Use;
    expect_finding(none, Kind::Misuse, "nobody has called fence_mbarrier_init");
    expect_finding({"if (t == 0) tw::mbarrier_init(s.full, 1);"}, Kind::Misuse, "again");
    expect_finding({"if (t == 0) tw::mbarrier_init(s.full, 0);"}, Kind::Misuse, "for 0 arrivals");
    expect_finding({"tw::Barrier own;\ntw::mbarrier_init(own, 1);"}, Kind::Misuse, "not in shared memory");
    expect_finding({"tw::Barrier own;\ntw::mbarrier_wait(own, 1);"}, Kind::Misuse, "not in shared memory");
    expect_finding({"tw::mbarrier_wait(s.full, 2);"}, Kind::Misuse, "the parity is 0 or 1");
}

const std::string Fill = "for (int i = t; i < 256; i += 64) s.a[1][i] = i;\n";
const std::string Store = "if (t == 0) { tw::tma_store<2>(out_map, 0, 4, s.a[1]); tw::tma_store_commit(); }\n";
const std::string StoresRead = "if (t == 0) tw::tma_store_wait_read<0>();\n",
                  Stored = "if (t == 0) tw::tma_store_wait<0>();\n";

TEST(Tma, StoresReadWhatWasFenced) {
    for (const std::string& end : {StoresRead, Stored}) {
        TmaCase one{Fill + Fence + Sync + Store + end};
        for (uint64_t seed = 0; seed < 8; ++seed) {
            one.out.assign(1024, -1);
            EXPECT_TRUE(one.run({.seed = seed}).ok());
            for (int i = 0; i < 1024; ++i) ASSERT_EQ(one.out[size_t(i)], i >= 128 && i < 384 ? i - 128 : -1);
        }
    }
    expect_silence({Fill + Sync + Fence + Store + Stored});
    expect_finding({Fill + Sync + Store + Stored}, Kind::Unfenced,
                   "the tma_store of thread (0,0,0) of block (0,0,0) reads 4 bytes");
    expect_finding({Fence + Fill + Sync + Store + Stored}, Kind::Unfenced, "fence_proxy_async must come between");
    expect_finding({Fill + Fence + Store + Stored}, Kind::Race, "the tma_store of thread (0,0,0)");
}

TEST(Tma, StoresAreWaitedForByTheirThread) {
    const std::string stored = Fill + Fence + Sync + Store, write = Sync + "s.a[1][t] = 0;\n";
    expect_silence({stored + StoresRead + write + Stored});
    expect_finding({stored + write + Stored}, Kind::Race, "the tma_store of thread (0,0,0)");
    expect_finding({stored}, Kind::Misuse,
                   "returns from the kernel without tma_store_wait or tma_store_wait_read for its tma_store");
    expect_finding({Fill + Fence + Sync + "if (t == 0) tw::tma_store<2>(out_map, 0, 4, s.a[1]);\n" + Stored},
                   Kind::Misuse, "returns from the kernel without");
    expect_silence({stored + Stored + "if (t == 0) out[1] += out[130];"});
    expect_finding({stored + StoresRead + "if (t == 0) out[1] += out[130];"}, Kind::Race, "race on 'out'");
    expect_finding({stored + "if (t == 0) { tw::tma_store_commit(); tw::tma_store_wait_read<1>(); }\n" +
                    write.substr(0, Sync.size()) + "if (t == 0) tw::tma_store_wait<1>();\nout[128 + t] = 1;"},
                   Kind::Race, "race on 'out'");
}

TEST(Tma, ReduceAddsToWhatIsThere) {
    TmaCase one{Fill + Fence + Sync +
                "if (t == 0) { tw::tma_reduce_add<2>(out_map, 0, 4, s.a[1]); tw::tma_reduce_add<2>(out_map, 0, 6, "
                "s.a[1]); tw::tma_store_commit(); }\n" +
                Stored};
    EXPECT_TRUE(one.run({}).ok());
    for (int i = 0; i < 1024; ++i) {
        const int first = i >= 128 && i < 384 ? i - 128 : 0, second = i >= 192 && i < 448 ? i - 192 : 0;
        ASSERT_EQ(one.out[size_t(i)], -1 + first + second);
    }
    expect_finding({Fill + Fence + Sync +
                    "if (t == 0) { tw::tma_store<2>(out_map, 0, 4, s.a[1]); tw::tma_store<2>(out_map, 0, 6, s.a[1]); "
                    "tw::tma_store_commit(); }\n" +
                    Stored},
                   Kind::Race, "race on 'out'");
}

/// Rows of 30 ints, 128 bytes apart: the last two of a box's 32 go to what lies between the rows.
TEST(Tma, WholeUnitsLeave) {
    const std::string fill = "for (int i = t; i < 256; i += 64) s.a[1][i] = i;\n" + Fence + Sync;
    TmaCase one;
    one.out_columns = 30;
    for (bool adds : {false, true}) {
        const std::string name = adds ? "tma_reduce_add" : "tma_store";
        const auto leave = [&](int row) {
            return fill +
                   fmt::format("if (t == 0) {{ tw::{}<2>(out_map, 0, {}, s.a[1]); tw::tma_store_commit(); }}\n", name,
                               row) +
                   Stored;
        };
        one.body = leave(4);
        for (uint64_t seed = 0; seed < 8; ++seed) {
            one.out.assign(1024, -1);
            Report report = one.run({.seed = seed});
            ASSERT_TRUE(report.ok()) << all_messages(report);
            for (int i = 0; i < 1024; ++i) ASSERT_EQ(one.out[size_t(i)], i < 128 || i >= 384 ? -1 : i - 128 - adds);
        }
        // Others may not use what lies there meanwhile.
        one.body = leave(4) + "if (t == 63) out[4 * 32 + 31] = 0;";
        expect_finding(one, Kind::Race, "race on 'out'");
        // The tensor's last row ends with the memory, within a unit.
        one.out.assign(1022, -1);
        one.body = leave(24);
        const std::string does = adds ? "atomically updates" : "writes";
        expect_finding(one, Kind::OutOfBounds,
                       fmt::format("the {} of thread (0,0,0) of block (0,0,0) {} 16 bytes at byte 4080 of 'out', which "
                                   "has 4088 bytes",
                                   name, does));
        one.out.assign(1024, -1);
    }
}

TEST(Tma, PhasesThatNobodyWaitedForCannotBeToldApart) {
    const std::string arrive = "if (t == 0) tw::mbarrier_arrive(s.full);\n";
    expect_silence({arrive + "if (t == 0) " + Wait + arrive});
    expect_finding({arrive + arrive}, Kind::Misuse, "before anybody has waited for phase 0");
    // The only one who waits does so for the second phase.
    expect_finding({arrive + arrive + "if (t == 0) tw::mbarrier_wait(s.full, 1);"}, Kind::Misuse,
                   "completes phase 1 of the barrier at byte 2048");
}

TEST(Tma, WhatItDoesNotTake) {
    for (const char* place : {"-1, 0", "0, -8"})
        expect_finding({fmt::format("if (t == 0) tw::tma_store<2>(out_map, {}, s.a[1]);", place)}, Kind::Misuse,
                       place[0] == '0' ? "passes tma_store coordinate -8" : "an innermost coordinate of -1");
    for (int ints : {4, 8, 16, 48})
        expect_finding({fmt::format("if (t == 0) tw::tma_load<2>(s.a[0] + {}, map, 0, 0, s.full);", ints)},
                       Kind::Misuse,
                       fmt::format("passes tma_load byte {} of shared memory; it takes multiples of 128", 4 * ints));
    expect_finding({"if (t == 0) tw::tma_load<2>(out, map, 0, 0, s.full);"}, Kind::Misuse,
                   "what is not in its shared memory");
    expect_finding({"if (t == 0) tw::tma_load<3>(s.a[0], map, 0, 0, 0, s.full);"}, Kind::Misuse,
                   "3 coordinates for a tensor of 2 dimensions");
    expect_finding({"tw::TensorMap none = {};\nif (t == 0) tw::tma_load<2>(s.a[0], none, 0, 0, s.full);"}, Kind::Misuse,
                   "no tensor map of this device");
    expect_finding({"if (t == 0) tw::tma_load_multicast<2>(s.a[0], map, 0, 0, s.full, 2);"}, Kind::Misuse,
                   "rank 1 of a cluster of 1 blocks");
    expect_finding(
        {"if (t == 0) { tw::mbarrier_expect_tx(s.full, 1024); tw::tma_load<2>(s.a[0] + 896, map, 0, 0, s.full); }\n" +
         Wait},
        Kind::OutOfBounds, "shared memory");
}

/// Boxes of [8, 8]: 32 bytes of each line of 128.
TEST(Tma, TilesBeginAtMultiplesOf128BytesUnderAnySwizzle) {
    TmaCase one{"for (int i = t; i < 512; i += 64) s.a[0][i] = -1;\n" + Fence + Sync +
                "if (t == 0) { tw::mbarrier_expect_tx(s.full, 256); tw::tma_load<2>(s.a[0] + 96, map, 8, 8, s.full); "
                "}\n" +
                Wait + "for (int i = t; i < 512; i += 64) out[i] = s.a[0][i];"};
    one.other = {.sizes = {32, 32}, .strides = {128}, .box = {8, 8}, .rank = 2, .element = TensorElement::S32};
    one.other->magic = TensorMapBits::Magic;
    one.other->swizzle_span = 128;
    for (uint64_t seed = 0; seed < 8; ++seed) {
        Report report = one.run({.seed = seed});
        ASSERT_TRUE(report.ok()) << all_messages(report);
        std::vector<int> expected(512, -1);
        for (int row = 0; row < 8; ++row)
            for (int column = 0; column < 8; ++column) {
                const int line = 3 + row, unit = column / 4 ^ line % 8;
                expected[size_t(line * 32 + unit * 4 + column % 4)] = (8 + row) * 32 + 8 + column;
            }
        for (size_t i = 0; i < 512; ++i) ASSERT_EQ(one.out[i], expected[i]) << i;
    }
    // What lies between the rows is not written: others may use it meanwhile.
    expect_silence(one);
    one.body =
        "if (t == 0) { tw::mbarrier_expect_tx(s.full, 1024); tw::tma_load<2>(s.a[0], map, 0, 0, s.full); }\n" + Wait;
    expect_finding(one, Kind::Deadlock, "768 bytes to come");
}

/// [4 images, 8 pixels, 32 channels]: columns of 8 pixels with 32 channels, 1024 bytes, of a filter of 3 taps.
TmaCase with_im2col(const std::string& body) {
    TmaCase one{body};
    one.other = {.sizes = {32, 8, 4}, .strides = {128, 1024}, .box = {32, 8}, .rank = 3, .element = TensorElement::S32};
    one.other->magic = TensorMapBits::Magic;
    one.other->swizzle_span = 16;
    one.other->is_im2col = true;
    one.other->im2col = {.lower = {-1}, .upper = {-1}};
    return one;
}

std::string load_im2col(int w, int n, int offset) {
    return fmt::format(
        "if (t == 0) {{ tw::mbarrier_expect_tx(s.full, 1024); tw::tma_load_im2col<3>(s.a[0], map, 0, {}, {}, {}, "
        "s.full); }}\n",
        w, n, offset);
}

TEST(Im2col, PixelsGoOnInTheNextImage) {
    TmaCase one = with_im2col(load_im2col(3, 1, 2) + Wait + "for (int i = t; i < 256; i += 64) out[i] = s.a[0][i];");
    for (uint64_t seed = 0; seed < 8; ++seed) {
        Report report = one.run({.seed = seed});
        ASSERT_TRUE(report.ok()) << all_messages(report);
        const int rows[] = {8 + 5, 8 + 6, 8 + 7, -1, 16 + 1, 16 + 2, 16 + 3, 16 + 4};
        for (int i = 0; i < 256; ++i)
            ASSERT_EQ(one.out[size_t(i)], rows[i / 32] < 0 ? 0 : rows[i / 32] * 32 + i % 32) << i;
    }
    expect_finding(with_im2col(load_im2col(3, 1, 2) + Use + Wait), Kind::Race, "the tma_load_im2col of thread (0,0,0)");
}

TEST(Im2col, WhatItDoesNotTake) {
    for (int w : {-2, 7})
        expect_finding(with_im2col(load_im2col(w, 0, 0) + Wait), Kind::Misuse,
                       fmt::format("passes tma_load_im2col w = {}, outside of the bounding box, which has [-1, 7)", w));
    expect_silence(with_im2col(load_im2col(-1, -1, 0) + Wait));
    expect_silence(with_im2col(load_im2col(6, 4, 65535) + Wait));
    for (int offset : {-1, 65536})
        expect_finding(with_im2col(load_im2col(0, 0, offset) + Wait), Kind::Misuse,
                       fmt::format("an offset of {} in w; with 3 dimensions it takes 0 to 65535", offset));
    TmaCase four = with_im2col("if (t == 0) tw::tma_load_im2col<4>(s.a[0], map, 0, 0, 0, 0, 2, 256, s.full);");
    four.other->rank = 4;
    four.other->sizes[3] = 1;
    expect_finding(four, Kind::Misuse, "an offset of 256 in h; with 4 dimensions it takes 0 to 255");
    four.body = "if (t == 0) tw::tma_load_im2col<4>(s.a[0], map, 0, 0, 4, 0, 0, 0, s.full);";
    expect_finding(four, Kind::Misuse, "passes tma_load_im2col h = 4, outside of the bounding box, which has [0, 4)");
    expect_finding(with_im2col("if (t == 0) tw::tma_load_im2col<3>(s.a[0], map, 2, 0, 0, 0, s.full);"), Kind::Misuse,
                   "passes tma_load_im2col an innermost coordinate of 2");
    expect_finding({"if (t == 0) tw::tma_load_im2col<4>(s.a[0], map, 0, 0, 0, 0, 0, 0, s.full);"}, Kind::Misuse,
                   "passes tma_load_im2col 4 coordinates for a tensor of 2 dimensions");
    TmaCase boxes{"if (t == 0) tw::tma_load_im2col_multicast<3>(s.a[0], map, 0, 0, 0, 0, s.full, 1);"};
    boxes.other = with_im2col("").other;
    boxes.other->is_im2col = false;
    expect_finding(boxes, Kind::Misuse, "passes tma_load_im2col_multicast a map of boxes; it takes an im2col map");
    expect_finding(with_im2col("if (t == 0) tw::tma_load<3>(s.a[0], map, 0, 0, 0, s.full);"), Kind::Misuse,
                   "passes tma_load an im2col map, which tma_load_im2col alone takes");
    expect_finding(with_im2col("if (t == 0) tw::tma_store<3>(map, 0, 0, 0, s.a[0]);"), Kind::Misuse,
                   "passes tma_store an im2col map");
}

TEST(Cluster, BlocksMeetAndReachEachOther) {
    TmaCase one{
        "s.a[0][t] = 100 * tw::cluster_rank() + t;\ntw::cluster_arrive();\ntw::cluster_wait();\n"
        "out[blockIdx.x * 64 + t] = *tw::peer_shared(&s.a[0][t], (tw::cluster_rank() + 1) % 4);\n"
        "tw::cluster_arrive();\ntw::cluster_wait();",
        4};
    for (uint64_t seed = 0; seed < 8; ++seed) {
        Report report = one.run({.seed = seed});
        ASSERT_TRUE(report.ok()) << all_messages(report);
        for (int i = 0; i < 256; ++i) ASSERT_EQ(one.out[size_t(i)], 100 * ((i / 64 + 1) % 4) + i % 64);
    }
    one.body =
        "s.a[0][t] = t;\n__syncthreads();\nout[blockIdx.x * 64 + t] = *tw::peer_shared(&s.a[0][t], (tw::cluster_rank() "
        "+ 1) % 4);";
    for (uint64_t seed = 0; seed < 8; ++seed) EXPECT_FALSE(one.run({.seed = seed}).ok());
    expect_finding({"tw::cluster_wait();", 2}, Kind::Divergence, "without cluster_arrive before");
    expect_finding({"tw::cluster_arrive();\ntw::cluster_arrive();", 2}, Kind::Divergence,
                   "again, without cluster_wait between");
    one.body = "if (t || blockIdx.x) { tw::cluster_arrive(); tw::cluster_wait(); }";
    for (uint64_t seed = 0; seed < 8; ++seed) EXPECT_FALSE(one.run({.seed = seed}).ok());
    one.body =
        "s.a[0][t] = t;\ntw::cluster_arrive();\ntw::cluster_wait();\nif (blockIdx.x) out[t] = "
        "*tw::peer_shared(&s.a[0][t], 0);";
    expect_finding(one, Kind::Misuse, "shared memory");
    expect_finding({"out[t] = *tw::peer_shared(&s.a[0][t], 2);", 2}, Kind::Misuse, "rank 2 of a cluster of 2 blocks");
}

const std::string ClusterSync = "tw::cluster_arrive();\ntw::cluster_wait();\n";
const std::string Multicast =
    "if (t == 0) tw::mbarrier_expect_tx(s.full, 2048);\n"
    "if (t == 0) tw::tma_load_multicast<2>(s.a[tw::cluster_rank()], map, 0, 8 * tw::cluster_rank(), s.full, 3);\n";

TEST(Cluster, MulticastReachesAll) {
    TmaCase one{ClusterSync + Multicast + Wait +
                    "for (int i = t; i < 512; i += 64) out[blockIdx.x * 512 + i] = s.a[i / 256][i % 256];\n" +
                    ClusterSync,
                2};
    for (uint64_t seed = 0; seed < 12; ++seed) {
        Report report = one.run({.seed = seed});
        ASSERT_TRUE(report.ok()) << all_messages(report);
        for (int i = 0; i < 1024; ++i) ASSERT_EQ(one.out[size_t(i)], i % 512);
    }
    // Without the barrier of the cluster a peer's barriers may not exist.
    one.body = Multicast + Wait + ClusterSync;
    for (uint64_t seed = 0; seed < 12; ++seed) EXPECT_FALSE(one.run({.seed = seed}).ok()) << seed;
}

TEST(Cluster, RelaxedArrivalsSayThatReadsAreOver) {
    // Both blocks read their part before either loads again into both.
    const std::string again =
        "if (t == 0) { tw::mbarrier_expect_tx(s.full, 2048); tw::tma_load_multicast<2>(s.a[tw::cluster_rank()], map, "
        "0, 8, "
        "s.full, 3); }\ntw::mbarrier_wait(s.full, 1);\n";
    const std::string init =
        "if (t == 0) { tw::mbarrier_init(s.full, 1); tw::mbarrier_init(s.empty, 128); tw::fence_mbarrier_init(); }\n" +
        ClusterSync;
    const std::string read = "out[blockIdx.x * 64 + t] = s.a[0][t] + s.a[1][t];\n";
    const std::string arrive = "for (int r = 0; r < 2; ++r) tw::mbarrier_arrive_at(s.empty, r);\n",
                      wait = "if (t == 0) tw::mbarrier_wait(s.empty, 0);\n";
    TmaCase one{init + Multicast + Wait + read + Fence + arrive + wait + again + ClusterSync, 2, false};
    expect_silence(one);
    one.body = init + Multicast + Wait + arrive + read + wait + again + ClusterSync;
    expect_finding(one, Kind::Race, "race on shared memory");
    one.body = init + Multicast + Wait + read + again + ClusterSync;
    expect_finding(one, Kind::Race, "race on shared memory");
    // Nothing that was written is shown.
    one.body = init + "s.a[0][t] = t;\n" + arrive +
               "tw::mbarrier_wait(s.empty, 0);\nout[blockIdx.x * 64 + t] = s.a[0][t ^ 1];\n" + ClusterSync;
    expect_finding(one, Kind::Race, "race on shared memory");
}

}  // namespace
}  // namespace tw::emulator
