// The tuner's records: texts of tilings, lines of JSON, and which of them a product takes.
#include "schedules/tuned_records.h"

#include <set>

#include "schedules/catalog.h"
#include "schedules/choices.h"
#include "schedules/tensor_product_names.h"
#include "schedules/tensor_product_space.h"
#include "schedules/tuned_declarations.h"
#include "tests/support/cache_folder.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

TunedRecord record_of(const std::string& kernel, const std::string& tiling, const std::string& device = "NVIDIA H200") {
    return {.kernel = kernel,
            .tiling = tiling,
            .schedule = "tilewright trace 1\nsplit 0 128 mask\n",
            .device = device,
            .arch = "sm_90a",
            .version = "0.1.0",
            .milliseconds = 0.25,
            .spread = 0.01};
}

TEST(Tilings, TextsRoundTrip) {
    for (auto [m, n, k] : {std::array<int64_t, 3>{4096, 4096, 4096}, {16, 8192, 8192}, {5, 7, 9}, {1000, 1000, 3000}})
        for (const char* arch : {"sm_80", "sm_90a"})
            for (const ProductTiling& tiling :
                 tensor_product_space({.m = m, .n = n, .k = k, .transpose_b = true}, target(arch))) {
                auto read = parse_tiling(tiling_text(tiling));
                ASSERT_TRUE(read) << tiling_text(tiling);
                EXPECT_EQ(*read, tiling) << tiling_text(tiling);
            }
    EXPECT_EQ(tiling_text(WarpgroupTiles{.split_k = 3, .stage_result = true, .swap = true, .raster_group = 16}),
              "128x192x64g2s4p3h16rt");
    EXPECT_EQ(tiling_text(WarpgroupTiles{.cluster = 2, .cluster_columns = 4}), "128x192x64g2c2x4s4r");
    EXPECT_EQ(tiling_text(WarpgroupTiles{.cluster_columns = 2}), "128x192x64g2c1x2s4r");
    EXPECT_EQ(tiling_text(TensorTiles{}), "128x128x32w64x64s4");
    for (const char* wrong : {"", "128x192x64", "128x192x64g5s4", "128x192x64g2s4tr", "128x192x64g2s4b",
                              "64x64x32w32x32s4rb", "0x192x64g2s4", "128x192x64g2s4p0", "128x192x64g2c1s4",
                              "128x192x64g2c2x1s4", "64x64x32w32x32s4t", "128x192x64g2s4h", " 128x192x64g2s4"})
        EXPECT_FALSE(parse_tiling(wrong)) << wrong;
}

TEST(TunedRecords, LinesRoundTrip) {
    std::vector<TunedRecord> records = {record_of("gemm_f16_64x64x64", "64x64x64w32x32s3r"),
                                        record_of("gemm_bf16_64x64x64_tb", "128x192x64g2s4r")};
    std::string text = records_text(records);
    std::vector<TunedRecord> read = parse_records(text + "\n  \n", "here");
    EXPECT_EQ(read, (std::vector{records[1], records[0]}));  // by name
    EXPECT_EQ(records_text(read), text);
    EXPECT_TRUE(parse_records("", "here").empty());
}

/// Of the winner and of what was measured beside it; older lines have none.
TEST(TunedRecords, TimesOfAllCandidatesRoundTrip) {
    TunedRecord timed = record_of("gemm_bf16_64x64x64_tb", "128x192x64g2s4r");
    timed.measured = {{"128x192x64g2s4r", 0.25}, {"64x192x64g1s4r", 0.30000000000000004}};
    TunedRecord of_a_rule = record_of("y #12", "y.threads=64");
    of_a_rule.measured = {{"y.threads=64", 1e-3}, {"rule", 2}};
    const TunedRecord older = record_of("gemm_f16_64x64x64", "64x64x64w32x32s3r");
    const std::string text = records_text({timed, older, of_a_rule});
    EXPECT_EQ(parse_records(text, "here"), (std::vector{timed, older, of_a_rule}));
    EXPECT_EQ(records_text({older}).find("measured"), std::string::npos);
    const std::string line = records_text({timed});
    for (const char* damaged : {"3", "\"rule\"", "[3]", "[[\"64x192x64g1s4r\"]]", "[[\"64x192x64g1s4r\",1,2]]",
                                "[[\"64x192x64g1s4r\",\"1\"]]", "[[1,1]]", "null"}) {
        const size_t begin = line.find("[["), end = line.find("]]") + 2;
        const std::string changed = line.substr(0, begin) + damaged + line.substr(end);
        EXPECT_ERROR(parse_records(changed, "h200.jsonl"), "h200.jsonl:1: no record of the tuner") << changed;
    }
    timed.measured[1].tiling = "12g";
    EXPECT_ERROR(parse_records(records_text({timed}), "x"), "x:1: '12g' is no tiling of gemm_bf16_64x64x64_tb");
}

