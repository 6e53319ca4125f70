/* Objects that tasks and threads have copies of: as many copies end as begin, and none is used after its end.
 * Built by the system's compilers with -fopenmp. Prints what it has found. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <omp.h>
#include <stdexcept>
#include <vector>

static std::atomic<int> alive{0};

static void check(bool ok, const char *what) {
    if (!ok) {
        std::printf("wrong: %s\n", what);
        std::exit(1);
    }
}

struct Counted {
    std::vector<int> *values;
    explicit Counted(int value = 1) : values(new std::vector<int>(3, value)) { alive++; }
    Counted(const Counted &other) : values(new std::vector<int>(*other.values)) { alive++; }
    Counted &operator=(const Counted &other) {
        *values = *other.values;
        return *this;
    }
    ~Counted() {
        values->assign(3, -1);
        delete values;
        alive--;
    }
    int first() const { return values->front(); }
};

#pragma omp declare reduction(sum : Counted : omp_out.values->front() += omp_in.values->front())                     \
    initializer(omp_priv = Counted(0))

extern Counted own;
#pragma omp threadprivate(own)
Counted own(9);

static int thrown(int number) {
    try {
        if (number % 3 == 0)
            throw std::runtime_error("three");
        return 0;
    } catch (const std::runtime_error &) {
        return 1;
    }
}

int main() {
    int caught = 0, total = 0, last = 0;
    {
        Counted given(5), result(0), latest(0);
#pragma omp parallel firstprivate(given)
        {
            check(given.first() == 5, "a copy of a thread");
#pragma omp single
            {
                for (int i = 0; i < 40; i++)
#pragma omp task firstprivate(given, i) shared(total)
                {
                    int found = given.first() * i;
#pragma omp atomic
                    total += found;
                }
#pragma omp task firstprivate(given) if (0)
                check(given.first() == 5, "a copy of a task that is run at once");
#pragma omp task firstprivate(given) untied
                check(given.first() == 5, "a copy of an untied task");
#pragma omp taskloop firstprivate(given) lastprivate(latest) grainsize(3)
                for (int i = 0; i < 20; i++)
                    latest = Counted(given.first() + i);
#pragma omp taskgroup task_reduction(sum : result)
                for (int i = 0; i < 10; i++)
#pragma omp task in_reduction(sum : result)
                    result.values->front() += i;
            }
#pragma omp for reduction(+ : caught) lastprivate(last) schedule(monotonic : dynamic, 5)
            for (int i = 0; i < 60; i++) {
                caught += thrown(i);
                last = i;
            }
            Counted passed(omp_get_thread_num());
#pragma omp single copyprivate(passed)
            passed = Counted(33);
            check(passed.first() == 33, "copyprivate of an object");
        }
        check(latest.first() == 24, "lastprivate of a taskloop");
        check(result.first() == 45, "a reduction of objects over tasks");
    }
#pragma omp parallel
    {
        check(own.first() == 9, "how an object of each thread begins");
        own = Counted(omp_get_thread_num());
#pragma omp barrier
        check(own.first() == omp_get_thread_num(), "an object of each thread");
    }
    own = Counted(70);
#pragma omp parallel copyin(own)
    check(own.first() == 70, "copyin of an object");
    check(alive >= 1 && alive <= omp_get_max_threads(), "each copy ends once");
    std::printf("objects %d %d %d\n", total, caught, last);
    return 0;
}
