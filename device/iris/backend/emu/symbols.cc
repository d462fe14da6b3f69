// Names of functions, from the symbol table of the file that they were loaded from.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "iris/backend/emu/diagnosis.h"

namespace iris::backend::emu {
namespace {

// A file in memory while it lives.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    struct stat info;
    if (fstat(descriptor, &info) == 0 && info.st_size > 0) {
      void* const mapped =
          mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (mapped != MAP_FAILED) {
        data_ = static_cast<const uint8_t*>(mapped);
        bytes_ = static_cast<uint64_t>(info.st_size);
      }
    }
    close(descriptor);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), bytes_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // `count` objects at `offset`, or null if the file has not so many there.
  template <typename T>
  const T* At(uint64_t offset, uint64_t count = 1) const {
    if (offset % alignof(T) != 0 || offset > bytes_ || count > (bytes_ - offset) / sizeof(T)) {
      return nullptr;
    }
    return reinterpret_cast<const T*>(data_ + offset);
  }

 private:
  const uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// The name of the function whose first byte has the address `value` in a table of symbols. It
// points into the file.
const char* FindInTable(const MappedFile& file, const Elf64_Shdr& table, const Elf64_Shdr& strings,
                        uint64_t value) {
  const uint64_t count = table.sh_size / sizeof(Elf64_Sym);
  const Elf64_Sym* const symbols = file.At<Elf64_Sym>(table.sh_offset, count);
  const char* const names = file.At<char>(strings.sh_offset, strings.sh_size);
  if (symbols == nullptr || names == nullptr || strings.sh_size == 0 ||
      names[strings.sh_size - 1] != '\0') {
    return nullptr;
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC && symbols[i].st_value == value &&
        symbols[i].st_shndx != SHN_UNDEF && symbols[i].st_name < strings.sh_size) {
      return names + symbols[i].st_name;
    }
  }
  return nullptr;
}

const char* FindInFile(const MappedFile& file, uint64_t address, uint64_t load_address) {
  const Elf64_Ehdr* const header = file.At<Elf64_Ehdr>(0);
  if (header == nullptr || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64) {
    return nullptr;
  }
  const uint64_t value = header->e_type == ET_DYN ? address - load_address : address;
  const Elf64_Shdr* const sections = file.At<Elf64_Shdr>(header->e_shoff, header->e_shnum);
  if (sections == nullptr) return nullptr;
  for (uint32_t i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB && sections[i].sh_type != SHT_DYNSYM) continue;
    if (sections[i].sh_link >= header->e_shnum) continue;
    const char* const name = FindInTable(file, sections[i], sections[sections[i].sh_link], value);
    if (name != nullptr) return name;
  }
  return nullptr;
}

bool IsMainProgram(const void* load_address) {
  Dl_info main;
  const unsigned long entry = getauxval(AT_ENTRY);
  return entry != 0 && dladdr(reinterpret_cast<void*>(entry), &main) != 0 &&
         main.dli_fbase == load_address;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void PlainName(const char* mangled, char* out, size_t bytes) {
  if (bytes == 0) return;
  snprintf(out, bytes, "%s", mangled);
  const char* at = mangled;
  if (strncmp(at, "_Z", 2) != 0) return;
  at += 2;
  const bool nested = *at == 'N';
  if (nested) ++at;
  size_t used = 0;
  bool any = false;
  for (;;) {
    if (*at == 'L') ++at;  // of one file alone
    if (!IsDigit(*at)) break;
    size_t length = 0;
    while (IsDigit(*at) && length < 4096) length = 10 * length + static_cast<size_t>(*at++ - '0');
    if (strnlen(at, length) < length) break;
    // Names without a name are of no use to a reader.
    if (length < 8 || strncmp(at, "_GLOBAL_", 8) != 0) {
      const int n = snprintf(out + used, bytes - used, "%s%.*s", any ? "::" : "",
                             static_cast<int>(length), at);
      if (n < 0 || static_cast<size_t>(n) >= bytes - used) return;  // it is full
      used += static_cast<size_t>(n);
      any = true;
    }
    at += length;
    if (!nested) break;
  }
  if (!any || (nested && *at != 'E' && *at != 'I')) {
    snprintf(out, bytes, "%s", mangled);
  } else if (*at == 'I') {
    snprintf(out + used, bytes - used, "<...>");
  }
}

void NameOfFunction(const void* function, char* out, size_t bytes) {
  Dl_info info;
  if (dladdr(function, &info) == 0) {
    snprintf(out, bytes, "kernel at %p", function);
    return;
  }
  if (info.dli_sname != nullptr && info.dli_saddr == function) {
    return PlainName(info.dli_sname, out, bytes);
  }
  const uint64_t address = reinterpret_cast<uint64_t>(function);
  const uint64_t load_address = reinterpret_cast<uint64_t>(info.dli_fbase);
  const MappedFile file(IsMainProgram(info.dli_fbase) ? "/proc/self/exe" : info.dli_fname);
  const char* const name = FindInFile(file, address, load_address);
  if (name != nullptr) return PlainName(name, out, bytes);
  snprintf(out, bytes, "kernel at %s+0x%llx", info.dli_fname,
           static_cast<unsigned long long>(address - load_address));
}

}  // namespace iris::backend::emu
