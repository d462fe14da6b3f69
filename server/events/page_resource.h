// PageResource: whole pages from the kernel, as upstream of a pool. Long-lived objects among many
// short-lived ones would hold pages of the heap that are otherwise free. Thread-safe.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <memory_resource>
#include <new>

namespace iris::server {

class PageResource : public std::pmr::memory_resource {
 private:
  static size_t Round(size_t bytes) {
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
  }

  void* do_allocate(size_t bytes, size_t /*alignment*/) override {
    void* const pages =
        mmap(nullptr, Round(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    return pages;
  }
  void do_deallocate(void* pages, size_t bytes, size_t /*alignment*/) override {
    munmap(pages, Round(bytes));
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

}  // namespace iris::server
