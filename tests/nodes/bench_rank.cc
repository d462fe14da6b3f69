// One rank of nodes_bench.py, which compares Iris with other libraries: each measures the same
// calls in the same way. It is Iris's; with -DPEER_MPI it is MPI's, with -DPEER_GLOO gloo's.
//
//   bench_rank OPERATION BYTES RUNS    rank 0 prints the median time of a call in microseconds
//
// all_reduce: the sum of floats; barrier: of the hosts; put: until it is in the memory of the first
// rank of another node, and known here to be so; puts: of all ranks at once, each to another node.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#if defined(PEER_MPI)

#include <mpi.h>

class Peer {
 public:
  explicit Peer(uint64_t bytes) : in_(bytes / 4, 1), out_(bytes / 4) {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &n_);
    MPI_Win_allocate(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base_, &win_);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win_);
  }
  ~Peer() {
    MPI_Win_unlock_all(win_);
    MPI_Win_free(&win_);
    MPI_Finalize();
  }
  int rank() const { return rank_; }
  int n() const { return n_; }
  bool AllReduce() {
    return MPI_Allreduce(in_.data(), out_.data(), static_cast<int>(in_.size()), MPI_FLOAT, MPI_SUM,
                         MPI_COMM_WORLD) == MPI_SUCCESS;
  }
  float result() const { return out_[0]; }
  bool Barrier() { return MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS; }
  bool Put(int to) {
    const int n = static_cast<int>(in_.size() * 4);
    MPI_Put(in_.data(), n, MPI_BYTE, to, 0, n, MPI_BYTE, win_);
    return MPI_Win_flush(to, win_) == MPI_SUCCESS;
  }

 private:
  std::vector<float> in_, out_;
  int rank_ = 0, n_ = 0;
  void* base_ = nullptr;
  MPI_Win win_ = MPI_WIN_NULL;
};

#elif defined(PEER_GLOO)

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

class Peer {
 public:
  explicit Peer(uint64_t bytes)
      : in_(bytes / 4, 1),
        out_(bytes / 4),
        rank_(atoi(getenv("IRIS_RANK"))),
        n_(atoi(getenv("IRIS_N_RANKS"))) {
    gloo::transport::tcp::attr attr;
    attr.iface = "eth0";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(getenv("GLOO_STORE"));
    context_ = std::make_shared<gloo::rendezvous::Context>(rank_, n_);
    context_->connectFullMesh(store, device);
  }
  int rank() const { return rank_; }
  int n() const { return n_; }
  bool AllReduce() {
    gloo::AllreduceOptions options(context_);
    options.setInput(in_.data(), in_.size());
    options.setOutput(out_.data(), out_.size());
    options.setReduceFunction([](void* a, const void* b, const void* c, size_t n) {
      for (size_t i = 0; i < n; ++i) {
        static_cast<float*>(a)[i] =
            static_cast<const float*>(b)[i] + static_cast<const float*>(c)[i];
      }
    });
    gloo::allreduce(options);
    return true;
  }
  float result() const { return out_[0]; }
  bool Barrier() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
    return true;
  }
  bool Put(int /*to*/) { return false; }

 private:
  std::vector<float> in_, out_;
  int rank_, n_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

#else

#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/stream.h"

class Peer {
 public:
  explicit Peer(uint64_t bytes)
      : context_(*iris::Context::Create({.heap_bytes = 256 << 20})),
        stream_(*iris::Stream::Create(context_)),
        communicator_(*iris::ccl::Communicator::Create(context_)),
        in_(*context_.Allocate<float>(bytes / 4, "in")),
        out_(*context_.Allocate<float>(bytes / 4, "out")) {
    std::fill_n(in_.get(), bytes / 4, 1.0f);
  }
  ~Peer() { (void)communicator_.Destroy(); }
  int rank() const { return static_cast<int>(context_.rank()); }
  int n() const { return static_cast<int>(context_.n_ranks()); }
  bool AllReduce() {
    return communicator_
               .AllReduce(in_.get(), out_.get(), in_.bytes / 4, iris::ccl::ReduceOp::kSum, stream_)
               .ok() &&
           communicator_.Synchronize(stream_).ok();
  }
  float result() const { return out_.get()[0]; }
  bool Barrier() { return context_.Barrier().ok(); }
  bool Put(int to) {
    return context_.Put(static_cast<uint32_t>(to), out_.get(), in_.get(), in_.bytes / 4).ok() &&
           context_.Quiet().ok();
  }

 private:
  iris::Context context_;
  iris::Stream stream_;
  iris::ccl::Communicator communicator_;
  iris::Array<float> in_, out_;
};

#endif

double Micros() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string operation = argv[1];
  const uint64_t bytes = strtoull(argv[2], nullptr, 10);
  const int runs = atoi(argv[3]);
  Peer peer(std::max<uint64_t>(bytes, 4));
  std::vector<double> times;
  bool ok = peer.Barrier();
  for (int i = 0; ok && i < runs + runs / 4; ++i) {
    const double start = Micros();
    if (operation == "put") {
      ok = peer.rank() != 0 || peer.Put(peer.n() / 2);
    } else if (operation == "puts") {
      ok = peer.Put((peer.rank() + peer.n() / 2) % peer.n());
    } else {
      ok = operation == "barrier" ? peer.Barrier() : peer.AllReduce();
    }
    if (i >= runs / 4) times.push_back(Micros() - start);
  }
  ok = ok && peer.Barrier() &&
       (operation != "all_reduce" || peer.result() == static_cast<float>(peer.n()));
  std::sort(times.begin(), times.end());
  if (ok && peer.rank() == 0) std::printf("us %.2f\n", times[times.size() / 2]);
  return ok ? 0 : 1;
}
