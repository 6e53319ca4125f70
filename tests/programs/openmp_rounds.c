/* One construct again and again, whose messages between nodes a test counts. Usage: openmp_rounds WHAT
 * COUNT. Threads have copies of COUNT, since the page of the original changes with every call of thread 0. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long total;

/* Nothing that the optimiser could leave out. */
static void nothing(void) {
    __asm__ volatile("" ::: "memory");
}

static void regions(int count) {
    for (int i = 0; i < count; i++) {
#pragma omp parallel
        nothing();
    }
}

/* Two regions in turn. */
static void pairs(int count) {
    for (int i = 0; i < count / 2; i++) {
#pragma omp parallel
        nothing();
#pragma omp parallel
        {
            nothing();
            nothing();
        }
    }
}

/* A region with private and shared data of its caller, which change from call to call. */
static void arguments(int count) {
    double values[4] = {1, 2, 3, 4};
    double *shared = values;
    for (int i = 0; i < count; i++) {
        long changing = i;
        values[i % 4] = i;
#pragma omp parallel firstprivate(changing) shared(shared)
        if (changing + shared[0] < 0)
            total++;
    }
}

/* A region that adds to a variable of its caller. */
static void sums(int count) {
    for (int i = 0; i < count; i++) {
        long sum = 0;
#pragma omp parallel for reduction(+ : sum)
        for (int j = 0; j < 100; j++)
            sum += j;
        total += sum;
    }
}

/* A region that adds to two variables of its caller. */
static void two_sums(int count) {
    for (int i = 0; i < count; i++) {
        double sum = 0, square = 0;
#pragma omp parallel for reduction(+ : sum, square)
        for (int j = 0; j < 100; j++) {
            sum += j;
            square += (double)j * j;
        }
        total += (long)(sum + square);
    }
}

/* A single whose result all threads get. */
static void copies(int count) {
#pragma omp parallel firstprivate(count)
    {
        long value = 0;
        for (int i = 0; i < count; i++) {
#pragma omp single copyprivate(value)
            value = i;
            if (value != i)
                abort();
        }
    }
}

static void barriers(int count) {
#pragma omp parallel firstprivate(count)
    for (int i = 0; i < count; i++) {
#pragma omp barrier
    }
}

static void singles(int count) {
#pragma omp parallel firstprivate(count)
    for (int i = 0; i < count; i++) {
#pragma omp single
        nothing();
    }
}

/* By the last thread alone, so that no other one wants the lock. */
static void criticals(int count) {
#pragma omp parallel firstprivate(count)
    if (omp_get_thread_num() == omp_get_num_threads() - 1) {
        for (int i = 0; i < count; i++) {
#pragma omp critical
            nothing();
        }
    }
}

static void reductions(int count) {
#pragma omp parallel firstprivate(count)
    for (int i = 0; i < count; i++) {
#pragma omp for reduction(+ : total)
        for (int j = 0; j < 100; j++)
            total += j;
    }
}

/* Of a real number, which no instruction adds to. */
static void real_reductions(int count) {
    static double real;
#pragma omp parallel firstprivate(count)
    for (int i = 0; i < count; i++) {
#pragma omp for reduction(+ : real)
        for (int j = 0; j < 100; j++)
            real += j;
    }
    total = (long)real;
}

/* All threads read the sum behind the barrier. */
static void read_reductions(int count) {
#pragma omp parallel firstprivate(count)
    for (int i = 0; i < count; i++) {
#pragma omp for reduction(+ : total)
        for (int j = 0; j < 100; j++)
            total += j;
        if (total < 4950)
            abort();
#pragma omp barrier
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(int);
    } constructs[] = {{"regions", regions},   {"pairs", pairs},           {"arguments", arguments},
                      {"sums", sums},         {"barriers", barriers},     {"singles", singles},
                      {"copies", copies},     {"criticals", criticals},   {"reductions", reductions},
                      {"two_sums", two_sums}, {"real_reductions", real_reductions},
                      {"read_reductions", read_reductions}};
    for (size_t i = 0; argc == 3 && i < sizeof constructs / sizeof *constructs; i++) {
        if (strcmp(argv[1], constructs[i].name) == 0) {
            constructs[i].run(atoi(argv[2]));
            printf("%ld\n", total);
            return 0;
        }
    }
    return 2;
}
