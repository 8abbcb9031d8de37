#include "runtime/compile/library.h"

#include <fstream>

#include "runtime/compile/errors.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;

// A library that no machine has, so that only the places of the test can give it.
LibrarySpec spec_of(std::vector<std::string> required_symbols = {"nvrtcVersion"}) {
    return {.name = "fake",
            .variable = "TW_FAKE",
            .file_names = {"libtwfake.so.13", "libtwfake.so.12"},
            .required_symbols = std::move(required_symbols),
            .comes_with_driver = false};
}

void put_library(const fs::path& folder, const std::string& name = "libtwfake.so.13") {
    fs::create_directories(folder);
    fs::copy_file(fake_nvrtc_path(), folder / name);
}

auto attempt(const std::string& rule, const std::string& outcome) {
    return testing::AllOf(Field(&SearchAttempt::rule, rule), Field(&SearchAttempt::outcome, HasSubstr(outcome)));
}

struct LibrarySearch : testing::Test {
    ScratchFolder scratch;
    const fs::path root = scratch.path();
    Library find(std::map<std::string, std::string> variables) {
        return find_library(spec_of(), surroundings(std::move(variables), root));
    }
};

TEST_F(LibrarySearch, TriesEveryRuleAndKeepsARecord) {
    fs::create_directories(root / "bin");
    std::ofstream(root / "bin/nvcc") << "";
    fs::create_directories(root / "usr/local/cuda-12.1/lib64");
    Library library = find({{"CUDA_HOME", root / "home"}, {"PATH", "/x:" + (root / "bin").string()}});

    EXPECT_FALSE(library);
    EXPECT_THAT(library.attempts, Contains(attempt("already loaded", "no")));
    EXPECT_THAT(library.attempts, Contains(attempt("soname", "cannot open shared object file")).Times(2));
    EXPECT_THAT(library.attempts, Contains(attempt("CUDA_HOME", "no such folder")));
    EXPECT_THAT(library.attempts, Contains(attempt("nvcc on PATH", "no such folder")));
    EXPECT_THAT(library.attempts, Contains(attempt("/usr/local/cuda*", "has no libtwfake.so.13, libtwfake.so.12")));
    EXPECT_THAT(library.attempts, Contains(attempt("Python wheel", "none is installed")));
    EXPECT_THAT(library.search_text(), HasSubstr("CUDA_HOME: " + (root / "home/lib64").string() + ": no such folder"));
}

TEST_F(LibrarySearch, OnlyUsrLocalCudaMustDo) {
    put_library(root / "usr/local/cuda/lib64");
    Library library = find({});
    ASSERT_TRUE(library) << library.search_text();
    EXPECT_EQ(library.path, root / "usr/local/cuda/lib64/libtwfake.so.13");
    EXPECT_NE(library.symbol("nvrtcVersion"), nullptr);
    EXPECT_EQ(library.symbol("nvrtcNoSuch"), nullptr);
}

TEST_F(LibrarySearch, TheNewestVersionedToolkitComesFirst) {
    put_library(root / "usr/local/cuda-9.2/lib64");
    put_library(root / "usr/local/cuda-13.0/targets/x86_64-linux/lib");
    put_library(root / "usr/local/cuda-12.8/lib64");
    EXPECT_EQ(find({}).path, root / "usr/local/cuda-13.0/targets/x86_64-linux/lib/libtwfake.so.13");
}

TEST_F(LibrarySearch, CudaHomeComesBeforeUsrLocal) {
    put_library(root / "usr/local/cuda/lib64");
    put_library(root / "home/lib64", "libtwfake.so.12");
    EXPECT_EQ(find({{"CUDA_HOME", root / "home"}}).path, root / "home/lib64/libtwfake.so.12");
}

TEST_F(LibrarySearch, FollowsNvccsLinkToItsToolkit) {
    put_library(root / "toolkit/lib64");
    fs::create_directories(root / "toolkit/bin");
    fs::create_directories(root / "bin");
    std::ofstream(root / "toolkit/bin/nvcc") << "";
    fs::create_symlink(root / "toolkit/bin/nvcc", root / "bin/nvcc");
    EXPECT_EQ(find({{"PATH", root / "bin"}}).path, root / "toolkit/lib64/libtwfake.so.13");
}

TEST_F(LibrarySearch, FindsPythonWheels) {
    put_library(root / "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib", "libtwfake.so.12");
    EXPECT_EQ(find({{"VIRTUAL_ENV", root / "venv"}}).path,
              root / "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libtwfake.so.12");
}

