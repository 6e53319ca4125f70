// Litmus programs for atomic variables and flags in long blocks, which are under release consistency with
// --protocol hlrc. Each prints its name and "ok"; none of them knows of Hiroba.
//
// executable_atomics [NAME [ROUNDS]]

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <pthread.h>
#include <thread>
#include <vector>

namespace {

constexpr int threads = 4;
constexpr std::size_t page = 4096;

int rounds_or(int usual);
int asked_rounds = 0;
int rounds_or(int usual) { return asked_rounds > 0 ? asked_rounds : usual; }

// A long block, in which each variable has pages of its own or shares them.
struct Block {
    char *bytes;
    Block() : bytes(static_cast<char *>(std::calloc(1, 1 << 20))) {}
    ~Block() { std::free(bytes); }
    template <typename T> T &at(std::size_t offset) { return *reinterpret_cast<T *>(bytes + offset); }
};

class Meeting {
    pthread_barrier_t barrier;

  public:
    explicit Meeting(unsigned count) { pthread_barrier_init(&barrier, nullptr, count); }
    ~Meeting() { pthread_barrier_destroy(&barrier); }
    void wait() { pthread_barrier_wait(&barrier); }
};

template <typename Work> void on_threads(int count, Work work) {
    std::vector<std::thread> all;
    for (int i = 0; i < count; i++)
        all.emplace_back(work, i);
    for (auto &thread : all)
        thread.join();
}

void verdict(const char *name, bool good) {
    std::printf("%s %s\n", name, good ? "ok" : "WRONG");
    std::fflush(stdout);
}

// Every operation at every length, counted by all threads.
void counters() {
    Block block;
    const int rounds = rounds_or(60);
    auto &of_8 = block.at<std::atomic<std::uint64_t>>(0);
    auto &of_4 = block.at<std::atomic<std::uint32_t>>(12);
    auto &of_2 = block.at<std::atomic<std::uint16_t>>(18);
    auto &of_1 = block.at<std::atomic<std::uint8_t>>(21);
    auto &bits = block.at<std::atomic<std::uint64_t>>(page + 8);
    auto &toggled = block.at<std::atomic<std::uint32_t>>(page + 16);
    auto &cleared = block.at<std::atomic<std::uint64_t>>(page + 24);
    auto &cas = block.at<std::atomic<std::uint64_t>>(2 * page);
    auto &swapped = block.at<std::atomic<std::uint64_t>>(3 * page);
    auto &tested = block.at<std::uint64_t>(4 * page);
    auto &negated = block.at<std::uint32_t>(4 * page + 8);
    auto &inverted = block.at<std::uint32_t>(4 * page + 12);
    auto &up = block.at<std::uint64_t>(4 * page + 16);
    auto &down = block.at<std::uint64_t>(4 * page + 24);
    auto *pair = &block.at<std::uint64_t>(5 * page);
    std::atomic<std::uint64_t> received{0}, first{0};
    cleared = ~0ull;
    negated = 5;
    on_threads(threads, [&](int me) {
        std::uint64_t got = 0;
        for (int i = 0; i < rounds; i++) {
            of_8.fetch_add(3);
            of_4++;
            of_2.fetch_sub(1);
            of_1 += 5;
            bits |= 1ull << (me * 16 + i % 16);
            toggled ^= 1u << (me * 4);
            cleared &= ~(1ull << (me * 16 + i % 16));
            std::uint64_t seen = cas.load();
            while (!cas.compare_exchange_weak(seen, seen * 3 + 1)) {
            }
            got += swapped.exchange(got + 1);
            bool was;
            __asm__ volatile("lock btsq %2, %0" : "+m"(tested), "=@ccc"(was) : "r"((std::uint64_t)(i % 64)));
            first += !was;
            __asm__ volatile("lock notl %0" : "+m"(inverted));
            __asm__ volatile("lock negl %0" : "+m"(negated));
            __asm__ volatile("lock incq %0" : "+m"(up));
            __asm__ volatile("lock decq %0" : "+m"(down));
            bool done;
            do {
                std::uint64_t low = pair[0], high = pair[1];
                __asm__ volatile("lock cmpxchg16b %1"
                                 : "=@ccz"(done), "+m"(*(std::uint64_t(*)[2])pair), "+a"(low), "+d"(high)
                                 : "b"(low + 1), "c"(high + 2));
            } while (!done);
        }
        received += got;
    });
    const unsigned all = threads * rounds;
    std::uint64_t expected_cas = 0;
    for (unsigned i = 0; i < all; i++)
        expected_cas = expected_cas * 3 + 1;
    const std::uint64_t some = rounds >= 16 ? 0xffff : (1u << rounds) - 1;
    const std::uint64_t each = some * 0x0001000100010001ull;
    bool good = of_8 == 3ull * all && of_4 == all && of_2 == (std::uint16_t)(0 - all) &&
                of_1 == (std::uint8_t)(5 * all) && bits == each && toggled == (rounds % 2 ? 0x1111u : 0) &&
                cleared == ~each && cas == expected_cas && pair[0] == all && pair[1] == 2ull * all;
    // There is an even number of threads.
    good = good && inverted == 0 && negated == 5 && up == all && down + all == 0 && first == (unsigned)(rounds < 64 ? rounds : 64);
    verdict("counters", good);
}

// Flags in registers survive: a reference count that reaches zero once.
void last_one() {
    Block block;
    const int rounds = rounds_or(20);
    std::atomic<int> ends{0};
    auto *counts = &block.at<std::atomic<int>>(0);
    for (int i = 0; i < rounds; i++)
        counts[i] = threads;
    on_threads(threads, [&](int) {
        for (int i = 0; i < rounds; i++)
            if (counts[i].fetch_sub(1) == 1)
                ends++;
    });
    verdict("last one", ends == rounds);
}

// Of two threads that store and then load the other's variable one sees the other's store.
void store_buffering(bool by_fence) {
    Block block;
    const int rounds = rounds_or(60);
    auto *x = &block.at<std::atomic<int>>(0), *y = &block.at<std::atomic<int>>(10 * page);
    Meeting meeting(2);
    int seen[2] = {0, 0};
    int both_missed = 0;
    on_threads(2, [&](int me) {
        auto *mine = me ? y : x, *others = me ? x : y;
        for (int i = 0; i < rounds; i++) {
            int old = others[i].load(std::memory_order_relaxed); // a copy of the page
            meeting.wait();
            if (by_fence) {
                mine[i].store(1, std::memory_order_relaxed);
                std::atomic_thread_fence(std::memory_order_seq_cst);
                seen[me] = old + others[i].load(std::memory_order_relaxed);
            } else {
                mine[i].store(1);
                seen[me] = old + others[i].load();
            }
            meeting.wait();
            if (me == 0 && seen[0] + seen[1] == 0)
                both_missed++;
            meeting.wait();
        }
    });
    verdict(by_fence ? "store buffering by fences" : "store buffering", both_missed == 0);
}

// The same of one variable in a long block and one elsewhere.
void mixed_store_buffering() {
    Block block;
    const int rounds = rounds_or(200);
    auto *x = &block.at<std::atomic<int>>(0);
    static std::atomic<int> y[1000];
    Meeting meeting(2);
    int seen[2] = {0, 0};
    int both_missed = 0;
    on_threads(2, [&](int me) {
        auto *mine = me ? y : x, *others = me ? x : y;
        for (int i = 0; i < rounds; i++) {
            int old = others[i].load(std::memory_order_relaxed); // a copy of the page
            meeting.wait();
            mine[i].store(1);
            seen[me] = old + others[i].load();
            meeting.wait();
            if (me == 0 && seen[0] + seen[1] == 0)
                both_missed++;
            meeting.wait();
        }
    });
    verdict("mixed store buffering", both_missed == 0);
}

// A thread that sees the flag sees the data that were stored before.
void message_passing(bool by_exchange) {
    Block block;
    const int rounds = rounds_or(15);
    auto *data = &block.at<int>(0), *copy = &block.at<int>(40 * page);
    auto &flag = block.at<std::atomic<int>>(20 * page);
    auto &answer = block.at<std::atomic<int>>(30 * page);
    int wrong = 0;
    on_threads(2, [&](int me) {
        for (int i = 1; i <= rounds; i++) {
            if (me == 0) {
                for (int k = 0; k < 3000; k++)
                    data[k] = i * 7 + k;
                if (by_exchange)
                    flag.exchange(i);
                else
                    flag.store(i, std::memory_order_release);
                while (answer.load(std::memory_order_acquire) != i) {
                }
                if (copy[5] != i * 7 + 5)
                    wrong++;
            } else {
                while (flag.load(std::memory_order_acquire) != i) {
                }
                for (int k = 0; k < 3000; k++)
                    if (data[k] != i * 7 + k)
                        wrong++;
                copy[5] = data[5];
                answer.store(i, std::memory_order_release);
            }
        }
    });
    verdict(by_exchange ? "message passing by exchange" : "message passing", wrong == 0);
}

// A lock of one byte: test-and-set to take it, a plain store to give it back.
struct SpinLock {
    std::atomic<bool> taken;
    void lock() {
        while (taken.exchange(true, std::memory_order_acquire)) {
        }
    }
    void unlock() { taken.store(false, std::memory_order_release); }
};

void spin_lock() {
    Block block;
    const int rounds = rounds_or(20);
    auto &lock = block.at<SpinLock>(64);
    auto *sums = &block.at<long>(50 * page);
    on_threads(threads, [&](int) {
        for (int i = 0; i < rounds; i++) {
            std::lock_guard<SpinLock> guard(lock);
            for (int k = 0; k < 1000; k += 100)
                sums[k] += 1;
        }
    });
    verdict("spin lock", sums[0] == threads * rounds && sums[900] == threads * rounds);
}

void ticket_lock() {
    Block block;
    const int rounds = rounds_or(10);
    auto &next = block.at<std::atomic<unsigned>>(0);
    auto &serving = block.at<std::atomic<unsigned>>(4);
    auto &sum = block.at<long>(9 * page);
    on_threads(threads, [&](int) {
        for (int i = 0; i < rounds; i++) {
            unsigned mine = next.fetch_add(1);
            while (serving.load(std::memory_order_acquire) != mine)
                std::this_thread::yield();
            sum += 1;
            serving.store(mine + 1, std::memory_order_release);
        }
    });
    verdict("ticket lock", sum == threads * rounds);
}

// A stack without locks: the head holds an index and a count.
void lock_free_stack() {
    Block block;
    const int rounds = rounds_or(40);
    struct Node {
        std::atomic<std::uint32_t> next;
        std::uint32_t value;
    };
    auto &head = block.at<std::atomic<std::uint64_t>>(0);
    auto *nodes = &block.at<Node>(page);
    std::atomic<std::uint64_t> popped{0}, sum{0};
    on_threads(threads, [&](int me) {
        for (int i = 0; i < rounds; i++) {
            const std::uint32_t index = 1 + me * rounds + i;
            nodes[index].value = index;
            std::uint64_t seen = head.load();
            do
                nodes[index].next = (std::uint32_t)seen;
            while (!head.compare_exchange_weak(seen, ((seen >> 32) + 1) << 32 | index));
            if (i % 2 == 0)
                continue;
            for (int k = 0; k < 2; k++) {
                seen = head.load();
                std::uint32_t top;
                do {
                    top = (std::uint32_t)seen;
                    if (top == 0)
                        break;
                } while (!head.compare_exchange_weak(seen, ((seen >> 32) + 1) << 32 | nodes[top].next));
                if (top != 0) {
                    popped++;
                    sum += nodes[top].value;
                }
            }
        }
    });
    const std::uint64_t all = threads * rounds;
    verdict("lock-free stack", popped == all && sum == all * (all + 1) / 2 && (std::uint32_t)head == 0);
}

// Readers that see an even count twice have seen one version of the data.
void seqlock() {
    Block block;
    const int rounds = rounds_or(300);
    auto &count = block.at<std::atomic<unsigned>>(0);
    auto *data = &block.at<std::atomic<int>>(30 * page);
    std::atomic<int> torn{0}, seen_last{0};
    on_threads(threads, [&](int me) {
        if (me == 0) {
            for (int i = 1; i <= rounds; i++) {
                count.fetch_add(1, std::memory_order_acq_rel);
                for (int k = 0; k < 4000; k += 1000)
                    data[k].store(i, std::memory_order_relaxed);
                count.fetch_add(1, std::memory_order_release);
            }
            return;
        }
        for (;;) {
            unsigned before = count.load(std::memory_order_acquire);
            int first = data[0].load(std::memory_order_relaxed);
            int last = data[3000].load(std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (before % 2 || count.load(std::memory_order_relaxed) != before)
                continue;
            torn += first != last;
            if (first == rounds)
                break;
        }
        seen_last++;
    });
    verdict("seqlock", torn == 0 && seen_last == threads - 1);
}

// The counts of a shared pointer lie in the block with the object.
void shared_pointers() {
    struct Big {
        std::atomic<int> *ends;
        std::array<char, 200000> bytes;
        ~Big() { (*ends)++; }
    };
    static std::atomic<int> ends{0};
    const int rounds = rounds_or(5);
    for (int i = 0; i < rounds; i++) {
        auto big = std::make_shared<Big>();
        big->ends = &ends;
        std::vector<std::thread> all;
        for (int k = 0; k < threads; k++)
            all.emplace_back([big] {
                for (int n = 0; n < 10; n++) {
                    auto copy = big;
                    copy->bytes[n]++;
                }
            });
        big.reset();
        for (auto &thread : all)
            thread.join();
    }
    verdict("shared pointers", ends == rounds);
}

struct Once {
    int value;
    Once() : value(42) { constructed++; }
    static inline std::atomic<int> constructed{0};
};

Once &only() {
    static Once once;
    return once;
}

void guards() {
    std::atomic<int> good{0};
    on_threads(threads, [&](int) { good += only().value == 42; });
    verdict("guards", good == threads && Once::constructed == 1);
}

void double_checked() {
    const int rounds = rounds_or(5);
    bool good = true;
    for (int i = 0; i < rounds; i++) {
        Block block;
        auto &pointer = block.at<std::atomic<int *>>(0);
        std::mutex mutex;
        std::atomic<int> made{0}, right{0};
        on_threads(threads, [&](int) {
            int *seen = pointer.load(std::memory_order_acquire);
            if (!seen) {
                std::lock_guard<std::mutex> guard(mutex);
                seen = pointer.load(std::memory_order_relaxed);
                if (!seen) {
                    seen = &block.at<int>(70 * page);
                    *seen = 4711;
                    made++;
                    pointer.store(seen, std::memory_order_release);
                }
            }
            right += *seen == 4711;
        });
        good = good && made == 1 && right == threads;
    }
    verdict("double-checked locking", good);
}

// A queue of one producer and one consumer: plain loads and stores only.
void queue() {
    Block block;
    const int rounds = rounds_or(40);
    constexpr int room = 8;
    auto &head = block.at<std::atomic<int>>(0);
    auto &tail = block.at<std::atomic<int>>(page);
    auto *slots = &block.at<int>(2 * page);
    long sum = 0;
    on_threads(2, [&](int me) {
        for (int i = 0; i < rounds; i++) {
            if (me == 0) {
                while (i - head.load(std::memory_order_acquire) >= room) {
                }
                slots[i % room * 1024] = i;
                tail.store(i + 1, std::memory_order_release);
            } else {
                while (tail.load(std::memory_order_acquire) <= i) {
                }
                sum += slots[i % room * 1024];
                head.store(i + 1, std::memory_order_release);
            }
        }
    });
    verdict("queue", sum == (long)rounds * (rounds - 1) / 2);
}

// A lock that an operation takes with a value of its own, and a plain store frees.
void owned_lock() {
    Block block;
    const int rounds = rounds_or(20);
    auto &owner = block.at<std::atomic<int>>(64);
    auto *sums = &block.at<long>(50 * page);
    on_threads(threads, [&](int me) {
        for (int i = 0; i < rounds; i++) {
            int free = 0;
            while (!owner.compare_exchange_weak(free, me + 1, std::memory_order_acquire))
                free = 0;
            for (int k = 0; k < 1000; k += 100)
                sums[k] += 1;
            owner.store(0, std::memory_order_release);
        }
    });
    verdict("owned lock", owner == 0 && sums[0] == threads * rounds && sums[900] == threads * rounds);
}

// One thread stores plainly to a word that the others exchange. Each value that it stores goes to one of
// them, because it waits until the value is gone.
void stores_among_exchanges() {
    Block block;
    const int rounds = rounds_or(100);
    auto &word = block.at<std::atomic<std::uint64_t>>(8);
    std::atomic<int> stored{0}, received{0};
    on_threads(threads, [&](int me) {
        const std::uint64_t mark = 1ull << 63, mixed = 0x1d3779b97f4a7c15;
        if (me == 0) {
            for (int i = 1; i <= rounds; i++) {
                const std::uint64_t value = mark | i * mixed;
                word.store(value, std::memory_order_relaxed);
                while (word.load(std::memory_order_relaxed) == value)
                    std::this_thread::yield();
                stored = i;
            }
            return;
        }
        for (std::uint64_t i = 1; stored < rounds; i++)
            received += (word.exchange((i * mixed + me) & ~mark) & mark) != 0;
    });
    verdict("stores among exchanges", received == rounds);
}

// Plain bytes beside an atomic byte of the same word, and plain words of the same page.
void bytes_beside() {
    Block block;
    const int rounds = rounds_or(200);
    auto *words = &block.at<std::array<std::uint8_t, 8>>(0);
    auto *numbers = &block.at<int>(2048);
    on_threads(threads, [&](int me) {
        for (int i = 0; i < rounds; i++) {
            reinterpret_cast<std::atomic<std::uint8_t> &>(words[i % 16][0])++;
            words[i % 16][me + 1] = (std::uint8_t)(i + me);
            numbers[i % 64 * threads + me] = i;
        }
    });
    bool good = true;
    for (int k = 0; k < 16; k++) {
        int last = rounds - 1 - (rounds - 1 - k) % 16, times = 0;
        for (int i = k; i < rounds; i += 16)
            times += threads;
        good = good && (k >= rounds || words[k][0] == (std::uint8_t)times);
        for (int me = 0; me < threads && k < rounds; me++)
            good = good && words[k][me + 1] == (std::uint8_t)(last + me);
    }
    for (int k = 0; k < 64 && k < rounds; k++)
        for (int me = 0; me < threads; me++)
            good = good && numbers[k * threads + me] == rounds - 1 - (rounds - 1 - k) % 64;
    verdict("bytes beside", good);
}

// Blocks that are freed and allocated again, with and without atomic variables.
void used_again() {
    const int rounds = rounds_or(4);
    bool good = true;
    for (int i = 0; i < rounds; i++) {
        Block block;
        auto *counts = &block.at<std::atomic<int>>(0);
        auto *numbers = &block.at<int>(100 * page);
        for (int k = 0; k < 4; k++)
            good = good && counts[k * 1024] == 0 && numbers[k] == 0;
        on_threads(threads, [&](int me) {
            for (int k = 0; k < 4; k++)
                if (i % 2 == 0)
                    counts[k * 1024]++;
            numbers[me] = i + me + 1;
        });
        for (int k = 0; k < 4; k++)
            good = good && counts[k * 1024] == (i % 2 ? 0 : threads) && numbers[k] == i + k + 1;
    }
    verdict("used again", good);
}

} // namespace

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "all";
    asked_rounds = count > 2 ? std::atoi(arguments[2]) : 0;
    auto asks = [&](const char *which) { return !std::strcmp(name, "all") || !std::strcmp(name, which); };
    if (asks("counters"))
        counters();
    if (asks("last"))
        last_one();
    if (asks("buffering"))
        store_buffering(false);
    if (asks("fences"))
        store_buffering(true);
    if (asks("mixed"))
        mixed_store_buffering();
    if (asks("passing"))
        message_passing(false);
    if (asks("exchange"))
        message_passing(true);
    if (asks("spin"))
        spin_lock();
    if (asks("ticket"))
        ticket_lock();
    if (asks("stack"))
        lock_free_stack();
    if (asks("seqlock"))
        seqlock();
    if (asks("pointers"))
        shared_pointers();
    if (asks("guards"))
        guards();
    if (asks("checked"))
        double_checked();
    if (asks("queue"))
        queue();
    if (asks("owned"))
        owned_lock();
    if (asks("stores"))
        stores_among_exchanges();
    if (asks("bytes"))
        bytes_beside();
    if (asks("again"))
        used_again();
    return 0;
}
