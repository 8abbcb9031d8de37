#include "runtime/driver/doctor.h"

#include <nlohmann/json.hpp>

#include "runtime/compile/cubin_cache.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

using testing::HasSubstr;

TEST(Doctor, WithFakeLibrariesTellsDevicesAndVersions) {
    fake_driver();
    ScopedVariable driver("TW_CUDA_DRIVER", fake_cuda_path().c_str()), nvrtc("TW_NVRTC", fake_nvrtc_path().c_str());
    DoctorReport report = examine();
    EXPECT_TRUE(report.driver.found);
    EXPECT_EQ(report.driver.path, fake_cuda_path());
    EXPECT_EQ(report.driver.version, "CUDA 13.0");
    EXPECT_EQ(report.driver.problem, "");
    ASSERT_EQ(report.devices.size(), 2u);
    EXPECT_EQ(report.devices[1].ordinal, 1);
    EXPECT_EQ(report.devices[1].name, "Fake H200");
    EXPECT_EQ(report.devices[1].arch, "sm_90a");
    EXPECT_EQ(report.nvrtc.version, "99.1");
    EXPECT_TRUE(report.can_run_cuda());
    EXPECT_EQ(report.cache.directory, cubin_cache().directory());

    std::string text = to_text(report);
    EXPECT_THAT(text, HasSubstr(fmt::format("CUDA driver:   CUDA 13.0 ({})\n", fake_cuda_path())));
    EXPECT_THAT(text, HasSubstr(fmt::format("TW_CUDA_DRIVER: {}: loaded\n", fake_cuda_path())));
    EXPECT_THAT(text, HasSubstr("  cuda:1 Fake H200 (sm_90a), 0.1 GiB\n"));
    EXPECT_THAT(text, HasSubstr(fmt::format("NVRTC:         99.1 ({})\n", fake_nvrtc_path())));
    EXPECT_THAT(text, HasSubstr("run on a GPU:      yes\n"));
}

TEST(Doctor, SaysWhatIsMissingAndWhereItLooked) {
    ScopedVariable driver("TW_CUDA_DRIVER", "/nowhere/libcuda.so"), nvrtc("TW_NVRTC", "/nowhere/libnvrtc.so");
    ScopedVariable own("TW_HOST_CXX", nullptr), cxx("CXX", nullptr), path("PATH", "/nowhere");
    DoctorReport report = examine();
    EXPECT_FALSE(report.can_compile());
    EXPECT_FALSE(report.can_run_cuda());
    EXPECT_FALSE(report.can_emulate());
    std::string text = to_text(report);
    EXPECT_THAT(text, HasSubstr("CUDA driver:   not found\n      TW_CUDA_DRIVER: /nowhere/libcuda.so: no such file\n"));
    EXPECT_THAT(text, HasSubstr("NVRTC:         not found\n      TW_NVRTC: /nowhere/libnvrtc.so: no such file\n"));
    EXPECT_THAT(text,
                HasSubstr("host compiler: none runs (tried c++, g++, clang++); install g++ or set TW_HOST_CXX\n"));
    EXPECT_THAT(text, HasSubstr("compile for a GPU: no, NVRTC is missing or does not work\n"));
    EXPECT_THAT(text, HasSubstr("run emulated:      no, a C++ compiler is missing\n"));
}

TEST(Doctor, ALibraryThatDoesNotWorkIsNotHealthy) {
    fake_driver();
    fake().init_code = 803;
    ScopedVariable driver("TW_CUDA_DRIVER", fake_cuda_path().c_str()), nvrtc("TW_NVRTC", fake_nvrtc_path().c_str()),
        broken("FAKE_NVRTC_NO_VERSION", "1");
    DoctorReport report = examine();
    EXPECT_TRUE(report.driver.found);
    EXPECT_THAT(report.driver.problem, HasSubstr("does not start: cuInit: error 803"));
    EXPECT_THAT(report.nvrtc.problem, HasSubstr("does not tell its version"));
    EXPECT_FALSE(report.can_compile());
    EXPECT_FALSE(report.can_run_cuda());
    EXPECT_THAT(to_text(report), HasSubstr("\n      the CUDA driver ("));
    fake().init_code = 0;
}

TEST(Doctor, TheHostCompilerIsTheOneThatTheEmulatorTakes) {
    ScopedVariable own("TW_HOST_CXX", "/nowhere/c++"), cxx("CXX", "g++");
    auto compiler = examine().host_compiler;
    if (!compiler.problem.empty()) GTEST_SKIP() << compiler.problem;
    EXPECT_NE(compiler.command, "/nowhere/c++");
    EXPECT_THAT(compiler.version, testing::ContainsRegex("[0-9]+\\.[0-9]+"));
}

TEST(Doctor, JsonHoldsTheSame) {
    fake_driver();
    ScopedVariable driver("TW_CUDA_DRIVER", fake_cuda_path().c_str()), nvrtc("TW_NVRTC", "/nowhere/libnvrtc.so");
    cubin_cache().store("key", "payload");
    DoctorReport report = examine();
    auto json = nlohmann::json::parse(to_json(report));
    EXPECT_EQ(json["driver"]["path"], fake_cuda_path());
    EXPECT_EQ(json["driver"]["attempts"][0]["outcome"], "loaded");
    EXPECT_EQ(json["devices"][0]["memory_bytes"], 64 << 20);
    EXPECT_EQ(json["nvrtc"]["problem"], "not found");
    EXPECT_EQ(json["cache"]["entries"], cubin_cache().list().size());
    EXPECT_EQ(json["cache"]["damaged"], 0);
    EXPECT_EQ(json["can_compile"], false);
    EXPECT_EQ(json["can_emulate"], report.can_emulate());
}

}  // namespace
}  // namespace tw
