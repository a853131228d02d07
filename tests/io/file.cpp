#include "wick/io/file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <csignal>

#include <atomic>
#include <thread>
#include <vector>

#include "io/files.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

TEST(ReadFile, ReturnsEveryByte) {
  TemporaryDirectory dir;
  const std::string bytes("a\0b\n\xff", 5);
  write_plain(dir / "f", bytes);
  EXPECT_EQ(read_file(dir / "f"), bytes);
  write_plain(dir / "empty", "");
  EXPECT_EQ(read_file(dir / "empty"), "");
  EXPECT_FALSE(read_file("/proc/self/status").empty());  // a file whose size is given as 0
}

TEST(ReadFile, KeepsItsLimit) {
  TemporaryDirectory dir;
  write_plain(dir / "f", "12345");
  EXPECT_EQ(read_file(dir / "f", 5), "12345");
  expect_error([&] { read_file(dir / "f", 4); }, {"f: the file is longer than the 4 bytes"});
  expect_error([&] { read_file("/dev/zero", 10000); }, {"/dev/zero: expected a file, found a device"});
}

TEST(ReadFile, NamesWhatIsWrong) {
  TemporaryDirectory dir;
  expect_error([&] { read_file(dir / "missing"); }, {"missing: cannot open", "No such file"});
  expect_error([&] { read_file(dir.path()); }, {"expected a file, found a directory"});
}

TEST(MakeDirectories, MakesParentsAndRefusesFiles) {
  TemporaryDirectory dir;
  make_directories(dir / "a/b/c");
  make_directories(dir / "a/b/c");
  EXPECT_TRUE(fs::is_directory(dir / "a/b/c"));
  write_plain(dir / "file", "");
  expect_error([&] { make_directories(dir / "file"); }, {"file: cannot create the directory"});
  expect_error([&] { make_directories(dir / "file/below"); }, {"file/below: cannot create the directory"});
}

