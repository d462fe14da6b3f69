#include "device/driver/emu_share.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "device/base/bytes.h"
#include "device/base/unique_fd.h"
#include "device/driver/emu_driver.h"

namespace iris::driver {
namespace {

constexpr char kRemedy[] =
    "allocate it with memfd_create (MFD_ALLOW_SEALING), ftruncate, "
    "fcntl(F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) and mmap (MAP_SHARED), or copy it into the "
    "heap";

// One line of /proc/self/maps.
struct Line {
  uint64_t from = 0;
  uint64_t to = 0;
  bool shared = false;
  uint64_t offset_bytes = 0;  // of the file at `from`
  unsigned device_major = 0;
  unsigned device_minor = 0;
  uint64_t inode = 0;  // 0: no file
  std::string path;

  bool SameFile(const Line& other) const {
    return inode == other.inode && device_major == other.device_major &&
           device_minor == other.device_minor;
  }
  // Returns the address of the file's first byte. Only meaningful if from >= offset_bytes.
  uint64_t first() const { return from - offset_bytes; }
};

// One call of ShareMemfds.
class Sharing {
 public:
  explicit Sharing(std::string what) : what_(std::move(what)) {}

  absl::Status ReadMaps() {
    const std::unique_ptr<FILE, int (*)(FILE*)> maps(fopen("/proc/self/maps", "re"), fclose);
    if (maps == nullptr) return Failed(errno, "open /proc/self/maps (is /proc mounted?)");
    char* text = nullptr;
    size_t capacity = 0;
    while (getline(&text, &capacity, maps.get()) > 0) {
      Line line;
      unsigned long from = 0, to = 0, offset = 0, inode = 0;
      char mode[5] = {};
      int path_at = 0;
      if (sscanf(text, "%lx-%lx %4s %lx %x:%x %lu %n", &from, &to, mode, &offset,
                 &line.device_major, &line.device_minor, &inode, &path_at) != 7) {
        continue;
      }
      line.from = from;
      line.to = to;
      line.shared = mode[3] == 's';
      line.offset_bytes = offset;
      line.inode = inode;
      line.path = text + path_at;
      if (!line.path.empty() && line.path.back() == '\n') line.path.pop_back();
      lines_.push_back(std::move(line));
    }
    free(text);
    return absl::OkStatus();
  }

  // Returns the piece at `address`, of which [address, min(end, end of the piece)) is mapped here.
  absl::StatusOr<SharedPiece> PieceAt(uint64_t address, uint64_t end) {
    const Line* const line = LineOf(address);
    if (line == nullptr) return Refuse(address, absl::StrCat("nothing is mapped there; ", kRemedy));
    if (absl::Status s = CheckLine(*line, address); !s.ok()) return s;
    struct stat info = {};
    absl::StatusOr<base::UniqueFd> fd = FindDescriptor(*line, address, &info);
    if (!fd.ok()) return fd.status();
    SharedPiece piece;
    piece.bytes = static_cast<uint64_t>(info.st_size);
    piece.address = line->from >= line->offset_bytes ? line->first() : 0;
    if (absl::Status s = CheckPlace(piece, *line, address, end); !s.ok()) return s;
    piece.fd = fd->Release();
    return piece;
  }

  absl::Status Refuse(uint64_t address, absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrFormat("at %#x, %s", address, why));
  }

 private:
  const Line* LineOf(uint64_t address) const {
    const auto it = std::find_if(lines_.begin(), lines_.end(), [address](const Line& line) {
      return line.from <= address && address < line.to;
    });
    return it == lines_.end() ? nullptr : &*it;
  }

  absl::Status Failed(int error, absl::string_view call) const {
    absl::StatusCode code = absl::ErrnoToStatusCode(error);
    if (error == EMFILE || error == ENFILE) code = absl::StatusCode::kResourceExhausted;
    return absl::Status(
        code, absl::StrCat(what_, ": ", call, ": ", std::generic_category().message(error),
                           error == EMFILE ? "; raise this process's limit (ulimit -n)" : ""));
  }

  // Returns an error unless this mapping can be a shared one of a memfd.
  absl::Status CheckLine(const Line& line, uint64_t address) const {
    if (line.inode == 0) {
      return Refuse(address, absl::StrCat("there is private memory of this process (malloc, stack, "
                                          "MAP_ANONYMOUS), which has no descriptor; ",
                                          kRemedy));
    }
    if (!absl::StartsWith(line.path, "/memfd:")) {
      return Refuse(address,
                    absl::StrCat("there is ", line.path,
                                 ", and not a memfd, whose size alone can be sealed; ", kRemedy));
    }
    if (!line.shared) {
      return Refuse(
          address, absl::StrCat("the memfd ", line.path,
                                " is mapped MAP_PRIVATE, so that nobody else sees what is written; "
                                "map it MAP_SHARED"));
    }
    return absl::OkStatus();
  }

  // Duplicates this process's descriptor of the memfd that `line` maps, with Import's seals.
  absl::StatusOr<base::UniqueFd> FindDescriptor(const Line& line, uint64_t address,
                                                struct stat* info) const {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
    if (folder == nullptr) return Failed(errno, "open /proc/self/fd (is /proc mounted?)");
    bool found_read_only = false;
    while (const dirent* const entry = readdir(folder.get())) {
      int fd = -1;
      if (!absl::SimpleAtoi(entry->d_name, &fd) || !IsOf(fd, line, info)) continue;
      if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
        found_read_only = true;
        continue;
      }
      if (absl::Status s = CheckSeals(fd, line, address); !s.ok()) return s;
      base::UniqueFd duplicate(fcntl(fd, F_DUPFD_CLOEXEC, 3));
      if (!duplicate.valid()) return Failed(errno, absl::StrCat("duplicate descriptor ", fd));
      // Another thread may have closed that descriptor and opened another file with its number.
      if (IsOf(duplicate.get(), line, info)) return duplicate;
    }
    if (found_read_only) {
      return Refuse(address,
                    absl::StrCat("there is the memfd ", line.path,
                                 ", which this process has open for reading alone: open it "
                                 "for reading and writing"));
    }
    return Refuse(address, absl::StrCat("there is the memfd ", line.path,
                                        ", whose descriptor this process has closed: keep it open "
                                        "until the memory is registered"));
  }

