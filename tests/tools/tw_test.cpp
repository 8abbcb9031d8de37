// The tw program as users run it: output, exit codes, JSON.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <sys/wait.h>

#include "tests/tools/tw_program.h"

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST_F(Tw, WrongUsageIsTwo) {
    EXPECT_EQ(tw("").status, 2);
    EXPECT_EQ(tw("dance").status, 2);
    EXPECT_EQ(tw("show").status, 2);
    EXPECT_EQ(tw("run").status, 2);
    EXPECT_EQ(tw("emit product_1x1x1 --as poetry").status, 2);
    EXPECT_EQ(tw("fuzz illegal --count -3").status, 2);
    EXPECT_THAT(tw("run").err, HasSubstr("name at least one kernel, or --all"));
}

TEST_F(Tw, UnknownSubcommandsAreNamed) {
    Outcome unknown = tw("lst");
    EXPECT_EQ(unknown.status, 2);
    EXPECT_EQ(unknown.err, "tw: no subcommand named 'lst'; near it: list\n");
    EXPECT_THAT(tw("zzzzzzzz").err, AllOf(HasSubstr("tw: no subcommand named 'zzzzzzzz'; there are: doctor, list")));
    EXPECT_EQ(tw("fuzz mutation --count 1").err, "tw fuzz: no subcommand named 'mutation'; near it: mutations\n");
    EXPECT_EQ(tw("fuzz mutation").status, 2);
    EXPECT_THAT(tw("").err, HasSubstr("A subcommand is required"));
}

TEST_F(Tw, TellsItsVersion) {
    Outcome version = tw("--version");
    EXPECT_EQ(version.status, 0);
    EXPECT_EQ(version.out, "tw " TW_VERSION "\n");
}

TEST_F(Tw, NumbersThatCannotBeAreRefused) {
    Outcome seed = tw("run product_1x1x1 --device emulated --seed 18446744073709551616");
    EXPECT_EQ(seed.status, 2);
    EXPECT_THAT(seed.err,
                HasSubstr("--seed: '18446744073709551616' is no whole number from 0 to 18446744073709551615"));
    EXPECT_EQ(tw("run product_1x1x1 --device emulated --seed 18446744073709551615").status, 0);
    EXPECT_THAT(tw("fuzz schedules --count -1").err,
                HasSubstr("--count: '-1' is no whole number from 0 to 9223372036854775807"));
    EXPECT_THAT(tw("bench product_1x1x1 --rounds 0").err, HasSubstr("--rounds: '0' is no whole number from 1 to"));
    EXPECT_THAT(tw("tune gemm_bf16_8x8x8 --seconds -1").err, HasSubstr("--seconds: '-1' is no number above 0"));
}

/// The status, and what stands on standard error.
TEST_F(Tw, OutputThatIsLostIsAnError) {
    for (const char* arguments :
         {"list", "list --json", "emit product_64x48x40", "show product_64x48x40", "doctor", "cache ls",
          "fuzz illegal --count 3", "--help", "--version", "run product_1x1x1 --device emulated --json"}) {
        Outcome full = tw(fmt::format("{} > /dev/full 2> '{}/lost'; echo $?", arguments, folder_.string()));
        EXPECT_EQ(full.out, "1\n") << arguments;
        EXPECT_EQ(content(folder_ / "lost"), "tw: cannot write the output: No space left on device\n") << arguments;
        Outcome closed = tw(fmt::format("{} >&- 2> '{}/lost'; echo $?", arguments, folder_.string()));
        EXPECT_EQ(closed.out, "1\n") << arguments;
        EXPECT_EQ(content(folder_ / "lost"), "tw: cannot write the output: Bad file descriptor\n") << arguments;
    }
    EXPECT_EQ(tw("nonsense 2> /dev/full; echo $?").out, "2\n");
    EXPECT_EQ(tw("nonsense 2>&-; echo $?").out, "2\n");
}