TEST(TunedRecords, ReplaceThoseOfTheSameProductAndDevice) {
    std::vector<TunedRecord> records;
    put_record(records, record_of("gemm_bf16_64x64x64_tb", "128x192x64g2s4r"));
    put_record(records, record_of("gemm_bf16_64x64x64_tb", "64x192x64g1s4r"));
    put_record(records, record_of("gemm_bf16_64x64x64", "64x64x64g1s4r"));
    put_record(records, record_of("gemm_bf16_64x64x64_tb", "64x64x64g1s4r", "NVIDIA H100"));
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records[0].tiling, "64x192x64g1s4r");
}

TEST(TunedRecords, DamagedLinesSayWhichAndWhatToDo) {
    std::string good = records_text({record_of("gemm_bf16_64x64x64_tb", "128x192x64g2s4r")});
    EXPECT_ERROR(parse_records(good + "\n" + good.substr(0, 40), "h200.jsonl"), "h200.jsonl:3: no record of the tuner");
    EXPECT_ERROR(parse_records("[1]", "h200.jsonl"), "remove the line and tune that kernel again");
    for (const char* kernel :
         {"gemm_bf16_64x64x64_tb_tile128x192x64g2s4r", "convolution_bf16_2x9x8x16_32_3x2_tilehalo64b32s2t1"})
        EXPECT_ERROR(parse_records(records_text({record_of(kernel, "128x192x64g2s4r")}), "x"),
                     fmt::format("x:1: '{}' tells its tiling; remove the line", kernel));
    EXPECT_ERROR(parse_records(records_text({record_of("gemm_bf16_64x64x64_tb", "12g")}), "x"),
                 "x:1: '12g' is no tiling of gemm_bf16_64x64x64_tb; remove the line and tune it again");
    EXPECT_ERROR(parse_records(records_text({record_of("convolution_bf16_2x9x8x16_32_3x2", "128x192x64g2s4r")}), "x"),
                 "'128x192x64g2s4r' is no tiling of convolution_bf16_2x9x8x16_32_3x2");
    EXPECT_EQ(parse_records(records_text({record_of("ones_own", "any text")}), "x")[0].tiling, "any text");
}