  static bool IsOf(int fd, const Line& line, struct stat* info) {
    return fstat(fd, info) == 0 && S_ISREG(info->st_mode) && info->st_ino == line.inode &&
           major(info->st_dev) == line.device_major && minor(info->st_dev) == line.device_minor;
  }

  absl::Status CheckSeals(int fd, const Line& line, uint64_t address) const {
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
      return Refuse(address,
                    absl::StrCat("there is ", line.path,
                                 ", and not a memfd, whose size alone can be sealed; ", kRemedy));
    }
    const int missing = kResizeSeals & ~seals;
    if (missing != 0 && (seals & F_SEAL_SEAL) != 0) {
      return Refuse(address, absl::StrCat("there is the memfd ", line.path,
                                          ", which could still be resized and takes no more seals: "
                                          "create it with MFD_ALLOW_SEALING, and seal it against "
                                          "resizing before anything else; ",
                                          kRemedy));
    }
    if (missing != 0) {
      return Refuse(
          address,
          absl::StrCat("there is the memfd ", line.path,
                       ", which could still be resized, which would kill those who map it with "
                       "SIGBUS: call fcntl(",
                       fd, ", F_ADD_SEALS, ", (missing & F_SEAL_SHRINK) != 0 ? "F_SEAL_SHRINK" : "",
                       missing == kResizeSeals ? " | " : "",
                       (missing & F_SEAL_GROW) != 0 ? "F_SEAL_GROW" : "", ") first"));
    }
    if ((seals & kWriteSeals) != 0) {
      return Refuse(address, absl::StrCat("there is the memfd ", line.path,
                                          ", which is sealed against writing: create one without "
                                          "F_SEAL_WRITE and F_SEAL_FUTURE_WRITE"));
    }
    return absl::OkStatus();
  }

  // `line` contains `address` and maps the piece.
  absl::Status CheckPlace(const SharedPiece& piece, const Line& line, uint64_t address,
                          uint64_t end) const {
    if (piece.bytes == 0 || piece.bytes % kEmuGranularityBytes != 0) {
      return Refuse(address, absl::StrFormat("there is the memfd %s of %d bytes, which is not a "
                                             "positive multiple of %d: give it such a size",
                                             line.path, piece.bytes, kEmuGranularityBytes));
    }
    if (line.from < line.offset_bytes) {
      return Refuse(address, absl::StrFormat("there is a part of the memfd %s, of which the first "
                                             "byte would lie before address 0: map all of it",
                                             line.path));
    }
    // The piece has several lines if it was mapped or protected in parts.
    const uint64_t until = std::min(end, piece.address + piece.bytes);
    for (uint64_t at = address; at < until;) {
      const Line* const next = LineOf(at);
      if (next == nullptr || !next->SameFile(line) || !next->shared ||
          next->from - next->offset_bytes != piece.address) {
        return Refuse(at,
                      absl::StrFormat("the mapping of the memfd %s (%d bytes, the first at %#x) "
                                      "has ended: map all of the file in one piece",
                                      line.path, piece.bytes, piece.address));
      }
      at = next->to;
    }
    if (address >= piece.address + piece.bytes) {
      return Refuse(address, absl::StrFormat("the memfd %s (%d bytes, the first at %#x) has ended: "
                                             "map no more than the file has",
                                             line.path, piece.bytes, piece.address));
    }
    return absl::OkStatus();
  }

  const std::string what_;
  std::vector<Line> lines_;
};

}  // namespace

absl::StatusOr<std::vector<SharedPiece>> ShareMemfds(uint64_t address, uint64_t bytes,
                                                     size_t max_pieces) {
  const std::string what = absl::StrCat("share ", base::SizeText(bytes), " of emulated memory");
  Sharing sharing(what);
  if (address == 0 || bytes == 0 || bytes > std::numeric_limits<uint64_t>::max() - address) {
    return sharing.Refuse(address, "there is no such range of memory");
  }
  if (absl::Status s = sharing.ReadMaps(); !s.ok()) return s;
  std::vector<SharedPiece> pieces;
  std::vector<base::UniqueFd> fds;
  for (uint64_t at = address; at < address + bytes;) {
    if (pieces.size() == max_pieces) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "at %#x, the memory lies in more than %d memfds, of which each takes a descriptor: "
          "lend less at a time, or memory of fewer and larger memfds",
          address, max_pieces));
    }
    const absl::StatusOr<SharedPiece> piece = sharing.PieceAt(at, address + bytes);
    if (!piece.ok()) return piece.status();
    fds.emplace_back(piece->fd);
    if (!pieces.empty() && piece->address != at) {
      return sharing.Refuse(
          at, absl::StrFormat("a memfd is mapped from its byte %d on, behind another one: map all "
                              "of each file",
                              at - piece->address));
    }
    pieces.push_back(*piece);
    at = piece->address + piece->bytes;
  }
  for (base::UniqueFd& fd : fds) (void)fd.Release();
  return pieces;
}

}  // namespace iris::driver