TEST_F(Tw, AReaderThatHasEnoughEndsItQuietly) {
    for (const char* ignored : {"", "trap '' PIPE; "}) {  // whether or not the shell leaves the signal alone
        std::string command = fmt::format("{0}{{ '{1}' list; }} 2> '{2}/lost' | head -n 1 > '{2}/first'", ignored,
                                          TW_PROGRAM, folder_.string());
        EXPECT_EQ(std::system(command.c_str()), 0);
        EXPECT_EQ(content(folder_ / "lost"), "");
        EXPECT_THAT(content(folder_ / "first"), HasSubstr("product_256x256x512"));
    }
}

TEST_F(Tw, JsonIsReadableWhateverAFolderIsCalled) {
    std::string folder = (folder_ / "bad\xff").string();
    for (const char* arguments : {"cache ls --json", "cache verify --json", "doctor --json"}) {
        Outcome listed = tw(arguments, fmt::format("TW_CACHE_DIR='{}'", folder));
        EXPECT_THAT(listed.out, HasSubstr("bad\xef\xbf\xbd")) << arguments << listed.err;
        EXPECT_NO_THROW(listed.json()) << arguments;
    }
}

TEST_F(Tw, HelpShowsExamplesAndExitCodes) {
    Outcome help = tw("--help");
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, AllOf(HasSubstr("Examples:"), HasSubstr("tw cache verify"), HasSubstr("Exit codes: 0 done")));
}

TEST_F(Tw, UnknownNamesSuggestNearOnes) {
    for (const char* command : {"show", "emit", "run"}) {
        Outcome refused = tw(fmt::format("{} sofmax_131x37", command));
        EXPECT_EQ(refused.status, 2);
        EXPECT_THAT(refused.err, HasSubstr("no kernel named 'sofmax_131x37'; near it: softmax_131x37"));
        Outcome of_tiles = tw(fmt::format("{} product_3x5x7_tile32x32x8t3x4s2", command));
        EXPECT_EQ(of_tiles.status, 2);
        EXPECT_THAT(of_tiles.err, HasSubstr("names that begin with product_ are product_MxNxK, then in this order"));
        EXPECT_EQ(refused.out, "");
    }
    EXPECT_THAT(tw("show qqqqqq").err, HasSubstr("no kernel named 'qqqqqq'; `tw list` shows all"));
    Outcome computation = tw("fuzz schedules --computation gater");
    EXPECT_EQ(computation.status, 2);
    EXPECT_THAT(computation.err, HasSubstr("no computation named 'gater'; there are gather"));
}

TEST_F(Tw, RefusalsAreOne) {
    Outcome arch = tw("show softmax_131x37 --arch sm_1");
    EXPECT_EQ(arch.status, 1);
    EXPECT_THAT(arch.err, HasSubstr("tw: "));
    EXPECT_EQ(tw("run product_1x1x1 --device toaster").status, 1);
}

TEST_F(Tw, ListNamesEveryKernel) {
    nlohmann::json kernels = tw("list --json").json();
    ASSERT_GT(kernels.size(), 20u);
    std::string text = tw("list").out;
    for (const auto& kernel : kernels) EXPECT_THAT(text, HasSubstr(kernel["name"].get<std::string>()));
}

TEST_F(Tw, ShowHasNestCostsAndSteps) {
    std::string text = tw("show product_256x256x512_tile64x64x16t8x4s4p4").out;
    EXPECT_THAT(text,
                AllOf(HasSubstr("c[i, j] = sum_k a[i, k] * b[k, j]"), HasSubstr("(grid.x)"), HasSubstr("global bytes"),
                      HasSubstr("s.stage(c_partial, a, Memory::Shared"), HasSubstr("67.1 M"), HasSubstr("5.24 M")));
    nlohmann::json json = tw("show product_256x256x512_tile64x64x16t8x4s4p4 --json").json();
    EXPECT_EQ(json["loops"][0]["flops"], 2.0 * 256 * 256 * 512);
    const nlohmann::json& kernel = json["kernels"][0];
    EXPECT_EQ(kernel["timeline_is_whole"], true);
    int64_t bytes = 0;
    for (const nlohmann::json& array : kernel["shared_arrays"]) {
        int64_t elements = 4;  // f32
        for (const nlohmann::json& extent : array["shape"]) elements *= extent.get<int64_t>();
        EXPECT_EQ(array["bytes"], elements) << array;
        EXPECT_EQ(array["swizzle_bytes"], 0);
        bytes += elements;
    }
    EXPECT_EQ(kernel["shared_arrays"].size(), 2u);
    EXPECT_EQ(kernel["shared_bytes"], bytes);
    EXPECT_THAT(kernel["shared_memory"].get<std::string>(), HasSubstr(kernel["shared_arrays"][0]["name"]));
    std::string notes = json["notes"].get<std::string>(), fill = "\na_shared: 128 threads together";
    size_t first = notes.find(fill);  // though it stands before the pipelined loop and inside of it
    ASSERT_NE(first, std::string::npos) << notes;
    EXPECT_EQ(notes.find(fill, first + 1), std::string::npos) << notes;
}

