// A process that runs commands one after another, for tests of many plans and short trainings: loading libtorch and joining the ranks
// take longer than most of these. usage: FILE SOCKET
//
// It connects to SOCKET and says its rank. A request is a count of bytes and strings that end with zero: folder, file for stdout,
// file for stderr, then the command with its name. The answer is the exit code. It ends when the other side closes.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/program_commands.h"
#include "cli/trainer_main.h"
#include "resident_mpi.h"

namespace {

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "resident: %s\n", what.c_str());
  std::_Exit(70);
}

bool read_all(int from, void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = ::read(from, at, size);
    if (n <= 0) return false;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

void write_number(int to, std::int32_t number) {
  if (::write(to, &number, sizeof number) != sizeof number) fail("the answer was not taken");
}

int connect_to(const char* path) {
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  if (::connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail(std::string("no connection to ") + path);
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  write_number(made, rank != nullptr ? std::atoi(rank) : 0);
  return made;
}

NeapTrainerMain load_trainer() {
  static NeapTrainerMain loaded = nullptr;
  if (loaded != nullptr) return loaded;
  ::setenv("GOMP_SPINCOUNT", "1000", 0);  // as src/cli/trainer_library.cpp
  void* const library = ::dlopen(NEAP_TRAINER_FILE, RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) fail(::dlerror());
  ::unsetenv("GOMP_SPINCOUNT");
  void* const found = ::dlsym(library, NEAP_TRAINER_MAIN);
  if (found == nullptr) fail(::dlerror());
  loaded = reinterpret_cast<NeapTrainerMain>(found);
  return loaded;
}

// The program runs commands in the same way (src/cli/main.cpp).
int run_words(int argc, char** argv) {
  using namespace neap::cli;
  if (needs_trainer(argv[1])) return load_trainer()(argc, argv);
  return run_command(make_program_commands(), argc, argv);
}

void redirect(const char* path, int to) {
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0 || ::dup2(file, to) < 0) fail(std::string("cannot write ") + path);
  ::close(file);
}

int run(std::vector<char>& request) {
  std::vector<char*> words;
  for (std::size_t at = 0; at < request.size(); at += std::strlen(&request[at]) + 1)
    words.push_back(&request[at]);
  if (words.size() < 5 || ::chdir(words[0]) != 0) fail("a request is not one");
  redirect(words[1], STDOUT_FILENO);
  redirect(words[2], STDERR_FILENO);
  words.erase(words.begin(), words.begin() + 3);
  const int argc = static_cast<int>(words.size());
  words.push_back(nullptr);
  const int code = run_words(argc, words.data());
  std::fflush(nullptr);
  return code;
}

/// MPI, which runs share, ends with the process.
int end_mpi() {
  void* const library = ::dlopen("libneap_mpi.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const found = library != nullptr ? ::dlsym(library, RESIDENT_MPI_END) : nullptr;
  return found != nullptr ? reinterpret_cast<ResidentMpiEnd>(found)() : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) fail("usage: resident SOCKET");
  const int socket = connect_to(argv[1]);
  std::int32_t size = 0;
  std::vector<char> request;
  while (read_all(socket, &size, sizeof size)) {
    request.resize(static_cast<std::size_t>(size));
    if (!read_all(socket, request.data(), request.size())) break;
    write_number(socket, run(request));
  }
  const int code = end_mpi();
  std::fflush(nullptr);
  std::_Exit(code);  // as src/cli/main.cpp
}
