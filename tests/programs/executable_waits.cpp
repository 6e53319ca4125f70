// What C++20 threads wait with, in a program that was not built for Hiroba: latches, barriers, semaphores,
// atomic variables, stop tokens, futures, and locks and conditions with deadlines.
//
//     c++ -O2 -std=c++20 -pthread -o waits executable_waits.cpp && hiroba run --pthread -n 2 ./waits
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <new>
#include <semaphore>
#include <shared_mutex>
#include <stop_token>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using threads = std::vector<std::jthread>;

// Threads take turns by waiting for an atomic variable to change.
static void take_turns(const char *where, std::atomic<int> &turn)
{
    threads all;
    for (int i = 0; i < 3; i++)
        all.emplace_back([&turn, i] {
            for (int round = 0; round < 20; round++) {
                int seen;
                while ((seen = turn.load()) % 3 != i)
                    turn.wait(seen);
                turn.store(seen + 1);
                turn.notify_all();
            }
        });
    all.clear();
    std::printf("%s: %d turns\n", where, turn.load());
}

int main()
{
    {
        std::latch done(4);
        std::atomic<int> sum{0};
        threads all;
        for (int i = 0; i < 4; i++)
            all.emplace_back([&, i] {
                sum += i;
                done.count_down();
            });
        done.wait();
        std::printf("latch: %d\n", sum.load());
    }
    {
        int phases = 0;
        std::barrier meeting(4, [&]() noexcept { phases++; });
        threads all;
        for (int i = 0; i < 4; i++)
            all.emplace_back([&] {
                for (int phase = 0; phase < 50; phase++)
                    meeting.arrive_and_wait();
            });
        all.clear();
        std::printf("barrier: %d phases\n", phases);
    }
    {
        std::counting_semaphore<8> units(0);
        std::atomic<int> taken{0};
        threads all;
        for (int i = 0; i < 4; i++)
            all.emplace_back([&] {
                for (int unit = 0; unit < 20; unit++) {
                    units.acquire();
                    taken++;
                }
            });
        for (int unit = 0; unit < 80; unit++)
            units.release();
        all.clear();
        std::printf("semaphore: %d, %d\n", taken.load(), units.try_acquire_for(10ms));
    }
    {
        std::atomic<int> turn{0};
        take_turns("stack", turn);
        std::vector<char> block(1 << 20);
        take_turns("long block", *new (&block[4096]) std::atomic<int>(0));
    }
    {
        std::mutex mutex;
        std::condition_variable_any changed;
        std::jthread waiting([&](std::stop_token stop) {
            std::unique_lock lock(mutex);
            changed.wait(lock, stop, [] { return false; });
            std::printf("stop: %d\n", stop.stop_requested());
        });
        std::this_thread::sleep_for(10ms);
    }
    {
        auto result = std::async(std::launch::async, [] { return 42; });
        std::promise<int> promise;
        auto promised = promise.get_future();
        std::jthread keeps([&] {
            std::this_thread::sleep_for(5ms);
            promise.set_value(7);
        });
        std::printf("futures: %d %d\n", result.get(), promised.get());
        auto late = std::async(std::launch::async, [] { std::this_thread::sleep_for(100ms); });
        std::printf("future in time: %d\n", late.wait_for(1ms) == std::future_status::ready);
    }
    {
        std::shared_timed_mutex shared;
        std::timed_mutex timed;
        shared.lock();
        timed.lock();
        std::jthread([&] {
            const bool written = shared.try_lock_for(10ms);
            const bool read = shared.try_lock_shared_until(std::chrono::steady_clock::now() + 10ms);
            std::printf("timed locks: %d %d %d\n", written, read, timed.try_lock_for(10ms));
        }).join();
        shared.unlock();
        timed.unlock();
    }
    {
        std::mutex mutex;
        std::condition_variable changed;
        std::unique_lock lock(mutex);
        const auto timeout = std::cv_status::timeout;
        const bool by_steady = changed.wait_for(lock, 10ms) == timeout;
        const bool by_system = changed.wait_until(lock, std::chrono::system_clock::now() + 10ms) == timeout;
        std::printf("timed waits: %d %d\n", by_steady, by_system);
    }
    {
        // Each thread's exceptions, and a variable with a constructor and a destructor.
        static std::atomic<int> made{0}, dropped{0};
        struct counted {
            counted() { made++; }
            ~counted() { dropped++; }
        };
        threads all;
        for (int i = 0; i < 4; i++)
            all.emplace_back([i] {
                thread_local counted own;
                (void)&own;
                try {
                    throw i;
                } catch (int caught) {
                    if (caught != i)
                        std::printf("WRONG\n");
                }
            });
        all.clear();
        std::printf("thread_local: %d %d\n", made.load(), dropped.load());
    }
}