TEST_F(Tw, EmitPrintsCuda) {
    Outcome emitted = tw("emit product_64x48x40");
    EXPECT_EQ(emitted.status, 0);
    EXPECT_THAT(emitted.out, HasSubstr("extern \"C\" __global__"));
    EXPECT_EQ(tw("emit product_64x48x40 --json").json()[0]["cuda"].get<std::string>() + "\n", emitted.out);
    Outcome file = tw(fmt::format("emit product_64x48x40 --output '{}/kernels'", folder_.string()));
    EXPECT_EQ(file.status, 0);
    EXPECT_EQ(content(file.out.substr(0, file.out.find('\n'))) + "\n", emitted.out);
}

TEST_F(Tw, EmitCompiles) {
    NEEDS_NVRTC();
    EXPECT_THAT(tw("emit product_1x1x1 --as ptx --arch sm_80").out, HasSubstr(".target sm_80"));
    EXPECT_THAT(tw("emit product_64x48x40 --after insert_barriers").out, HasSubstr("barrier"));
    Outcome unknown = tw("emit product_64x48x40 --after poetry");
    EXPECT_EQ(unknown.status, 2);
    EXPECT_THAT(unknown.err, HasSubstr("make_tiles"));
    EXPECT_EQ(tw("emit product_1x1x1 --as cubin").out.substr(1, 3), "ELF");
    nlohmann::json facts = tw("emit product_1x1x1 --as cubin --json").json()[0];
    EXPECT_GT(facts["registers"], 0);
    EXPECT_EQ(facts["spill_bytes"], 0);
}

TEST_F(Tw, SassNeedsADisassembler) {
    NEEDS_NVRTC();
    // One that stands first on PATH, and none where only the shell's programs are.
    fs::create_directories(folder_ / "bin");
    std::ofstream(folder_ / "bin/nvdisasm") << "#!/bin/sh\nhead -c 4 \"$1\"; echo listing\n";
    fs::permissions(folder_ / "bin/nvdisasm", fs::perms::owner_all);
    Outcome listed = tw("emit product_1x1x1 --as sass", fmt::format("PATH='{}/bin':\"$PATH\"", folder_.string()));
    EXPECT_EQ(listed.status, 0);
    EXPECT_THAT(listed.out, HasSubstr("ELFlisting"));
    Outcome refused = tw("emit product_1x1x1 --as sass", "CUDA_HOME=/nonexistent PATH=/nonexistent");
    if (fs::exists("/usr/local/cuda/bin/nvdisasm") || fs::exists("/usr/local/cuda/bin/cuobjdump")) return;
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err, HasSubstr("no disassembler: neither nvdisasm nor cuobjdump is on PATH"));
    EXPECT_THAT(refused.err, HasSubstr("use --as ptx"));
}

TEST_F(Tw, RunChecksOnTheEmulator) {
    Outcome run = tw("run softmax_131x37 product_5x7x0 --device emulated");
    EXPECT_EQ(run.status, 0);
    EXPECT_THAT(run.out, AllOf(HasSubstr("running on emulated"), HasSubstr("softmax_131x37"), HasSubstr(": ok")));
    nlohmann::json json = tw("run product_3x4x5 --device emulated --json").json();
    EXPECT_EQ(json["correct"], true);
    EXPECT_EQ(json["kernel"], "product_3x4x5");
    ASSERT_EQ(json["outputs"].size(), 1u);
    EXPECT_EQ(json["outputs"][0]["name"], "c");
    EXPECT_EQ(json["outputs"][0]["elements"], 3 * 4);
    EXPECT_LT(json["outputs"][0]["error"], 1e-5);
    EXPECT_TRUE(json["outputs"][0]["plain_error"].is_number());
    EXPECT_TRUE(json["outputs"][0]["unit_error"].is_number());
}

