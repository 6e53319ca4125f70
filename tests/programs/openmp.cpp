// OpenMP with C++: objects that are copied into regions and tasks, reductions that the program defines,
// exceptions inside regions, thread-private objects. Prints what depends neither on the number of threads nor
// on their places.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <omp.h>
#include <stdexcept>
#include <string>
#include <vector>

static void check(bool ok, const char *what) {
    if (!ok) {
        std::printf("wrong: %s\n", what);
        std::exit(1);
    }
}

struct Counted {
    static int living;
    std::string text;
    explicit Counted(const char *text) : text(text) { count(1); }
    Counted(const Counted &other) : text(other.text) { count(1); }
    ~Counted() { count(-1); }
    static void count(int by) {
#pragma omp atomic
        living += by;
    }
};
int Counted::living = 0;

using Histogram = std::map<std::string, long>;

static void add(Histogram &to, const Histogram &from) {
    for (const auto &[word, count] : from)
        to[word] += count;
}

#pragma omp declare reduction(merge : Histogram : add(omp_out, omp_in))
#pragma omp declare reduction(append : std::vector<int> : omp_out.insert(omp_out.end(), omp_in.begin(), omp_in.end()))

struct PerThread {
    int begun = 7;
    std::vector<int> seen;
    PerThread() : seen(3, begun) {}
};
static thread_local PerThread per_thread;

int main() {
    Histogram words;
    std::vector<int> all;
#pragma omp parallel for reduction(merge : words) reduction(append : all) schedule(dynamic, 5)
    for (int i = 0; i < 200; i++) {
        words["word " + std::to_string(i % 7)] += i;
        all.push_back(i);
    }
    long sum = std::accumulate(all.begin(), all.end(), 0L);
    check(all.size() == 200 && sum == 19900, "a reduction that appends");
    std::printf("%zu words, %ld\n", words.size(), words["word 3"]);

    {
        Counted original("a text that is too long for the object itself to hold");
        int good = 0;
#pragma omp parallel firstprivate(original) reduction(+ : good)
        {
            original.text += std::to_string(omp_get_thread_num());
#pragma omp single
            for (int i = 0; i < 20; i++)
#pragma omp task firstprivate(original) shared(good)
            {
                original.text.pop_back();
                if (original.text.size() >= 50)
#pragma omp atomic
                    good++;
            }
        }
        check(good == 20, "objects are copied into tasks");
    }
    check(Counted::living == 0, "copies are destroyed");

    int caught = 0;
#pragma omp parallel reduction(+ : caught)
    {
        try {
            per_thread.seen.at(100) = 1;
        } catch (const std::out_of_range &) {
            caught++;
        }
        check(per_thread.begun == 7 && per_thread.seen[2] == 7, "thread-private objects are constructed");
        per_thread.begun = omp_get_thread_num();
    }
    check(caught == omp_get_max_threads(), "exceptions inside a region");
#pragma omp parallel
    check(per_thread.begun == omp_get_thread_num(), "thread-private objects stay");

    std::vector<double> numbers(1000, 0.5);
    double total = 0;
#pragma omp parallel for reduction(+ : total)
    for (auto number = numbers.begin(); number < numbers.end(); ++number)
        total += *number;
    std::printf("%.1f\n", total);
    return 0;
}
