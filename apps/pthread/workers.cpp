// Threads of the C++ library: a pool with futures, exceptions that cross threads, atomics, call_once,
// thread_local. Usage: workers [TASKS [THREADS]].
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

class Pool {
  public:
    explicit Pool(int count)
    {
        for (int i = 0; i < count; i++)
            threads.emplace_back([this] { run(); });
    }
    ~Pool()
    {
        {
            std::lock_guard<std::mutex> guard(lock);
            closed = true;
        }
        changed.notify_all();
        for (auto &thread : threads)
            thread.join();
    }
    std::future<long> submit(std::function<long()> function)
    {
        auto task = std::make_shared<std::packaged_task<long()>>(std::move(function));
        auto result = task->get_future();
        {
            std::lock_guard<std::mutex> guard(lock);
            tasks.push_back([task] { (*task)(); });
        }
        changed.notify_one();
        return result;
    }

  private:
    void run()
    {
        for (;;) {
            std::function<void()> task;
            {
                std::unique_lock<std::mutex> guard(lock);
                changed.wait(guard, [this] { return closed || !tasks.empty(); });
                if (tasks.empty())
                    return;
                task = std::move(tasks.front());
                tasks.pop_front();
            }
            task();
        }
    }
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool closed = false;
    std::vector<std::thread> threads;
};

static std::atomic<long> counter{0};
static std::once_flag once;
static long prepared = 0;
static thread_local long own = 0;

static const std::map<int, std::string> &names()
{
    static const std::map<int, std::string> table = {{0, "even"}, {1, "odd"}};
    return table;
}

static long work(long number)
{
    std::call_once(once, [] { prepared++; });
    own++;
    for (int i = 0; i < 10; i++)
        counter.fetch_add(1);
    if (number % 10 == 9)
        throw std::runtime_error("task " + std::to_string(number) + " is " + names().at(number % 2));
    return number * number;
}

int main(int argc, char **argv)
{
    long tasks = argc > 1 ? std::atol(argv[1]) : 60;
    int count = argc > 2 ? std::atoi(argv[2]) : 3;
    long sum = 0, failures = 0;
    std::string last;
    {
        Pool pool(count);
        std::vector<std::future<long>> results;
        for (long i = 0; i < tasks; i++)
            results.push_back(pool.submit([i] { return work(i); }));
        for (auto &result : results) {
            try {
                sum += result.get();
            } catch (const std::runtime_error &error) {
                failures++;
                last = error.what();
            }
        }
    }
    std::cout << tasks << " tasks, sum " << sum << ", " << failures << " failures, last: " << last << "\n";
    std::cout << "counter " << counter << ", prepared " << prepared << " time, own " << own << std::endl;
    return 0;
}
