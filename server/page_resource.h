// PageResource: memory straight from the kernel, in whole pages, apart from the heap. For what
// lives long among much that does not: on the heap it would hold pages that are otherwise free.
// Meant to be the upstream of a pool. Thread-safe.
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

  // A page is aligned for everything that is ever asked for here.
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