TEST_F(LibrarySearch, ItsOwnVariableDecides) {
    put_library(root / "usr/local/cuda/lib64");
    put_library(root / "own");
    EXPECT_EQ(find({{"TW_FAKE", root / "own"}}).path, root / "own/libtwfake.so.13");
    EXPECT_EQ(find({{"TW_FAKE", root / "own/libtwfake.so.13"}}).path, root / "own/libtwfake.so.13");

    Library library = find({{"TW_FAKE", root / "wrong.so"}});
    EXPECT_FALSE(library) << "another library than the one asked for: " << library.path;
    EXPECT_THAT(library.attempts, testing::ElementsAre(attempt("TW_FAKE", "no such file")));
}

TEST_F(LibrarySearch, FindsWhatIsLoadedAlready) {
    put_library(root / "own");
    ASSERT_TRUE(find({{"TW_FAKE", root / "own"}}));
    // By soname, which is the file's own name here: the fake has none, so that glibc compares paths.
    LibrarySpec spec = spec_of();
    spec.file_names = {root / "own/libtwfake.so.13"};
    Library library = find_library(spec, surroundings({}, root));
    EXPECT_THAT(library.attempts, testing::ElementsAre(attempt("already loaded", "loaded")));
}

TEST_F(LibrarySearch, PassesOverALibraryThatLacksASymbol) {
    put_library(root / "usr/local/cuda/lib64");
    Library library = find_library(spec_of({"nvrtcFromTheFuture"}), surroundings({}, root));
    EXPECT_FALSE(library);
    EXPECT_THAT(library.attempts,
                Contains(attempt("/usr/local/cuda*", "passed over: it lacks nvrtcFromTheFuture (too old?)")));
}

TEST_F(LibrarySearch, TellsTheLinkersWordsForADamagedFile) {
    fs::create_directories(root / "usr/local/cuda/lib64");
    std::ofstream(root / "usr/local/cuda/lib64/libtwfake.so.13") << random_bytes(4096);
    EXPECT_THAT(find({}).attempts, Contains(attempt("/usr/local/cuda*", "invalid ELF header")));
}

TEST_F(LibrarySearch, LooksForTheDriverWhereContainersPutIt) {
    LibrarySpec spec = spec_of();
    spec.comes_with_driver = true;
    put_library(root / "usr/local/nvidia/lib64");
    EXPECT_EQ(find_library(spec, surroundings({}, root)).path, root / "usr/local/nvidia/lib64/libtwfake.so.13");
}

TEST(StartLibraries, MissingOnesSayWhereWeLooked) {
    LibrarySpec spec = spec_of();
    EXPECT_ERROR(start_driver(find_library(spec, surroundings({}))),
                 "no CUDA driver: libcuda was not found. Looked in:\n");
    EXPECT_ERROR(start_driver(find_library(spec, surroundings({}))), "soname: libtwfake.so.13: ");
    EXPECT_ERROR(start_nvrtc(find_library(spec, surroundings({}))), "NVRTC was not found. Looked in:\n");
    EXPECT_ERROR(start_nvrtc(find_library(spec, surroundings({}))),
                 "/usr/local/cuda*: /nonexistent/usr/local/cuda/lib64: ");
    EXPECT_THROW(start_driver(find_library(spec, surroundings({}))), NoDriver);
    EXPECT_THROW(start_nvrtc(find_library(spec, surroundings({}))), NvrtcMissing);
}

TEST(StartLibraries, ADriverThatDoesNotStartSaysWhy) {
    Library library = fake_driver().library;
    fake().init_code = 100;
    EXPECT_ERROR(start_driver(library), "sees no device (cuInit: error 100 (");
    EXPECT_THROW(start_driver(library), NoDevice);
    fake().init_code = 803;
    EXPECT_ERROR(start_driver(library), "does not start: cuInit: error 803 (CUDA_ERROR_OTHER: something else)");
    EXPECT_THROW(start_driver(library), NoDriver);
    fake().init_code = 0;
    EXPECT_EQ(start_driver(library).library.path, fake_cuda_path());
}

TEST(StartLibraries, NvrtcKnowsItsVersion) {
    Nvrtc nvrtc = fake_nvrtc();
    EXPECT_EQ(nvrtc.major, 99);
    EXPECT_EQ(nvrtc.minor, 1);
    EXPECT_EQ(nvrtc.identity, fmt::format("99.1 ({} bytes)", fs::file_size(fake_nvrtc_path())));
    ScopedVariable broken("FAKE_NVRTC_NO_VERSION", "1");
    EXPECT_ERROR(fake_nvrtc(), "does not tell its version: NVRTC_ERROR_INTERNAL_ERROR");
}

TEST(StartLibraries, TheTablesNameTheVersionedSymbols) {
    EXPECT_THAT(driver_spec().required_symbols, Contains("cuMemAlloc_v2"));
    EXPECT_THAT(driver_spec().required_symbols, testing::Not(Contains("cuFuncGetParamInfo"))) << "it is optional";
    EXPECT_THAT(nvrtc_spec().required_symbols, Contains("nvrtcGetCUBIN"));
}

}  // namespace
}  // namespace tw