TEST_F(Tw, RunSaysWhatItsTimesAreWorthAndWhichOutputItMeans) {
    Outcome one = tw("run product_3x4x5 --device emulated");
    EXPECT_THAT(one.out, AllOf(HasSubstr("the emulator's times say nothing about a GPU\n"),
                               HasSubstr("GFLOP/s  max error"), Not(HasSubstr("- GFLOP/s"))));
    Outcome two = tw("--load '" LOADED_OF_DATA "' run loaded_segments --device emulated");
    EXPECT_THAT(two.out, AllOf(HasSubstr(" - GFLOP/s  value: max error"), HasSubstr("; place: max error")));
    EXPECT_THAT(tw("--load '" LOADED_OF_DATA "' bench loaded_segments --device emulated").out,
                AllOf(HasSubstr("the emulator's times say nothing about a GPU, and"), HasSubstr(" - GFLOP/s")));
}

/// A table of 4 rows, lengths up to 24, segments of 300 elements: data are drawn for them, by every tool.
TEST_F(Tw, DataOfLoadedKernelsAreWithinWhatTheyIndex) {
    std::string load = "--load '" LOADED_OF_DATA "' ";
    for (int seed = 1; seed <= 3; ++seed) {
        Outcome run = tw(load + fmt::format("run loaded_gather loaded_lengths loaded_segments --seed {}", seed) +
                         " --device emulated");
        EXPECT_EQ(run.status, 0) << run.out << run.err;
    }
    Outcome bench = tw(load + "bench loaded_gather loaded_lengths loaded_segments --device emulated");
    EXPECT_EQ(bench.status, 0) << bench.out << bench.err;
}

TEST_F(Tw, RefusesACompilerThatIsNone) {
    Outcome run = tw("run product_3x4x5 --device emulated", "TW_HOST_CXX=/bin/true");
    EXPECT_EQ(run.status, 1);
    EXPECT_THAT(run.err, HasSubstr("tried /bin/true ($TW_HOST_CXX), which compiles no C++"));
    EXPECT_THAT(tw("doctor", "TW_HOST_CXX=/bin/true").out, HasSubstr("tried /bin/true, which compiles no C++"));
}

TEST_F(Tw, LoadedKernelsAreShownEmittedRunAndMeasured) {
    std::string load = "--load '" LOADED_KERNELS "' ";
    nlohmann::json listed = tw(load + "list --json").json();
    EXPECT_EQ(listed.back()["name"], "loaded_sums");
    EXPECT_EQ(listed.back()["description"], "y = sums of columns");
    EXPECT_THAT(tw(load + "list").out, HasSubstr("loaded_scale_1000"));
    EXPECT_THAT(tw("list").out, Not(HasSubstr("loaded_scale_1000")));
    EXPECT_THAT(
        tw(load + "show loaded_sums").out,
        AllOf(HasSubstr("y[i] = sum_k x[k, i]"), HasSubstr("Shared memory of"), HasSubstr("bytes in registers")));
    EXPECT_EQ(tw(load + "show loaded_sums --json").json()["kernels"][0]["threads"], 32);
    EXPECT_THAT(tw("emit loaded_scale_1000 " + load).out, HasSubstr("extern \"C\" __global__"));
    nlohmann::json run = tw(load + "run loaded_scale_1000 --device emulated --json").json();
    EXPECT_EQ(run["correct"], true);
    nlohmann::json bench = tw(load + "bench loaded_sums --device emulated --json").json();
    EXPECT_GT(bench["ms"], 0);
    Outcome near = tw(load + "show loaded_sum");
    EXPECT_EQ(near.status, 2);
    EXPECT_THAT(near.err, HasSubstr("no kernel named 'loaded_sum'; near it: loaded_sums"));
}

