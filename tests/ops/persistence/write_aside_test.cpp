// Files that are there whole, or as they were: what fails or is killed under way leaves the old one.
#include "ops/persistence/write_aside.h"

#include <csignal>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/die_with_parent.h"
#include "tests/ops/persistence/files.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

void write_text(const std::filesystem::path& path, const std::string& text) {
    write_aside(path, [&](const AsideFile& file) { file.write(text_bytes(text)); });
}

TEST(WriteAside, ReplacesTheFile) {
    const FileFolder folder;
    write_text(folder / "file", "first");
    EXPECT_EQ(file_text(folder / "file"), "first");
    write_text(folder / "file", "");
    EXPECT_EQ(file_text(folder / "file"), "");
    const std::string large(5'000'000, 'x');
    write_aside(folder / "file", [&](const AsideFile& file) {
        EXPECT_EQ(file_text(folder / "file"), "");
        file.write(text_bytes(large));
        file.write({});
        file.write(text_bytes("end"));
        EXPECT_EQ(file_text(folder / "file"), "");
        EXPECT_EQ(folder.count("tmp-"), 1u);
    });
    EXPECT_EQ(file_text(folder / "file"), large + "end");
    EXPECT_EQ(folder.count(""), 1u);
}

/// As other programs make files: 0666 less what the umask takes.
TEST(WriteAside, LeavesPermissionsToTheUser) {
    const FileFolder folder;
    const mode_t before = umask(027);
    write_text(folder / "file", "x");
    umask(before);
    struct stat status {};
    ASSERT_EQ(stat((folder / "file").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(WriteAside, TakesNamesInTheCurrentFolder) {
    const FileFolder folder;
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path());
    write_text("file", "x");
    std::filesystem::current_path(before);
    EXPECT_EQ(file_text(folder / "file"), "x");
}

TEST(WriteAside, LeavesTheOldFileWhenItFails) {
    const FileFolder folder;
    put_text(folder / "file", "before");
    EXPECT_THROW(write_aside(folder / "file",
                             [](const AsideFile& file) {
                                 file.write(text_bytes("half"));
                                 throw std::runtime_error("no more");
                             }),
                 std::runtime_error);
    EXPECT_EQ(file_text(folder / "file"), "before");
    EXPECT_EQ(folder.count(""), 1u);

    // No space: a limit for files of this process stands for a disk that is full.
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlimit small{1000, limit.rlim_max};
    const auto handler = signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    std::string message;
    try {
        write_text(folder / "file", std::string(2000, 'x'));
    } catch (const Error& error) {
        message = error.what();  // read below: under the limit, notes of what was read could not be written
    }
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, handler);
    EXPECT_NE(message.find("/file: cannot be written (write: File too large)"), std::string::npos) << message;
    EXPECT_EQ(file_text(folder / "file"), "before");
    EXPECT_EQ(folder.count(""), 1u);
}

TEST(WriteAside, SaysWhatTheSystemRefuses) {
    const FileFolder folder;
    EXPECT_ERROR(write_text(folder / "none" / "file", "x"),
                 "/none/file: cannot be written (open its folder: No such file or directory); check the folder, its "
                 "permissions and the space that is left");
    std::filesystem::create_directory(folder / "folder");
    EXPECT_ERROR(write_text(folder / "folder", "x"), "/folder: cannot be written (rename: ");
    EXPECT_EQ(folder.count("tmp-"), 0u);
    EXPECT_ERROR(write_text("/proc/self/file", "x"), "cannot be written (create a file beside it: ");
    EXPECT_ERROR(write_text(folder.path() / "", "x"), "/' names no file; give a name in the folder");
    EXPECT_ERROR(write_text("", "x"), "'' names no file");
    EXPECT_ERROR(write_text(folder / "..", "x"), "..' names no file");
}

/// A child that is killed in the midst of writing: at that moment, not at a random one.
void killed_while_writing(const std::filesystem::path& path) {
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
        die_with_parent(parent);
        write_aside(path, [](const AsideFile& file) {
            file.write(text_bytes("half"));
            raise(SIGKILL);
        });
        _exit(0);
    }
    ASSERT_GT(child, 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST(WriteAside, TakesAwayWhatKilledWritersLeft) {
    const FileFolder folder;
    put_text(folder / "file", "before");
    put_text(folder / "tmp-mine", "a user's");
    killed_while_writing(folder / "file");
    killed_while_writing(folder / "another");
    EXPECT_EQ(file_text(folder / "file"), "before");
    EXPECT_FALSE(std::filesystem::exists(folder / "another"));
    EXPECT_EQ(folder.count("tmp-"), 2u);  // each writer took away what the one before it had left
    write_aside(folder / "file", [&](const AsideFile& file) {
        EXPECT_EQ(folder.count("tmp-"), 2u);
        write_text(folder / "another", "whole");  // one that lives keeps its own
        file.write(text_bytes("after"));
    });
    EXPECT_EQ(file_text(folder / "file"), "after");
    EXPECT_EQ(file_text(folder / "another"), "whole");
    EXPECT_EQ(folder.count("tmp-"), 1u);
}

}  // namespace
}  // namespace tw