/// Exactly this layer, pass and architecture, however the name is written.
TEST(TunedRecords, OfConvolutionsAreOfALayerAndAPass) {
    const std::string kernel = "convolution_data_gradient_bf16_2x9x8x16_32_3x2_pad1";
    std::vector<TunedRecord> records;
    put_record(records, record_of(kernel, "64x16x32w1s4p1t1"));
    put_record(records,
               record_of("convolution_data_gradient_bf16_2x9x8x16_32_3x2_stride1_pad1_groups1", "halo64b32s2t1"));
    ASSERT_EQ(records.size(), 1u);
    put_record(records, record_of("convolution_bf16_2x9x8x16_32_3x2_pad1", "64x32x32w1s4p1t1"));
    ASSERT_EQ(records.size(), 2u);
    const Target h200 = target("sm_90a");
    ConvolutionShape shape = parse_convolution(kernel)->shape;
    EXPECT_FALSE(tuned_tiling(shape, ConvolutionPass::DataGradient, h200));
    {
        const RecordsInUse in_use(records);
        EXPECT_EQ(tuned_tiling(shape, ConvolutionPass::DataGradient, h200), parse_convolution_tiling("halo64b32s2t1"));
        EXPECT_EQ(tuned_tiling(shape, ConvolutionPass::Forward, h200), parse_convolution_tiling("64x32x32w1s4p1t1"));
        EXPECT_EQ(tuned_tiling(kernel, h200), "halo64b32s2t1");
        EXPECT_FALSE(tuned_tiling(shape, ConvolutionPass::WeightGradient, h200));
        EXPECT_FALSE(tuned_tiling(shape, ConvolutionPass::DataGradient, target("sm_80")));
        const RecordsInUse later({record_of(kernel, "64x16x32w1s2p1t1")});
        EXPECT_EQ(tuned_tiling(kernel, h200), "64x16x32w1s2p1t1");
        shape.dilation = 2;
        EXPECT_FALSE(tuned_tiling(shape, ConvolutionPass::DataGradient, h200));
    }
    EXPECT_FALSE(tuned_tiling(kernel, h200));
}

/// Of a name without a tiling; one that cannot be built is left out, which explain() says.
TEST(TunedRecords, OfConvolutionsAreTaken) {
    const Target h200 = target("sm_90a");
    auto explained = [&](const std::string& kernel) { return find_library_kernel(kernel)->make(h200).explain(); };
    for (const auto& [kernel, tiling] :
         {std::pair("convolution_bf16_8x14x14x64_64_3x3_pad1", "128x32x64w2s3p1t1"),
          {"convolution_bf16_8x14x14x64_64_3x3_pad1", "halo128b32s3t1"},
          {"convolution_data_gradient_bf16_8x14x14x64_64_3x3_pad1", "halo96b32s2t1"},
          {"convolution_weight_gradient_bf16_8x14x14x64_64_3x3_pad1", "halo64s3p5"},
          {"convolution_weight_gradient_bf16_8x14x14x64_64_3x3_pad1", "64x64x64w1s3p2t1"}}) {
        SCOPED_TRACE(kernel);
        const std::string by_model = find_library_kernel(kernel)->make(h200).save();
        EXPECT_NE(explained(kernel).find(", by the model of its time"), std::string::npos) << explained(kernel);
        const std::string tiled = find_library_kernel(kernel + std::string("_tile") + tiling)->make(h200).save();
        EXPECT_NE(by_model, tiled);
        const RecordsInUse in_use({record_of(kernel, tiling)});
        EXPECT_EQ(find_library_kernel(kernel)->make(h200).save(), tiled);
        EXPECT_NE(explained(kernel).find(fmt::format("tiling {}, from its record", tiling)), std::string::npos);
        EXPECT_EQ(find_library_kernel(kernel)->make(target("sm_80")).explain().find("record"), std::string::npos);
        for (const char* tiling_of_none : {"512x256x64w1s8p1t1", "128x128x64w2s9p1t1"}) {  // registers, shared memory
            const RecordsInUse broken({record_of(kernel, tiling_of_none)});
            EXPECT_EQ(find_library_kernel(kernel)->make(h200).save(), by_model);
            const std::string says = fmt::format("; that of its record, {}, cannot be built: ", tiling_of_none);
            EXPECT_NE(explained(kernel).find(says), std::string::npos) << explained(kernel);
        }
    }
}

bool is_of_declaration(const TunedRecord& record) { return record.kernel.find(" #") != std::string::npos; }

/// The library's own of tilings, and some of convolutions.
std::vector<TunedRecord> sound_records() {
    std::vector<TunedRecord> records = parse_records(embedded_records(), "schedules/tuned/h200.jsonl");
    std::erase_if(records, is_of_declaration);
    for (const auto& [kernel, tiling] :
         {std::pair("convolution_bf16_8x14x14x64_64_3x3_pad1", "halo128b32s3t1"),
          {"convolution_data_gradient_f16_8x14x14x64_64_3x3_stride2", "128x32x64w2s3p1t1"},
          {"convolution_weight_gradient_bf16_8x14x14x64_64_3x3_pad1", "halo64s3p5"}}) {
        records.push_back(record_of(kernel, tiling));
        records.back().schedule =
            find_library_kernel(kernel + std::string("_tile") + tiling)->make(target("sm_90a")).save();
    }
    return records;
}