TEST_F(Tw, LoadedKernelsAreAltered) {
    Outcome fuzz = tw("--load '" LOADED_KERNELS "' fuzz mutations --count 6 --json");
    EXPECT_EQ(fuzz.status, 0) << fuzz.out << fuzz.err;
    nlohmann::json json = fuzz.json();
    EXPECT_EQ(json["originals"], 2);
    int made = 0;
    for (const auto& kind : json["kinds"]) made += kind["made"].get<int>();
    EXPECT_EQ(made, 6);
}

/// Nothing can be proven of kernels whose addresses and loops data decide: they are run, and their mutants too.
TEST_F(Tw, MutationsOfWhatDataDecidesAreRun) {
    Outcome fuzz = tw("--load '" LOADED_OF_DATA "' fuzz mutations --count 24 --json");
    EXPECT_EQ(fuzz.status, 0) << fuzz.out;
    nlohmann::json json = fuzz.json();
    ASSERT_EQ(json["not_compared"].size(), 3u) << fuzz.out;
    EXPECT_THAT(json["not_compared"].dump(),
                AllOf(HasSubstr("loaded_gather, unaltered: kernel 0, run on terms: a condition depends on data"),
                      HasSubstr("loaded_lengths, unaltered: kernel 0, run on terms: a loop's extent depends on data")));
    int made = 0, caught = 0;
    for (const auto& kind : json["kinds"]) {
        made += kind["made"].get<int>();
        for (const char* by : {"verifier", "compiler", "emulator", "result"}) caught += kind[by].get<int>();
    }
    EXPECT_EQ(made, 24);
    EXPECT_GE(caught, 12);
    EXPECT_THAT(tw("--load '" LOADED_OF_DATA "' fuzz mutations --count 1").out,
                HasSubstr("loaded_gather, unaltered: kernel 0, run on terms: a condition depends on data"));
}

TEST_F(Tw, ABrokenKernelIsToldOnceAndStopsNoOther) {
    Outcome fuzz = tw("--load '" LOADED_ONE_BROKEN "' fuzz mutations --count 6");
    EXPECT_EQ(fuzz.status, 1);
    const std::string failure = "loaded_broken, unaltered\n    one_broken.cpp:20: split(i, 0)",
                      all = fuzz.out + fuzz.err;
    const size_t at = all.find(failure);
    ASSERT_NE(at, std::string::npos) << all;
    EXPECT_EQ(all.find(failure, at + 1), std::string::npos) << all;
    EXPECT_THAT(fuzz.out, AllOf(HasSubstr("2 programs, "), HasSubstr("1 wrong")));
}

TEST_F(Tw, RefusesToLoadWhatIsNone) {
    Outcome missing = tw("--load ./libnone.so list");
    EXPECT_EQ(missing.status, 1);
    EXPECT_THAT(missing.err, HasSubstr("tw: --load: there is no file './libnone.so'"));
    Outcome twice = tw("--load '" LOADED_KERNELS "' --load '" LOADED_OF_ONE_NAME "' list");
    EXPECT_EQ(twice.status, 1);
    EXPECT_THAT(twice.err, HasSubstr("kernels.cpp:8 has a kernel of this name; choose another"));
    EXPECT_THAT(tw("--load '" LOADED_OF_ANOTHER_VERSION "' list").err, HasSubstr("was built against Tilewright 0.0.7"));
}

