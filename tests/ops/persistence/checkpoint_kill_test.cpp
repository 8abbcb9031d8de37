// Training that is killed again and again: whatever the moment, the checkpoint is whole, and of a training that was
// never killed.
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "support/die_with_parent.h"
#include "tests/ops/persistence/files.h"
#include "tests/ops/persistence/small_training.h"

namespace tw::nn {
namespace {

constexpr int64_t Steps = 150;

/// A child that trains from the checkpoint, if there is one, to the last step, and saves after each; exit status 0.
/// All is compiled already: what it does is to load, run and save.
pid_t begin_training(SmallTraining& training, const std::filesystem::path& path) {
    const pid_t parent = getpid(), child = fork();
    if (child != 0) return child;
    die_with_parent(parent);
    try {
        if (std::filesystem::exists(path)) training.checkpoint.load(path);
        while (training.step < Steps) {
            training.advance();
            training.checkpoint.save(path);
        }
    } catch (const std::exception& error) {
        fmt::print(stderr, "the child: {}\n", error.what());
        _exit(1);
    }
    _exit(0);
}

/// The files that an uninterrupted training saves, by step; it is where it began again.
std::vector<std::string> uninterrupted(SmallTraining& training, const FileFolder& folder) {
    std::vector<std::string> files;
    for (int64_t step = 0; step <= Steps; ++step) {
        const std::filesystem::path path = folder / (step == 0 ? "start" : "uninterrupted");
        training.checkpoint.save(path);
        files.push_back(file_text(path));
        training.advance();
    }
    training.checkpoint.load(folder / "start");
    return files;
}

TEST(KilledTraining, GoesOnWithTheSameBits) {
    constexpr int Kills = 50;
    SmallTraining training(open_device("emulated"), 3);  // no threads of its own: a fork has all of it
    const FileFolder folder;
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<std::string> expected = uninterrupted(training, folder);
    const std::chrono::duration<double> step_time = (std::chrono::steady_clock::now() - begin) / (Steps + 1);
    ASSERT_FALSE(expected[Steps - 1] == expected[Steps]);
    const std::filesystem::path path = folder / "checkpoint";
    std::mt19937_64 random(std::random_device{}());
    int kills = 0, left_aside = 0, ends = 0;
    int64_t reached = 0;
    for (int round = 0; kills < Kills && round < 20 * Kills; ++round) {
        const pid_t child = begin_training(training, path);
        ASSERT_GT(child, 0);
        std::this_thread::sleep_for(step_time * std::uniform_real_distribution(0.0, 6.0)(random));
        kill(child, SIGKILL);
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        ASSERT_TRUE(was_killed || status == 0) << status;
        kills += was_killed ? 1 : 0;
        left_aside += folder.count("tmp-") > 0 ? 1 : 0;
        if (!std::filesystem::exists(path)) continue;  // killed before the first was saved
        const int64_t step = Safetensors(path).array("step").at({}).integer;
        ASSERT_TRUE(step >= reached && step <= Steps) << step << " behind " << reached;
        ASSERT_TRUE(file_text(path) == expected[static_cast<size_t>(step)])
            << "killed " << kills << " times, step " << step;
        reached = step;
        if (step == Steps) {  // once more from the start
            std::filesystem::remove(path);
            reached = 0;
            ++ends;
        }
    }
    EXPECT_EQ(kills, Kills);
    fmt::print("killed {} times over {} steps; {} times a file was found that had been left aside\n", kills,
               ends * Steps + reached, left_aside);
    const pid_t last = begin_training(training, path);
    ASSERT_GT(last, 0);
    int status = 0;
    ASSERT_EQ(waitpid(last, &status, 0), last);
    ASSERT_EQ(status, 0);
    EXPECT_TRUE(file_text(path) == expected[Steps]);
    EXPECT_EQ(folder.count("tmp-"), 0u);
}

}  // namespace
}  // namespace tw::nn
