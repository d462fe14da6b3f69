// Containers that mark each entry that an input may have changed, so that every change of the
// machine's state gets into the stored one (server/state). An entry can only be changed through
// access by its key, which marks it; every other access is const. A marked entry may be unchanged.
//
// Not thread-safe: inside the JobMachine, which clears the marks before each input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace iris::server {

// Collects the keys of marked entries.
template <typename Key>
class Marks {
 public:
  void Add(const Key& key) {
    if (keys_.empty() || keys_.back() != key) keys_.push_back(key);
  }
  // Returns each key once, in order.
  std::vector<Key> All() const {
    std::vector<Key> all = keys_;
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  bool empty() const { return keys_.empty(); }
  // Clears the marks, and frees memory beyond a few marks, because there are many Marks objects.
  void Clear() {
    if (keys_.capacity() > 8) keys_ = {};
    keys_.clear();
  }

 private:
  std::vector<Key> keys_;
};

// A map of std or abseil, with marks.
template <typename Map>
class Tracked {
 public:
  using key_type = typename Map::key_type;
  using mapped_type = typename Map::mapped_type;
  using value_type = typename Map::value_type;
  using const_iterator = typename Map::const_iterator;

  const_iterator begin() const { return map_.begin(); }
  const_iterator end() const { return map_.end(); }
  auto rbegin() const { return map_.rbegin(); }
  auto rend() const { return map_.rend(); }
  const_iterator find(const key_type& key) const { return map_.find(key); }
  const_iterator lower_bound(const key_type& key) const { return map_.lower_bound(key); }
  const_iterator upper_bound(const key_type& key) const { return map_.upper_bound(key); }
  bool contains(const key_type& key) const { return map_.contains(key); }
  bool empty() const { return map_.empty(); }
  size_t size() const { return map_.size(); }
  const mapped_type& at(const key_type& key) const { return map_.at(key); }
  const mapped_type* Find(const key_type& key) const {
    const auto found = map_.find(key);
    return found == map_.end() ? nullptr : &found->second;
  }

  // These functions mark the entry, because the caller may write to it.
  mapped_type& at(const key_type& key) {
    marks_.Add(key);
    return map_.at(key);
  }
  mapped_type& operator[](const key_type& key) {
    marks_.Add(key);
    return map_[key];
  }
  // Returns null if the key has no entry.
  mapped_type* Find(const key_type& key) {
    const auto found = map_.find(key);
    if (found == map_.end()) return nullptr;
    marks_.Add(key);
    return &found->second;
  }
  // Returns false if the key already has an entry, which is then unchanged.
  std::pair<const_iterator, bool> emplace(const key_type& key, mapped_type value) {
    marks_.Add(key);
    return map_.emplace(key, std::move(value));
  }
  // `key` is a copy, because the argument may lie in the erased entry.
  size_t erase(key_type key) {
    marks_.Add(key);
    return map_.erase(key);
  }

  const Marks<key_type>& marks() const { return marks_; }
  void ClearMarks() { marks_.Clear(); }

 private:
  Map map_;
  Marks<key_type> marks_;
};

// A vector that marks entries by their index.
template <typename T>
class TrackedVector {
 public:
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  const T& operator[](size_t i) const { return values_[i]; }
  T& operator[](size_t i) {
    marks_.Add(i);
    return values_[i];
  }
  void push_back(T value) {
    marks_.Add(values_.size());
    values_.push_back(std::move(value));
  }
  // Extends the vector. It never shortens it.
  void resize(size_t n) {
    for (size_t i = values_.size(); i < n; ++i) marks_.Add(i);
    values_.resize(n);
  }

  const Marks<size_t>& marks() const { return marks_; }
  void ClearMarks() { marks_.Clear(); }

 private:
  std::vector<T> values_;
  Marks<size_t> marks_;
};

// A queue whose entries never change.
template <typename T>
class TrackedQueue {
 public:
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  const T& operator[](size_t i) const { return values_[i]; }
  const T& front() const { return values_.front(); }
  const T& back() const { return values_.back(); }
  void push_back(T value) {
    ++n_new_;
    values_.push_back(std::move(value));
  }
  void pop_front() {
    values_.pop_front();
    n_new_ = std::min(n_new_, values_.size());
  }
  void clear() {
    values_.clear();
    n_new_ = 0;
  }

  // The last n_new() entries are new. The change of size() shows how many were removed in front.
  size_t n_new() const { return n_new_; }
  void ClearMarks() { n_new_ = 0; }

 private:
  std::deque<T> values_;
  size_t n_new_ = 0;
};

// Marks the entire value when it may have changed. A new value is marked.
template <typename T>
class Watched {
 public:
  Watched() = default;
  Watched(T value) : value_(std::move(value)) {}

  operator const T&() const { return value_; }
  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }
  T& Change() {
    changed_ = true;
    return value_;
  }

  bool changed() const { return changed_; }
  void ClearMarks() { changed_ = false; }

 private:
  T value_{};
  bool changed_ = true;
};

// A unique_ptr that gives const access to its object where it is const itself.
template <typename T>
class Box {
 public:
  Box() : value_(std::make_unique<T>()) {}
  explicit Box(std::unique_ptr<T> value) : value_(std::move(value)) {}

  const T& operator*() const { return *value_; }
  T& operator*() { return *value_; }
  const T* operator->() const { return value_.get(); }
  T* operator->() { return value_.get(); }
  T* get() { return value_.get(); }

 private:
  std::unique_ptr<T> value_;
};

}  // namespace iris::server