TEST_F(Tw, TuneKeepsCheckedRecords) {
    std::string records = (folder_ / "records.jsonl").string();
    std::string options = fmt::format("--device emulated --limit 2 --records '{}'", records);
    std::ofstream(folder_ / "cases") << R"({"m": 24, "n": 40, "k": 16, "type": "f16", "epilogue": "bias"})"
                                     << "\n";
    Outcome tuned = tw(fmt::format("tune gemm_bf16_24x40x32_tb --cases '{}/cases' {}", folder_.string(), options));
    EXPECT_EQ(tuned.status, 0) << tuned.err;
    EXPECT_THAT(tuned.out, AllOf(HasSubstr("gemm_bf16_24x40x32_tb"), HasSubstr("2 measured, 0 skipped")));
    std::string text = content(records);
    nlohmann::json first = nlohmann::json::parse(text.substr(0, text.find('\n')));
    EXPECT_EQ(first["kernel"], "gemm_bf16_24x40x32_tb");
    EXPECT_THAT(first["schedule"].get<std::string>(), HasSubstr("mma 0"));
    EXPECT_GT(first["milliseconds"], 0);
    EXPECT_EQ(first["arch"], "emulated sm_90a");  // no GPU's kernels take it
    EXPECT_THAT(tuned.out, HasSubstr("no kernel takes a record of them"));
    EXPECT_EQ(first["measured"].size(), 2u);
    EXPECT_THAT(text, HasSubstr("gemm_f16_24x40x16_bias"));
    std::string tiled =
        fmt::format("run gemm_bf16_24x40x32_tb_tile{} --device emulated", first["tiling"].get<std::string>());
    EXPECT_EQ(tw(tiled).status, 0);

    EXPECT_EQ(tw("tune gemm_bf16_24x40x32_tb " + options).status, 0);  // once more: in its place
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
    text = content(records);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);

    std::ofstream(records, std::ios::app) << "{\"kernel\": 3}\n";
    Outcome damaged = tw("tune gemm_bf16_24x40x32_tb " + options);
    EXPECT_EQ(damaged.status, 1);
    EXPECT_THAT(damaged.err, HasSubstr("records.jsonl:3: no record of the tuner"));
}

TEST_F(Tw, TuneKeepsRecordsOfConvolutions) {
    const std::string records = (folder_ / "records.jsonl").string();
    std::ofstream(folder_ / "cases")
        << R"({"images": 1, "height": 6, "width": 5, "channels": 16, "filters": 24, "kernel_h": 3, "kernel_w": 3, "pad": 1})"
        << "\n";
    const Outcome tuned = tw(
        fmt::format("tune --cases '{}/cases' --device emulated --limit 2 --records '{}'", folder_.string(), records));
    EXPECT_EQ(tuned.status, 0) << tuned.err;
    const std::string text = content(records);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
    std::istringstream lines(text);
    for (const char* kernel :
         {"convolution_bf16", "convolution_data_gradient_bf16", "convolution_weight_gradient_bf16"}) {
        std::string line;
        std::getline(lines, line);
        const nlohmann::json record = nlohmann::json::parse(line);
        const std::string name = record["kernel"];
        EXPECT_EQ(name, std::string(kernel) + "_1x6x5x16_24_3x3_pad1");
        EXPECT_THAT(tuned.out, HasSubstr(name));
        const Outcome shown = tw(fmt::format("show {}_tile{} --json", name, record["tiling"].get<std::string>()));
        EXPECT_EQ(shown.status, 0) << shown.err;
        EXPECT_EQ(nlohmann::json::parse(shown.out)["steps"], record["schedule"]);
        EXPECT_THAT(tw("show " + name).out, HasSubstr(", by the model of its time"));
    }
}

/// The catalog's, and a user's; times of the emulator are kept where they are asked for, and nowhere else.
TEST_F(Tw, TuneTakesWhatIsScheduledByRule) {
    const std::string records = (folder_ / "records.jsonl").string();
    const Outcome tuned = tw("tune --load '" LOADED_BY_RULE
                             "' loaded_by_rule softmax_131x37_automatic --verbose "
                             "--device emulated --limit 2 --records '" +
                             records + "'");
    EXPECT_EQ(tuned.status, 0) << tuned.err;
    EXPECT_THAT(tuned.out, AllOf(HasSubstr("loaded_by_rule"), HasSubstr("softmax_131x37_automatic"),
                                 HasSubstr("2 measured, 0 skipped"), HasSubstr("  rule ")));
    const std::string text = content(records);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);  // of each declaration, and of its bucket
    EXPECT_THAT(text, HasSubstr("{\"kernel\":\"y #"));
    EXPECT_FALSE(fs::exists(folder_ / "cache/tuned"));
}