TEST(AtomicFile, WritesNewFilesAndReplacesOldOnes) {
  TemporaryDirectory dir;
  write_file_atomically(dir / "f", "one");
  EXPECT_EQ(read_plain(dir / "f"), "one");
  const std::string big(size_t{3} << 20, 'x');  // larger than the buffer
  AtomicFile file(dir / "f");
  file.write("ab");
  file.write(big);
  file.write("cd");
  EXPECT_EQ(read_plain(dir / "f"), "one");  // until the commit
  file.commit();
  EXPECT_EQ(read_plain(dir / "f"), "ab" + big + "cd");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, LeavesNothingWhenItIsNotCommitted) {
  TemporaryDirectory dir;
  write_plain(dir / "f", "old");
  { AtomicFile(dir / "f").write("new"); }
  EXPECT_EQ(read_plain(dir / "f"), "old");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, KeepsPermissions) {
  TemporaryDirectory dir;
  write_plain(dir / "f", "old");
  fs::permissions(dir / "f", fs::perms::owner_read | fs::perms::owner_write);
  write_file_atomically(dir / "f", "new");
  EXPECT_EQ(read_plain(dir / "f"), "new");
  EXPECT_EQ(fs::status(dir / "f").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(AtomicFile, ReplacesLinksAndNeverWritesThroughThem) {
  for (const char* name : {"f", "f.tmp-wick"})
    for (const bool symbolic : {true, false}) {
      SCOPED_TRACE(std::string(name) + (symbolic ? ", symbolic" : ", hard"));
      TemporaryDirectory dir;
      write_plain(dir / "victim", "old");
      symbolic ? fs::create_symlink(dir / "victim", dir / name) : fs::create_hard_link(dir / "victim", dir / name);
      write_file_atomically(dir / "f", "new");
      EXPECT_EQ(read_plain(dir / "victim"), "old");
      EXPECT_EQ(read_plain(dir / "f"), "new");
      EXPECT_FALSE(fs::is_symlink(dir / "f"));
      EXPECT_EQ(dir.entries(), 2u);
    }
  TemporaryDirectory dir;
  fs::create_symlink(dir / "nowhere", dir / "dangling");
  write_file_atomically(dir / "dangling", "new");
  EXPECT_EQ(read_plain(dir / "dangling"), "new");
  EXPECT_FALSE(fs::exists(dir / "nowhere"));
  fs::create_directory(dir / "folder");
  fs::create_directory_symlink(dir / "folder", dir / "by");
  write_file_atomically(dir / "by/f", "new");
  EXPECT_TRUE(fs::is_symlink(dir / "by")) << "folders on the way may be links";
  EXPECT_EQ(read_plain(dir / "folder/f"), "new");
  expect_error([&] { write_file_atomically(dir / "by", ""); }, {"/by: cannot write", "directory of that name"});
  fs::create_symlink("/dev/null", dir / "device");
  expect_error([&] { write_file_atomically(dir / "device", "x"); }, {"/device: cannot replace"});
  EXPECT_TRUE(fs::is_symlink(dir / "device"));
}

TEST(AtomicFile, APipeOfTheTemporarysNameIsRefused) {
  TemporaryDirectory dir;
  ASSERT_EQ(mkfifo((dir / "f.tmp-wick").c_str(), 0600), 0);
  expect_error([&] { write_file_atomically(dir / "f", "x"); }, {"/f: cannot create the file"});
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, TemporariesOfTheDeadAreRemoved) {
  TemporaryDirectory dir;
  write_plain(dir / "victim", "old");
  write_plain(dir / "dead.tmp-wick", "half");
  fs::create_symlink(dir / "victim", dir / "link.tmp-wick");
  AtomicFile alive(dir / "alive");
  remove_stale_temporaries(dir.path());
  EXPECT_FALSE(fs::exists(dir / "dead.tmp-wick"));
  EXPECT_TRUE(fs::exists(dir / "alive.tmp-wick"));
  EXPECT_EQ(read_plain(dir / "victim"), "old");
  alive.commit();
  remove_stale_temporaries(dir / "none");
}

TEST(AtomicFile, WritesByRelativeName) {
  TemporaryDirectory dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  write_file_atomically("f", "here");
  fs::current_path(before);
  EXPECT_EQ(read_plain(dir / "f"), "here");
}

TEST(AtomicFile, NamesTargetsThatCannotBe) {
  TemporaryDirectory dir;
  fs::create_directory(dir / "d");
  write_plain(dir / "file", "");
  expect_error([&] { write_file_atomically(dir / "d", ""); }, {"/d: cannot write", "directory of that name"});
  expect_error([&] { write_file_atomically(dir / "d/", ""); }, {"/d/: expected the name of a file"});
  expect_error([&] { write_file_atomically(dir / "missing/f", ""); }, {"missing/f: cannot write", "no directory"});
  expect_error([&] { write_file_atomically(dir / "file/f", ""); }, {"file/f: cannot create"});
  expect_error([&] { write_file_atomically("/dev/full", "x"); }, {"/dev/full: cannot replace"});
  EXPECT_EQ(dir.entries(), 2u);
}

// A limit on file sizes fails like a full disk: some of the bytes are written, then none.
TEST(AtomicFile, LeavesTheOldFileWhenTheDiskIsFull) {
  TemporaryDirectory dir;
  write_plain(dir / "f", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100'000;
  setrlimit(RLIMIT_FSIZE, &small);
  expect_error([&] { write_file_atomically(dir / "f", std::string(200'000, 'x')); }, {"/f: cannot write the file"});
  expect_error([&] { AtomicFile(dir / "f").write_at(99'990, "0123456789x", 11); }, {"/f: cannot write the file"});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(read_plain(dir / "f"), "old");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, AKilledWriterLeavesTheOldFileAndTheNextOneCleansUp) {
  TemporaryDirectory dir;
  write_plain(dir / "f", "old");
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(dir / "f");
    file.write(std::string(size_t{4} << 20, 'x'));
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_plain(dir / "f"), "old");
  EXPECT_TRUE(fs::exists(dir / "f.tmp-wick"));
  write_file_atomically(dir / "f", "new");
  EXPECT_EQ(read_plain(dir / "f"), "new");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, ConcurrentWritersTakeTurns) {
  TemporaryDirectory dir;
  const size_t length = 300'000;
  std::atomic<int> torn = 0;
  const auto work = [&](char letter) {
    for (int i = 0; i < 10; ++i) {
      write_file_atomically(dir / "f", std::string(length, letter));
      const std::string seen = read_plain(dir / "f");
      torn += seen.size() != length || seen.find_first_not_of(seen[0]) != seen.npos;
    }
  };
  std::vector<std::thread> writers;
  for (char letter : {'a', 'b', 'c'}) writers.emplace_back(work, letter);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(dir.entries(), 1u);
}

}  // namespace
}  // namespace wick