/// On their target, for exactly what they are of; nothing of them is from an emulator.
TEST(TunedRecords, SoundOnesAreTaken) {
    const std::vector<TunedRecord> records = sound_records();
    const RecordsInUse in_use(records);
    for (const TunedRecord& record : records) {
        SCOPED_TRACE(record.kernel);
        EXPECT_TRUE(record.device.starts_with("NVIDIA")) << "times of an emulator are no records";
        const Target measured = target(record.arch);
        EXPECT_EQ(tuned_tiling(record.kernel, measured), record.tiling);
        EXPECT_FALSE(tuned_tiling(record.kernel, target("sm_80")));
        const std::string explained = find_library_kernel(record.kernel)->make(measured).explain();
        EXPECT_NE(explained.find(fmt::format("tiling {}, from its record", record.tiling)), std::string::npos)
            << explained;
        const auto named = parse_tensor_product(record.kernel);
        if (!named) continue;
        TensorProductShape shape = named->shape;
        EXPECT_EQ(best_tiling(shape, measured), *parse_tiling(record.tiling));
        EXPECT_LE(shared_bytes_of(*parse_tiling(record.tiling), shape), measured.shared_bytes);
        shape.n += 8;
        shape.k += 24;
        EXPECT_FALSE(tuned_tiling(shape, measured));
    }
    EXPECT_FALSE(tuned_tiling({.m = 37, .n = 41, .k = 43}, target("sm_90a")));
}

/// Each is of a kernel of the library, or of its bucket, which takes it.
TEST(TunedRecords, OfDeclarationsAreTaken) {
    const CacheFolder none;
    std::set<std::string> shipped, known;
    for (const TunedRecord& record : parse_records(embedded_records(), "schedules/tuned/h200.jsonl"))
        if (is_of_declaration(record)) shipped.insert(record.kernel);
    const Target h200 = target("sm_90a");
    for (const char* name : {"fused_cross_entropy_32768x50257", "fused_cross_entropy_32768x50304",
                             "fused_layernorm_backward_32768x768", "fused_rmsnorm_backward_32768x768"}) {
        const CatalogEntry& entry = *find_library_kernel(name);
        const std::string explained = entry.make(h200).explain();
        EXPECT_NE(explained.find("as tuned on NVIDIA H200: "), std::string::npos) << name;
        EXPECT_EQ(explained.find(", 0.0000 ms"), std::string::npos) << explained;
        const Choices choices;
        entry.make(h200);
        const RuledDeclaration& ruled = choices.ruled.at(0);
        known.insert(declaration_key(ruled.outputs, ruled.rule_name).name);
        known.insert(bucket_key(ruled.outputs, ruled.rule_name).name);
    }
    EXPECT_EQ(shipped, known);
    const std::string like = find_library_kernel("fused_layernorm_backward_30720x784")->make(h200).explain();
    EXPECT_NE(like.find("as a declaration like it was tuned on NVIDIA H200: "), std::string::npos) << like;
}

// Traces need not name loops.
TEST(TunedRecords, SchedulesThatTheyHaveAreRead) {
    const std::vector<TunedRecord> records = sound_records();
    ASSERT_GT(records.size(), 3u);
    for (const TunedRecord& record : records) {
        SCOPED_TRACE(record.kernel);
        const std::string tiled = record.kernel + "_tile" + record.tiling;
        const Schedule given = find_library_kernel(tiled)->make(target(record.arch));
        const Schedule read = replay(record.schedule, given.outputs(), target(record.arch));
        EXPECT_EQ(read.save(), record.schedule);
        if (parse_tensor_product(record.kernel)) {
            EXPECT_NE(read.trace_as_cpp().find("_outer"), std::string::npos);
        }
    }
}

}  // namespace
}  // namespace tw::schedules