TEST_F(Tw, CandidatesComeByPredictedTimes) {
    const Outcome found = tw("candidates softmax_4096x4096_bf16_automatic --limit 5 --json");
    ASSERT_EQ(found.status, 0) << found.err;
    const nlohmann::json candidates = nlohmann::json::parse(found.out)["candidates"];
    ASSERT_EQ(candidates.size(), 5u);
    double before = 0;
    int by_rule = 0;
    for (const auto& each : candidates) {
        EXPECT_GE(each["ms"].get<double>(), before);
        before = each["ms"];
        by_rule += each["picks"] == "rule";
        EXPECT_GT(each["kernels"][0]["memory_bytes"].get<double>(), 2 * 4096 * 4096);
    }
    EXPECT_EQ(by_rule, 1);
    EXPECT_THAT(tw("candidates softmax_4096x4096_bf16_automatic --limit 2").out, HasSubstr(" ms (memory)\n"));
    const std::string generated = tw("candidates softmax_131x37_automatic --limit 2 --generated 4 --steps").out;
    EXPECT_THAT(generated, HasSubstr("tried, 4 legal\n"));
    EXPECT_THAT(generated, HasSubstr("s.bind("));
    EXPECT_THAT(tw("show softmax_4096x4096_bf16_automatic").out, HasSubstr("ms by model"));
    const auto shown = nlohmann::json::parse(tw("show softmax_4096x4096_bf16_automatic --json").out);
    EXPECT_GT(shown["kernels"][0]["predicted_ms"].get<double>(), 0);
    EXPECT_EQ(shown["kernels"][0]["bound"], "memory");
    EXPECT_THAT(tw("candidates --load '" LOADED_BY_RULE "' loaded_by_rule").out, HasSubstr("rule"));
    EXPECT_EQ(tw("candidates softmax_4").status, 2);
}

TEST_F(Tw, CalibratesGpusOnly) {
    const Outcome emulated = tw("calibrate --device emulated");
    EXPECT_EQ(emulated.status, 1);
    EXPECT_THAT(emulated.err, HasSubstr("has no times; give a GPU"));
    EXPECT_FALSE(fs::exists(folder_ / "cache/speeds"));
}

TEST_F(Tw, TuneRefusesWhatItCannotTune) {
    EXPECT_THAT(tw("tune").err, HasSubstr("name at least one kernel, or --cases FILE"));
    Outcome other = tw("tune softmax_131");
    EXPECT_EQ(other.status, 2);
    EXPECT_THAT(other.err, HasSubstr("'softmax_131' names no product on tensor cores, no convolution"));
    Outcome by_hand = tw("tune softmax_131x37");
    EXPECT_EQ(by_hand.status, 2);
    EXPECT_THAT(by_hand.err, HasSubstr("'softmax_131x37' has a schedule of its own"));
    EXPECT_THAT(tw("tune gemm_bf16_8x8x8_tile64x64x64g1s2").err, HasSubstr("leave out _tile64x64x64g1s2"));
    Outcome nowhere = tw("tune gemm_bf16_8x8x8 --device emulated --limit 1 --records /nonexistent/records");
    EXPECT_EQ(nowhere.status, 1);
    EXPECT_THAT(nowhere.err, HasSubstr("cannot write the records to /nonexistent/records"));
    std::string somewhere = fmt::format("--records '{}/records'", folder_.string());
    Outcome unmeasurable = tw("tune gemm_bf16_8x8x8 --device null " + somewhere);
    EXPECT_EQ(unmeasurable.status, 1);
    EXPECT_THAT(unmeasurable.err, HasSubstr("the null device only compiles"));
    Outcome uncompiled = tw("tune gemm_bf16_8x8x8 --limit 2 --device emulated " + somewhere,
                            "PATH=/nonexistent CXX= TW_HOST_CXX=/nonexistent");
    EXPECT_EQ(uncompiled.status, 1);
    EXPECT_THAT(uncompiled.err, HasSubstr("gemm_bf16_8x8x8: none of 2 tilings is usable; the first, "));
    EXPECT_EQ(content(folder_ / "records"), "");
}

TEST_F(Tw, FuzzReports) {
    Outcome schedules = tw("fuzz schedules --count 3 --interpreter-only --json");
    EXPECT_EQ(schedules.status, 0);
    EXPECT_EQ(schedules.json()["cases"], 3);
    EXPECT_EQ(schedules.json()["failures"].size(), 0u);
    EXPECT_EQ(schedules.json()["kernels_refused"], 0);
    int64_t accepted = 0;
    const nlohmann::json verbs = schedules.json()["verbs"];
    for (const auto& verb : verbs) accepted += verb["accepted"].get<int64_t>();
    EXPECT_GT(accepted, 0);
    EXPECT_EQ(schedules.json()["steps_accepted"], accepted);
    Outcome there = tw("fuzz tilings --count 1 --seed 3 --device emulated --json");
    EXPECT_EQ(there.status, 0);
    EXPECT_EQ(there.json()["cases"], 1);
    for (const char* what : {"schedules", "tilings", "convolutions", "automatic"}) {
        Outcome nowhere = tw(fmt::format("fuzz {} --count 1 --device emulatd", what));
        EXPECT_EQ(nowhere.status, 1);
        EXPECT_THAT(nowhere.err, HasSubstr("kernels cannot run on 'emulatd': open_device(\"emulatd\"): write cuda, "));
    }
    Outcome illegal = tw("fuzz illegal --count 50");
    EXPECT_EQ(illegal.status, 0);
    EXPECT_THAT(illegal.out, HasSubstr("0 wrong"));
}

TEST_F(Tw, DoctorTellsWhatThereIs) {
    Outcome doctor = tw("doctor");
    EXPECT_EQ(doctor.status, 0);
    EXPECT_THAT(doctor.out, AllOf(HasSubstr("kernel cache"), HasSubstr((folder_ / "cache").string())));
    EXPECT_EQ(tw("doctor", "PATH=/nonexistent CXX= TW_HOST_CXX= TW_NVRTC=/nonexistent").status, 1);
}

TEST_F(Tw, CacheOfNothing) {
    Outcome listed = tw("cache ls");
    EXPECT_EQ(listed.status, 0);
    EXPECT_THAT(listed.out, HasSubstr("cache: 0 entries"));
    EXPECT_EQ(tw("cache verify").status, 0);
    EXPECT_EQ(tw("cache").status, 2);
}

TEST_F(Tw, CacheThatOthersMayWriteTo) {
    fs::create_directories(folder_ / "cache");
    fs::permissions(folder_ / "cache", fs::perms::all);
    Outcome refused = tw("cache ls");
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err, HasSubstr("others may write to it"));
}

TEST_F(Tw, CacheListsAndVerifies) {
    NEEDS_NVRTC();
    ASSERT_EQ(tw("emit product_1x1x1 --as cubin --arch sm_80").status, 0);
    nlohmann::json entries = tw("cache ls --json").json()["entries"];
    ASSERT_GE(entries.size(), 1u);  // doctor's probe may be another
    auto ours = std::find_if(entries.begin(), entries.end(), [](auto& e) { return e["arch"] == "sm_80"; });
    ASSERT_NE(ours, entries.end());
    EXPECT_EQ((*ours)["kernel"], "c_kernel.cu");
    fs::path file = folder_ / "cache" / (*ours)["file"].get<std::string>();
    EXPECT_EQ((*ours)["bytes"], fs::file_size(file));
    EXPECT_THAT(tw("cache ls").out, AllOf(HasSubstr("sm_80"), HasSubstr("c_kernel.cu"), HasSubstr("s ago")));
    EXPECT_EQ(tw("cache verify").status, 0);

    std::string bytes = content(file);
    std::string changed = bytes;
    changed[changed.size() / 2] = char(changed[changed.size() / 2] ^ 1);
    std::ofstream(file, std::ios::binary) << changed;
    Outcome damaged = tw("cache verify");
    EXPECT_EQ(damaged.status, 1);
    EXPECT_THAT(damaged.out, AllOf(HasSubstr("its checksum is wrong"), HasSubstr("1 damaged")));
    EXPECT_THAT(tw("cache ls").out, HasSubstr("damaged: its checksum is wrong"));
    EXPECT_EQ(tw("cache verify --json").json()["entries"].size(), 1u);

    std::ofstream(file, std::ios::binary) << bytes;
    fs::rename(file, folder_ / "cache/00000000000000000000000000000000.twc");
    Outcome misnamed = tw("cache verify --remove");
    EXPECT_EQ(misnamed.status, 1);
    EXPECT_THAT(misnamed.out, AllOf(HasSubstr("its name is not its key's hash"), HasSubstr("removed")));
    EXPECT_EQ(tw("cache verify").status, 0);
}

}  // namespace
